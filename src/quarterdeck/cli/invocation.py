"""Invocations: send, list, show, wait for, cancel. What their workers say is in `work`."""

from __future__ import annotations

import time

from quarterdeck.cli import invocation_work
from quarterdeck.cli.command_table import DURATION, ID, NUMBER, OBJECT, TEXT, Argument, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import GIVEN, document, key_or_fresh, milliseconds, without_nothing
from quarterdeck.cli.list_output import PAGES, show_list, show_one
from quarterdeck.cli.output import as_json, cell, instant, span, table
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def noun() -> Noun:
    one = (Argument("id", "ID", ID),)
    return Noun(
        (
            Command(
                ("invocation", "send"),
                "Invoke a service and print the invocation's id.",
                send,
                options=_SEND,
                description=_SENDING,
            ),
            Command(("invocation", "list"), "List invocations, newest first.", list_, options=_LIST),
            Command(("invocation", "show"), "Show one invocation.", show, one),
            Command(("invocation", "wait"), "Wait for the end and print the result.", wait, one, (), _WAITING),
            Command(("invocation", "cancel"), "Ask for an invocation to be canceled.", cancel, one, _CANCEL),
            *invocation_work.commands(),
        ),
        {"invocation": "Durable calls to a service."},
    )


_STATUSES = choice("pending", "running", "succeeded", "failed", "timed_out", "canceled", "dead")
_SEND = (
    Option("--service", "The service that is invoked.", ID, required=True),
    Option("--method", "What of it is invoked.", TEXT, required=True),
    Option("--params", f"What is handed to the worker: {GIVEN}.", TEXT),
    Option("--key", "Idempotency key: repeating the command gives the same invocation.", TEXT),
    Option("--source", "The session that invokes.", ID),
    Option("--target", "The session it is for.", ID),
    Option("--deadline", "How long one attempt may take: 90, 15m [default: 30s].", DURATION),
    Option("--attempts", "How often it is tried at most, 1 to 10 [default: 3].", NUMBER),
    Option("--backoff", "How long to wait before the second attempt; it doubles [default: 1s].", DURATION),
    Option("--metadata", "A JSON object to keep with it.", OBJECT),
)
_SENDING = "Without --key every run is another invocation."
_LIST = (
    Option("--service", "Only those of this service.", ID),
    Option("--status", "Only those in this status.", _STATUSES),
    Option("--source", "Only those that this session sent.", ID),
    Option("--target", "Only those for this session.", ID),
    *PAGES,
)
_WAITING = """Prints the result as JSON and exits with 0 if it succeeded; with 1 and the error on stderr if it failed,
died, timed out or was canceled; with 5 if --timeout ran out before. Without --timeout it waits as long as it takes."""
_CANCEL = (Option("--reason", "Why, for the record [default: requested].", TEXT),)


def send(context: Context) -> int:
    policy = {"max_attempts": context.number("attempts"), "backoff_ms": milliseconds(context.number("backoff"))}
    asked: Document = {
        "service_id": context.given("service"),
        "method": context.given("method"),
        "params": document(context, "params"),
        "source_session_id": context.text("source"),
        "target_session_id": context.text("target"),
        "timeout_ms": milliseconds(context.number("deadline")),
        "retry_policy": without_nothing(policy) or None,
        "metadata": context.ask.values["metadata"],
    }
    body, key = without_nothing(asked), key_or_fresh(context)
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
    return show_list(context, context.in_zone("invocations"), query, _table)


def show(context: Context) -> int:
    return show_one(context, _path(context))


def wait(context: Context) -> int:
    from quarterdeck.cli.wait import wait_for_invocation  # whoever only looks does not pay for it

    ended = wait_for_invocation(context, _path(context), context.given("id"))
    status = ended.get("status")
    if context.as_json or status == "succeeded":
        context.show(ended, lambda told: as_json(told.get("result")))
    else:
        context.note(f"the invocation is {cell(status)}: {_why(ended)}")
    return 0 if status == "succeeded" else EXIT_FAILED


def cancel(context: Context) -> int:
    body = without_nothing({"reason": context.text("reason")})
    told = context.server().call("POST", _path(context, "cancel"), body=body).document
    name, status = cell(told.get("id")), told.get("status")
    asked = f"asked for the end of {name}: it runs, and is canceled when its holder says so or its lease ends"
    context.show(told, lambda _: f"canceled {name}" if status == "canceled" else asked)
    return 0


def _path(context: Context, *rest: str) -> str:
    return context.in_zone("invocations", context.given("id"), *rest)


def _why(invocation: Document) -> str:
    if invocation.get("status") == "canceled":
        return cell(invocation.get("cancel_reason"))
    return cell(invocation.get("error"))


def _table(context: Context, invocations: list[Document]) -> str:
    if not invocations:
        return f"no such invocations in zone {context.zone}"
    now = time.time()
    rows = [
        [
            *(one.get(name) for name in ("id", "service_id", "method", "status")),
            f"{cell(one.get('attempts'))}/{cell(one.get('max_attempts'))}",
            span(now - (instant(one.get("created_at")) or now)),
            _took(one),
        ]
        for one in invocations
    ]
    return table(("ID", "SERVICE", "METHOD", "STATUS", "TRIED", "AGE", "TOOK"), rows, context.paint)


def _took(invocation: Document) -> str | None:
    began, ended = instant(invocation.get("created_at")), instant(invocation.get("completed_at"))
    return None if began is None or ended is None else f"{(ended - began) * 1000:.0f} ms"
