"""`qd invocation` for workers: claim, start, heartbeat, complete, release."""

from __future__ import annotations

import secrets
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID, TEXT, Argument, Command, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import JSON_INPUT_HELP, json_option, json_or_text_option, without_none
from quarterdeck.cli.list_output import relative_time
from quarterdeck.cli.output import cell, parse_timestamp, table, to_json_line
from quarterdeck.client.api import Document, page_items
from quarterdeck.client.problems import problem_from_document
from quarterdeck.core.errors import EXIT_FAILED


def build_commands() -> tuple[Command, ...]:
    id_argument = (Argument("id", "ID", ID),)
    service_argument = (Argument("service", "SERVICE", ID),)
    return (
        Command(
            ("invocation", "claim"),
            "Claim pending invocations of a service.",
            claim,
            service_argument,
            _CLAIM_OPTIONS,
            _CLAIM_HELP,
        ),
        Command(
            ("invocation", "start"),
            "Start an attempt at an invocation and print the attempt token.",
            start,
            id_argument,
            (),
            _START_HELP,
        ),
        Command(
            ("invocation", "heartbeat"),
            "Send a heartbeat to extend the lease of an attempt.",
            heartbeat,
            id_argument,
            (_TOKEN_OPTION,),
            _HEARTBEAT_HELP,
        ),
        Command(
            ("invocation", "complete"),
            "Report the outcome of an attempt.",
            complete,
            id_argument,
            _COMPLETE_OPTIONS,
            _COMPLETE_HELP,
        ),
        Command(
            ("invocation", "release"),
            "Give an attempt back. It does not count toward the maximum.",
            release,
            id_argument,
            (_REQUIRED_TOKEN_OPTION,),
        ),
    )


_CLAIM_OPTIONS = (
    *input.claim_options(100),
    Option("--claim-id", "Id of this claim. The same id returns the same attempts while they are running.", TEXT),
)
_CLAIM_HELP = """Each claimed invocation has a lease and an attempt token. Before the lease expires, complete the
invocation with the token, or extend the lease with heartbeats."""
_START_HELP = "Use this command instead of `qd invocation claim` if the worker already has the id of the invocation."
_TOKEN_OPTION = Option("--attempt-token", "Token of the attempt, as printed by claim or start.", TEXT)
_REQUIRED_TOKEN_OPTION = _TOKEN_OPTION._replace(required=True)
_HEARTBEAT_HELP = "Exits 1 if cancellation of the invocation was requested."
_COMPLETE_OPTIONS = (
    _TOKEN_OPTION,
    Option("--status", "Outcome [default: succeeded].", choice("succeeded", "failed", "canceled")),
    Option("--result", f"Result: {JSON_INPUT_HELP}.", TEXT),
    Option("--error", f"Error: text, {JSON_INPUT_HELP}.", TEXT),
    Option("--no-retry", "Do not retry after this failure."),
)
_COMPLETE_HELP = "A failed attempt is retried, unless --no-retry is given or it was the last attempt."


def claim(context: Context) -> int:
    body: Document = {"wait_ms": input.wait_ms(context), "claim_id": context.text("claim_id")}
    path = context.zone_path("services", context.required_text("service"), "claim")
    return input.claim(context, path, body, lambda document: _lease_table(context, document), "items")


def start(context: Context) -> int:
    # With a claim id, a request that is repeated, for example by a proxy, gets the same attempt.
    body: Document = {"claim_id": secrets.token_hex(16)}
    document = context.server().call("POST", _path(context, "start"), body=body).document
    # Only the token goes to stdout, so that a script can use it: TOKEN=$(qd invocation start ID)
    context.show(document, lambda lease: cell(lease.get("attempt_token")))
    return 0


def heartbeat(context: Context) -> int:
    body = without_none({"attempt_token": context.text("attempt_token")})
    document = context.server().call("POST", _path(context, "heartbeat"), body=body).document
    is_cancel_requested = document.get("cancel") is True
    expires_at = parse_timestamp(document.get("lease_expires_at"))
    lease_text = "" if expires_at is None else f"The lease expires {relative_time(expires_at - time.time())}."
    context.show(
        document,
        lambda _: f"{'Stop: cancellation was requested.' if is_cancel_requested else 'Continue.'} {lease_text}",
    )
    return EXIT_FAILED if is_cancel_requested else 0


def complete(context: Context) -> int:
    body = without_none(
        {
            "status": context.text("status") or "succeeded",
            "result": json_option(context, "result"),
            "error": json_or_text_option(context, "error"),
            "retryable": False if context.flag("no_retry") else None,
            "attempt_token": context.text("attempt_token"),
        }
    )
    document = context.server().call("POST", _path(context, "complete"), body=body).document
    context.show(document, _format_completion)
    return 0


def release(context: Context) -> int:
    invocation_id = context.required_text("id")
    body: Document = {"items": [{"id": invocation_id, "attempt_token": context.required_text("attempt_token")}]}
    document = context.server().call("POST", context.zone_path("invocations", "release"), body=body).document
    for item in page_items(document):
        error = item.get("error")
        if isinstance(error, dict):
            status = error.get("status")
            raise problem_from_document(status if isinstance(status, int) else 400, error)
    context.show(document, lambda _: f"Released {invocation_id}. The attempt does not count.")
    return 0


def _path(context: Context, *segments: str) -> str:
    return context.zone_path("invocations", context.required_text("id"), *segments)


def _format_completion(invocation: Document) -> str:
    invocation_id, status = cell(invocation.get("id")), invocation.get("status")
    if status != "pending":
        return f"{invocation_id} is {cell(status)}."
    attempts_text = f"{cell(invocation.get('attempts'))} of {cell(invocation.get('max_attempts'))} attempts"
    available_at = parse_timestamp(invocation.get("available_at"))
    due_text = relative_time((available_at or 0.0) - time.time())
    return f"{invocation_id} will be retried: due {due_text}, {attempts_text} started."


def _lease_table(context: Context, document: Document) -> str:
    now = time.time()
    rows = [
        [
            lease.get("id"),
            lease.get("method"),
            f"{cell(lease.get('attempt'))}/{cell(lease.get('max_attempts'))}",
            lease.get("attempt_token"),
            relative_time((parse_timestamp(lease.get("lease_expires_at")) or now) - now),
            to_json_line(lease.get("params")),
        ]
        for lease in page_items(document)
    ]
    return table(("ID", "METHOD", "ATTEMPT", "TOKEN", "LEASE EXPIRES", "PARAMS"), rows, context.styler)
