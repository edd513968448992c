"""`qd invocation`: send, list, show, wait, cancel, and for workers claim, start, heartbeat, complete, release."""

from __future__ import annotations

import os
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import (
    DURATION_MS,
    ID,
    ID_ARGUMENT,
    JSON_OBJECT,
    NUMBER,
    REASON_OPTION,
    TEXT,
    Argument,
    Group,
    Option,
    choice,
    key_option,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import JSON_INPUT, JSON_INPUT_HELP, JSON_OR_TEXT_INPUT
from quarterdeck.cli.list_output import (
    PAGING,
    Column,
    age,
    field_text,
    print_details,
    print_list,
    relative_time,
    time_from_now,
)
from quarterdeck.cli.output import cell, parse_timestamp, to_json_line
from quarterdeck.client.api import Document, page_items
from quarterdeck.client.problems import problem_from_document
from quarterdeck.core.errors import EXIT_FAILED

GROUP = Group("invocation", "Manage invocations: durable calls to services.")


_STATUS = choice("pending", "running", "succeeded", "failed", "timed_out", "canceled", "dead")


@GROUP.command(
    "send",
    "Invoke a service and print the invocation's id.",
    Option("--service", "Service to invoke.", ID, required=True, field="service_id"),
    Option("--method", "Method to invoke.", TEXT, required=True, field="method"),
    Option("--params", f"Parameters for the worker: {JSON_INPUT_HELP}.", JSON_INPUT, field="params"),
    key_option("invocation"),
    Option("--source", "Session that sends the invocation.", ID, field="source_session_id"),
    Option("--target", "Session that the invocation is for.", ID, field="target_session_id"),
    Option(
        "--deadline", "Time limit for each attempt, such as 90s or 15m [default: 30s].", DURATION_MS, field="timeout_ms"
    ),
    Option("--attempts", "Maximum number of attempts, 1 to 10 [default: 3].", NUMBER),
    Option("--backoff", "Delay before the second attempt; doubles each time [default: 1s].", DURATION_MS),
    Option("--metadata", "JSON object to store with the invocation.", JSON_OBJECT, field="metadata"),
    description="Without --key, each run creates a new invocation.",
)
def send(context: Context) -> None:
    limits = {"max_attempts": context.number("attempts"), "backoff_ms": context.number("backoff")}
    retry_policy = {name: value for name, value in limits.items() if value is not None}
    body, key = context.body(retry_policy=retry_policy or None), context.idempotency_key()
    context.send("POST", context.zone_path("invocations"), field_text("id"), body=body, key=key)


@GROUP.command(
    "list",
    "List invocations, newest first.",
    Option("--service", "Only invocations of this service.", ID, field="service_id"),
    Option("--status", "Only invocations with this status.", _STATUS, field="status"),
    Option("--source", "Only invocations sent by this session.", ID, field="source_session_id"),
    Option("--target", "Only invocations for this session.", ID, field="target_session_id"),
    *PAGING,
)
def list_(context: Context) -> None:
    print_list(context, context.zone_path("invocations"), _COLUMNS, f"No invocations found in zone {context.zone}.")


@GROUP.command("show", "Show one invocation.", ID_ARGUMENT)
def show(context: Context) -> None:
    print_details(context, invocation_path(context))


@GROUP.command(
    "wait",
    "Wait until an invocation ends and print its result.",
    ID_ARGUMENT,
    description=(
        "Exits 0 and prints the result as JSON if the invocation succeeded. Exits 1, with the error on "
        "stderr, if its status is failed, timed_out, canceled or dead. Exits 5 after --timeout. Without "
        "--timeout it waits without limit."
    ),
)
def wait(context: Context) -> int:
    from quarterdeck.cli.wait import wait_for_invocation  # imported here: other commands do not need it

    invocation = wait_for_invocation(context, invocation_path(context), context.required_text("id"))
    status = invocation.get("status")
    if context.as_json or status == "succeeded":
        context.show(invocation, lambda document: to_json_line(document.get("result")))
    else:
        context.note(f"The invocation is {cell(status)}: {_failure_reason(invocation)}")
    return 0 if status == "succeeded" else EXIT_FAILED


@GROUP.command("cancel", "Cancel an invocation, or request cancellation if it is running.", ID_ARGUMENT, REASON_OPTION)
def cancel(context: Context) -> None:
    def render(invocation: Document) -> str:
        invocation_id = cell(invocation.get("id"))
        if invocation.get("status") == "canceled":
            return f"Canceled {invocation_id}."
        return (
            f"Requested cancellation of {invocation_id}. "
            "It is running, and ends when its worker confirms or its lease expires."
        )

    context.send("POST", invocation_path(context, "cancel"), render, body=context.body())


def _failure_reason(invocation: Document) -> str:
    return cell(invocation.get("cancel_reason" if invocation.get("status") == "canceled" else "error"))


def _format_invocation_duration(invocation: Document, now: float) -> str | None:
    created_at, completed_at = (parse_timestamp(invocation.get(name)) for name in ("created_at", "completed_at"))
    return None if created_at is None or completed_at is None else f"{(completed_at - created_at) * 1000:.0f} ms"


_COLUMNS = (
    Column("ID", "id"),
    Column("SERVICE", "service_id"),
    Column("METHOD", "method"),
    Column("STATUS", "status"),
    Column("ATTEMPTS", lambda item, _: f"{cell(item.get('attempts'))}/{cell(item.get('max_attempts'))}"),
    Column("AGE", age("created_at")),
    Column("DURATION", _format_invocation_duration),
)


# -- for workers -----------------------------------------------------------------------------------------------------

_TOKEN_OPTION = Option(
    "--attempt-token", "Token of the attempt, as printed by claim or start.", TEXT, field="attempt_token"
)
_REQUIRED_TOKEN_OPTION = _TOKEN_OPTION._replace(required=True)


@GROUP.command(
    "claim",
    "Claim pending invocations of a service.",
    Argument("service", "SERVICE", ID),
    *input.claim_options(100, "wait_ms"),
    Option(
        "--claim-id",
        "Id of this claim. The same id returns the same attempts while they are running.",
        TEXT,
        field="claim_id",
    ),
    description=(
        "Each claimed invocation has a lease and an attempt token. Before the lease expires, complete the "
        "invocation with the token, or extend the lease with heartbeats."
    ),
)
def claim(context: Context) -> None:
    path = context.zone_path("services", context.required_text("service"), "claim")
    input.claim(context, path, context.body(), _LEASE_COLUMNS, "items")


@GROUP.command(
    "start",
    "Start an attempt at an invocation and print the attempt token.",
    ID_ARGUMENT,
    description="Use this command instead of `qd invocation claim` if the worker already has the id of the invocation.",
)
def start(context: Context) -> None:
    # With a claim id, a request that is repeated, for example by a proxy, gets the same attempt.
    body: Document = {"claim_id": os.urandom(16).hex()}
    # Only the token goes to stdout, so that a script can use it: TOKEN=$(qd invocation start ID)
    context.send("POST", invocation_path(context, "start"), field_text("attempt_token"), body=body)


@GROUP.command(
    "heartbeat",
    "Send a heartbeat to extend the lease of an attempt.",
    ID_ARGUMENT,
    _TOKEN_OPTION,
    description="Exits 1 if cancellation of the invocation was requested.",
)
def heartbeat(context: Context) -> int:
    document = context.server().call("POST", invocation_path(context, "heartbeat"), body=context.body()).document
    is_cancel_requested = document.get("cancel") is True
    expires_at = parse_timestamp(document.get("lease_expires_at"))
    lease_text = "" if expires_at is None else f"The lease expires {relative_time(expires_at - time.time())}."
    context.show(
        document,
        lambda _: f"{'Stop: cancellation was requested.' if is_cancel_requested else 'Continue.'} {lease_text}",
    )
    return EXIT_FAILED if is_cancel_requested else 0


@GROUP.command(
    "complete",
    "Report the outcome of an attempt.",
    ID_ARGUMENT,
    _TOKEN_OPTION,
    Option("--status", "Outcome [default: succeeded].", choice("succeeded", "failed", "canceled")),
    Option("--result", f"Result: {JSON_INPUT_HELP}.", JSON_INPUT, field="result"),
    Option("--error", f"Error: text, {JSON_INPUT_HELP}.", JSON_OR_TEXT_INPUT, field="error"),
    Option("--no-retry", "Do not retry after this failure."),
    description="A failed attempt is retried, unless --no-retry is given or it was the last attempt.",
)
def complete(context: Context) -> None:
    retryable = False if context.flag("no_retry") else None
    body = context.body(status=context.text("status") or "succeeded", retryable=retryable)
    context.send("POST", invocation_path(context, "complete"), _format_completion, body=body)


@GROUP.command(
    "release", "Give an attempt back. It does not count toward the maximum.", ID_ARGUMENT, _REQUIRED_TOKEN_OPTION
)
def release(context: Context) -> None:
    invocation_id = context.required_text("id")
    body: Document = {"items": [{"id": invocation_id, "attempt_token": context.required_text("attempt_token")}]}
    document = context.server().call("POST", context.zone_path("invocations", "release"), body=body).document
    for item in page_items(document):
        error = item.get("error")
        if isinstance(error, dict):
            status = error.get("status")
            raise problem_from_document(status if isinstance(status, int) else 400, error)
    context.show(document, f"Released {invocation_id}. The attempt does not count.")


def invocation_path(context: Context, *segments: str) -> str:
    return context.zone_path("invocations", context.required_text("id"), *segments)


def _format_completion(invocation: Document) -> str:
    invocation_id, status = cell(invocation.get("id")), invocation.get("status")
    if status != "pending":
        return f"{invocation_id} is {cell(status)}."
    attempts_text = f"{cell(invocation.get('attempts'))} of {cell(invocation.get('max_attempts'))} attempts"
    available_at = parse_timestamp(invocation.get("available_at"))
    due_text = relative_time((available_at or 0.0) - time.time())
    return f"{invocation_id} will be retried: due {due_text}, {attempts_text} started."


_LEASE_COLUMNS = (
    Column("ID", "id"),
    Column("METHOD", "method"),
    Column("ATTEMPT", lambda lease, _: f"{cell(lease.get('attempt'))}/{cell(lease.get('max_attempts'))}"),
    Column("TOKEN", "attempt_token"),
    Column("LEASE EXPIRES", time_from_now("lease_expires_at")),
    Column("PARAMS", lambda lease, _: to_json_line(lease.get("params"))),
)
