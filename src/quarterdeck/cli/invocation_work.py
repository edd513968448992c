"""The worker's side of invocations: claim, start, keep, complete, give back."""

from __future__ import annotations

import secrets
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID, TEXT, Argument, Command, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import GIVEN, document, text_or_document, without_nothing
from quarterdeck.cli.list_output import when
from quarterdeck.cli.output import as_json, cell, instant, table
from quarterdeck.client.api import Document, items_of
from quarterdeck.client.problems import from_document
from quarterdeck.core.errors import EXIT_FAILED


def commands() -> tuple[Command, ...]:
    one = (Argument("id", "ID", ID),)
    service = (Argument("service", "SERVICE", ID),)
    return (
        Command(("invocation", "claim"), "Take work of a service.", claim, service, _CLAIM, _CLAIMING),
        Command(("invocation", "start"), "Begin an attempt and print its token.", start, one, (), _STARTING),
        Command(("invocation", "heartbeat"), "Keep the lease of an attempt.", heartbeat, one, (_TOKEN,), _KEEPING),
        Command(("invocation", "complete"), "Report how an attempt went.", complete, one, _COMPLETE, _REPORTING),
        Command(("invocation", "release"), "Give an attempt back, uncounted.", release, one, (_NEEDED_TOKEN,)),
    )


_CLAIM = (*input.how_much(100), Option("--claim-id", "The same id gives the same leases again, while they run.", TEXT))
_CLAIMING = """Each invocation is leased, and must be completed with its token, or kept by heartbeats, before the
lease ends."""
_STARTING = "For a worker that has learnt of the invocation elsewhere."
_TOKEN = Option("--attempt-token", "Of the attempt, as claim or start printed it.", TEXT)
_NEEDED_TOKEN = _TOKEN._replace(required=True)
_KEEPING = "Exits with 1 if the invocation's cancellation was asked for."
_COMPLETE = (
    _TOKEN,
    Option("--status", "How it went [default: succeeded].", choice("succeeded", "failed", "canceled")),
    Option("--result", f"What came of it: {GIVEN}.", TEXT),
    Option("--error", f"What went wrong: text, {GIVEN}.", TEXT),
    Option("--no-retry", "A failure that another attempt would not mend."),
)
_REPORTING = "A failed attempt is followed by another, unless --no-retry is given or it was the last."


def claim(context: Context) -> int:
    body: Document = {"wait_ms": input.wait_ms(context), "claim_id": context.text("claim_id")}
    path = context.in_zone("services", context.given("service"), "claim")
    return input.claim(context, path, body, lambda told: _leases(context, told), "items")


def start(context: Context) -> int:
    """The token alone on stdout: `TOKEN=$(qd invocation start ID)`."""
    # Should the answer be lost, the request that is sent again is known by this, and is given the same attempt.
    body: Document = {"claim_id": secrets.token_hex(16)}
    told = context.server().call("POST", _path(context, "start"), body=body).document
    context.show(told, lambda lease: cell(lease.get("attempt_token")))
    return 0


def heartbeat(context: Context) -> int:
    body = without_nothing({"attempt_token": context.text("attempt_token")})
    told = context.server().call("POST", _path(context, "heartbeat"), body=body).document
    stops = told.get("cancel") is True
    left = instant(told.get("lease_expires_at"))
    until = "" if left is None else f"the lease ends {when(left - time.time())}"
    context.show(told, lambda _: f"{'stop: its cancellation was asked for' if stops else 'go on'}; {until}")
    return EXIT_FAILED if stops else 0


def complete(context: Context) -> int:
    body = without_nothing(
        {
            "status": context.text("status") or "succeeded",
            "result": document(context, "result"),
            "error": text_or_document(context, "error"),
            "retryable": False if context.flag("no_retry") else None,
            "attempt_token": context.text("attempt_token"),
        }
    )
    told = context.server().call("POST", _path(context, "complete"), body=body).document
    context.show(told, _completed)
    return 0


def release(context: Context) -> int:
    target = context.given("id")
    body: Document = {"items": [{"id": target, "attempt_token": context.given("attempt_token")}]}
    told = context.server().call("POST", context.in_zone("invocations", "release"), body=body).document
    for item in items_of(told):
        refused = item.get("error")
        if isinstance(refused, dict):
            status = refused.get("status")
            raise from_document(status if isinstance(status, int) else 400, refused)
    context.show(told, lambda _: f"gave {target} back: the attempt does not count")
    return 0


def _path(context: Context, *rest: str) -> str:
    return context.in_zone("invocations", context.given("id"), *rest)


def _completed(told: Document) -> str:
    name, status = cell(told.get("id")), told.get("status")
    if status != "pending":
        return f"{name} is {cell(status)}"
    tried = f"{cell(told.get('attempts'))} of {cell(told.get('max_attempts'))} attempts"
    at = instant(told.get("available_at"))
    return f"{name} is tried again {when((at or 0.0) - time.time())}: {tried} have begun"


def _leases(context: Context, told: Document) -> str:
    now = time.time()
    rows = [
        [
            lease.get("id"),
            lease.get("method"),
            f"{cell(lease.get('attempt'))}/{cell(lease.get('max_attempts'))}",
            lease.get("attempt_token"),
            when((instant(lease.get("lease_expires_at")) or now) - now),
            as_json(lease.get("params")),
        ]
        for lease in items_of(told)
    ]
    return table(("ID", "METHOD", "ATTEMPT", "TOKEN", "LEASE ENDS", "PARAMS"), rows, context.paint)
