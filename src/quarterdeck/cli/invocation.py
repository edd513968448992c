"""`qd invocation`: send, list, show, wait, cancel. The commands for workers are in `invocation_work`."""

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
from quarterdeck.cli.output import cell, format_duration, parse_timestamp, table, to_json_line
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
                ("invocation", "wait"),
                "Wait until an invocation ends and print its result.",
                wait,
                id_argument,
                (),
                _WAIT_HELP,
            ),
            Command(
                ("invocation", "cancel"),
                "Cancel an invocation, or request cancellation if it is running.",
                cancel,
                id_argument,
                _CANCEL_OPTIONS,
            ),
            *invocation_work.build_commands(),
        ),
        {"invocation": "Manage invocations: durable calls to services."},
    )


_STATUS = choice("pending", "running", "succeeded", "failed", "timed_out", "canceled", "dead")
_SEND_OPTIONS = (
    Option("--service", "Service to invoke.", ID, required=True),
    Option("--method", "Method to invoke.", TEXT, required=True),
    Option("--params", f"Parameters for the worker: {JSON_INPUT_HELP}.", TEXT),
    Option("--key", "Idempotency key: the same key returns the same invocation.", TEXT),
    Option("--source", "Session that sends the invocation.", ID),
    Option("--target", "Session that the invocation is for.", ID),
    Option("--deadline", "Time limit for each attempt, such as 90s or 15m [default: 30s].", DURATION),
    Option("--attempts", "Maximum number of attempts, 1 to 10 [default: 3].", NUMBER),
    Option("--backoff", "Delay before the second attempt; doubles each time [default: 1s].", DURATION),
    Option("--metadata", "JSON object to store with the invocation.", JSON_OBJECT),
)
_SEND_HELP = "Without --key, each run creates a new invocation."
_LIST_OPTIONS = (
    Option("--service", "Only invocations of this service.", ID),
    Option("--status", "Only invocations with this status.", _STATUS),
    Option("--source", "Only invocations sent by this session.", ID),
    Option("--target", "Only invocations for this session.", ID),
    *PAGING,
)
_WAIT_HELP = """Exits 0 and prints the result as JSON if the invocation succeeded. Exits 1, with the error on stderr, if
its status is failed, timed_out, canceled or dead. Exits 5 after --timeout. Without --timeout it waits without limit."""
_CANCEL_OPTIONS = (Option("--reason", "Reason to record [default: requested].", TEXT),)


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
    reply = context.server().call("POST", context.zone_path("invocations"), body=body, key=key)
    context.show(reply.document, lambda sent: cell(sent.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {
        "service_id": context.text("service"),
        "status": context.text("status"),
        "source_session_id": context.text("source"),
        "target_session_id": context.text("target"),
    }
    return print_list(context, context.zone_path("invocations"), query, _table)


def show(context: Context) -> int:
    return print_details(context, _path(context))


def wait(context: Context) -> int:
    from quarterdeck.cli.wait import wait_for_invocation  # imported here: other commands do not need it

    invocation = wait_for_invocation(context, _path(context), context.required_text("id"))
    status = invocation.get("status")
    if context.as_json or status == "succeeded":
        context.show(invocation, lambda document: to_json_line(document.get("result")))
    else:
        context.note(f"The invocation is {cell(status)}: {_failure_reason(invocation)}")
    return 0 if status == "succeeded" else EXIT_FAILED


def cancel(context: Context) -> int:
    body = without_none({"reason": context.text("reason")})
    document = context.server().call("POST", _path(context, "cancel"), body=body).document
    invocation_id, status = cell(document.get("id")), document.get("status")
    requested_text = (
        f"Requested cancellation of {invocation_id}. "
        "It is running, and ends when its worker confirms or its lease expires."
    )
    context.show(document, lambda _: f"Canceled {invocation_id}." if status == "canceled" else requested_text)
    return 0


def _path(context: Context, *segments: str) -> str:
    return context.zone_path("invocations", context.required_text("id"), *segments)


def _failure_reason(invocation: Document) -> str:
    if invocation.get("status") == "canceled":
        return cell(invocation.get("cancel_reason"))
    return cell(invocation.get("error"))


def _table(context: Context, invocations: list[Document]) -> str:
    if not invocations:
        return f"No invocations found in zone {context.zone}."
    now = time.time()
    rows = [
        [
            *(invocation.get(name) for name in ("id", "service_id", "method", "status")),
            f"{cell(invocation.get('attempts'))}/{cell(invocation.get('max_attempts'))}",
            format_duration(now - (parse_timestamp(invocation.get("created_at")) or now)),
            _format_invocation_duration(invocation),
        ]
        for invocation in invocations
    ]
    return table(("ID", "SERVICE", "METHOD", "STATUS", "ATTEMPTS", "AGE", "DURATION"), rows, context.styler)


def _format_invocation_duration(invocation: Document) -> str | None:
    created_at, completed_at = (
        parse_timestamp(invocation.get("created_at")),
        parse_timestamp(invocation.get("completed_at")),
    )
    return None if created_at is None or completed_at is None else f"{(completed_at - created_at) * 1000:.0f} ms"
