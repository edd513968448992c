"""`qd invocation`: send, list, show, wait, cancel. The commands for workers are in `invocation_work`."""

from __future__ import annotations

from quarterdeck.cli import invocation_work
from quarterdeck.cli.command_table import (
    DURATION_MS,
    ID,
    ID_ARGUMENT,
    JSON_OBJECT,
    NUMBER,
    REASON_OPTION,
    TEXT,
    Group,
    Option,
    choice,
    key_option,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import JSON_INPUT, JSON_INPUT_HELP
from quarterdeck.cli.invocation_work import invocation_path
from quarterdeck.cli.list_output import PAGING, Column, field_text, print_details, print_list
from quarterdeck.cli.output import cell, format_duration, parse_timestamp, to_json_line
from quarterdeck.client.api import Document
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
    Column("AGE", lambda item, now: format_duration(now - (parse_timestamp(item.get("created_at")) or now))),
    Column("DURATION", _format_invocation_duration),
)
GROUP.commands += invocation_work.GROUP.commands
