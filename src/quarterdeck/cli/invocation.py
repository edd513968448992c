"""Invocations: send, list, show, wait for, cancel. What their workers say is in `work`."""

from __future__ import annotations

import time

from quarterdeck.cli import invocation_work
from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import JSON_INPUT_HELP, idempotency_key, json_option, to_milliseconds, without_none
from quarterdeck.cli.list_output import PAGING, print_details, print_list
from quarterdeck.cli.output import as_json, cell, instant, span, table
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    return CommandTable(
        (
            Command(
                ("invocation", "send"),
                "Invoke a service and print the invocation's id.",
                send,
                options=_SEND_OPTIONS,
                description=_SEND_HELP,
            ),
            Command(("invocation", "list"), "List invocations, newest first.", list_, options=_LIST_OPTIONS),
            Command(("invocation", "show"), "Show one invocation.", show, id_argument),
            Command(
                ("invocation", "wait"), "Wait for the end and print the result.", wait, id_argument, (), _WAIT_HELP
            ),
            Command(
                ("invocation", "cancel"), "Ask for an invocation to be canceled.", cancel, id_argument, _CANCEL_OPTIONS
            ),
            *invocation_work.build_commands(),
        ),
        {"invocation": "Durable calls to a service."},
    )


_STATUS = choice("pending", "running", "succeeded", "failed", "timed_out", "canceled", "dead")
_SEND_OPTIONS = (
    Option("--service", "The service that is invoked.", ID, required=True),
    Option("--method", "What of it is invoked.", TEXT, required=True),
    Option("--params", f"What is handed to the worker: {JSON_INPUT_HELP}.", TEXT),
    Option("--key", "Idempotency key: repeating the command gives the same invocation.", TEXT),
    Option("--source", "The session that invokes.", ID),
    Option("--target", "The session it is for.", ID),
    Option("--deadline", "How long one attempt may take: 90, 15m [default: 30s].", DURATION),
    Option("--attempts", "How often it is tried at most, 1 to 10 [default: 3].", NUMBER),
    Option("--backoff", "How long to wait before the second attempt; it doubles [default: 1s].", DURATION),
    Option("--metadata", "A JSON object to keep with it.", JSON_OBJECT),
)
_SEND_HELP = "Without --key every run is another invocation."
_LIST_OPTIONS = (
    Option("--service", "Only those of this service.", ID),
    Option("--status", "Only those in this status.", _STATUS),
    Option("--source", "Only those that this session sent.", ID),
    Option("--target", "Only those for this session.", ID),
    *PAGING,
)
_WAIT_HELP = """Prints the result as JSON and exits with 0 if it succeeded; with 1 and the error on stderr if it failed,
died, timed out or was canceled; with 5 if --timeout ran out before. Without --timeout it waits as long as it takes."""
_CANCEL_OPTIONS = (Option("--reason", "Why, for the record [default: requested].", TEXT),)


def send(context: Context) -> int:
    retry_policy = {
        "max_attempts": context.number("attempts"),
        "backoff_ms": to_milliseconds(context.number("backoff")),
    }
    fields: Document = {
        "service_id": context.required_text("service"),
        "method": context.required_text("method"),
        "params": json_option(context, "params"),
        "source_session_id": context.text("source"),
        "target_session_id": context.text("target"),
        "timeout_ms": to_milliseconds(context.number("deadline")),
        "retry_policy": without_none(retry_policy) or None,
        "metadata": context.parsed.values["metadata"],
    }
    body, key = without_none(fields), idempotency_key(context)
    reply = context.server().call("POST", context.in_zone("invocations"), body=body, key=key)
    context.show(reply.document, lambda sent: cell(sent.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {
        "service_id": context.text("service"),
        "status": context.text("status"),
        "source_session_id": context.text("source"),
        "target_session_id": context.text("target"),
    }
    return print_list(context, context.in_zone("invocations"), query, _table)


def show(context: Context) -> int:
    return print_details(context, _path(context))


def wait(context: Context) -> int:
    from quarterdeck.cli.wait import wait_for_invocation  # whoever only looks does not pay for it

    invocation = wait_for_invocation(context, _path(context), context.required_text("id"))
    status = invocation.get("status")
    if context.as_json or status == "succeeded":
        context.show(invocation, lambda document: as_json(document.get("result")))
    else:
        context.note(f"the invocation is {cell(status)}: {_failure_reason(invocation)}")
    return 0 if status == "succeeded" else EXIT_FAILED


def cancel(context: Context) -> int:
    body = without_none({"reason": context.text("reason")})
    document = context.server().call("POST", _path(context, "cancel"), body=body).document
    invocation_id, status = cell(document.get("id")), document.get("status")
    requested_text = (
        f"asked for the end of {invocation_id}: it runs, and is canceled when its holder says so or its lease ends"
    )
    context.show(document, lambda _: f"canceled {invocation_id}" if status == "canceled" else requested_text)
    return 0


def _path(context: Context, *segments: str) -> str:
    return context.in_zone("invocations", context.required_text("id"), *segments)


def _failure_reason(invocation: Document) -> str:
    if invocation.get("status") == "canceled":
        return cell(invocation.get("cancel_reason"))
    return cell(invocation.get("error"))


def _table(context: Context, invocations: list[Document]) -> str:
    if not invocations:
        return f"no such invocations in zone {context.zone}"
    now = time.time()
    rows = [
        [
            *(invocation.get(name) for name in ("id", "service_id", "method", "status")),
            f"{cell(invocation.get('attempts'))}/{cell(invocation.get('max_attempts'))}",
            span(now - (instant(invocation.get("created_at")) or now)),
            _format_duration(invocation),
        ]
        for invocation in invocations
    ]
    return table(("ID", "SERVICE", "METHOD", "STATUS", "TRIED", "AGE", "TOOK"), rows, context.styler)


def _format_duration(invocation: Document) -> str | None:
    created_at, completed_at = instant(invocation.get("created_at")), instant(invocation.get("completed_at"))
    return None if created_at is None or completed_at is None else f"{(completed_at - created_at) * 1000:.0f} ms"
