"""Commands for agents: `qd agent claim`, and `qd task progress`, `complete`, `fail`, `say` and `release`."""

from __future__ import annotations

import os
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID, JSON_OBJECT, NUMBER, TEXT, Argument, Command, Option, uppercase_choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import JSON_INPUT_HELP, json_option, json_or_text_option, without_none
from quarterdeck.cli.list_output import relative_time
from quarterdeck.cli.output import cell, parse_timestamp, table, to_json_line
from quarterdeck.cli.task_logs import LEVELS
from quarterdeck.client.api import Document, page_items


def build_commands() -> tuple[Command, ...]:
    id_argument = (Argument("id", "ID", ID),)
    return (
        Command(("task", "progress"), "Report the progress of a task.", progress, id_argument, _PROGRESS_OPTIONS),
        Command(("task", "complete"), "Complete a task.", complete, id_argument, _COMPLETE_OPTIONS, _COMPLETE_HELP),
        Command(
            ("task", "fail"), "Report that an attempt at a task failed.", fail, id_argument, _FAIL_OPTIONS, _FAIL_HELP
        ),
        Command(
            ("task", "say"), "Add a line to the log of a task.", say, (*id_argument, _MESSAGE_ARGUMENT), _SAY_OPTIONS
        ),
        Command(
            ("task", "release"), "Give a task back. The attempt does not count.", release, id_argument, (_TOKEN_OPTION,)
        ),
    )


def build_claim_command() -> Command:
    id_argument = (Argument("id", "ID", ID),)
    return Command(("agent", "claim"), "Claim tasks for an agent.", claim, id_argument, _CLAIM_OPTIONS, _CLAIM_HELP)


_TOKEN_OPTION = Option("--attempt-token", "Token of the attempt [default: the attempt of the bearer token].", TEXT)
_PROGRESS_OPTIONS = (
    Option("--percent", "Progress, 0 to 100. It cannot decrease within an attempt.", NUMBER),
    Option("--step", "Current step.", TEXT),
    Option("--checkpoint", f"State from which the next attempt continues: {JSON_INPUT_HELP}.", TEXT),
    _TOKEN_OPTION,
)
_COMPLETE_OPTIONS = (
    Option("--result", f"Result: text, {JSON_INPUT_HELP}.", TEXT),
    Option("--summary", "Summary of the result in one sentence.", TEXT),
    _TOKEN_OPTION,
)
_COMPLETE_HELP = "The roles ADMIN and OWNER can complete a paused task without an attempt token."
_FAIL_OPTIONS = (
    Option("--error", "Error message.", TEXT, required=True),
    Option("--no-retry", "Do not retry after this failure."),
    _TOKEN_OPTION,
)
_FAIL_HELP = "The task is retried after the backoff, unless --no-retry is given or it was the last attempt."
_MESSAGE_ARGUMENT = Argument("message", "MESSAGE", TEXT)
_SAY_OPTIONS = (
    Option("--level", "Log level [default: INFO].", uppercase_choice(*LEVELS)),
    Option("--event", "Event name of the line [default: log].", TEXT),
    Option("--details", "JSON object with details.", JSON_OBJECT),
    _TOKEN_OPTION,
)
_CLAIM_OPTIONS = (
    *input.claim_options(500),
    Option("--type", "Only tasks of this type; repeatable.", TEXT, many=True),
    Option("--capability", "Capability of the agent to use; repeatable [default: all].", TEXT, many=True),
    Option("--claim-id", "Id of this claim. The same id returns the same tasks while they are running.", TEXT),
)
_CLAIM_HELP = """Each claimed task has an attempt token. Pass it to `qd task progress`, `complete` and `fail`. The agent
keeps its tasks as long as it sends heartbeats: `qd agent heartbeat`."""


def claim(context: Context) -> int:
    body: Document = {
        "waitMs": input.wait_ms(context),
        "taskTypes": context.values("type") or None,
        "capabilities": context.values("capability") or None,
        # With a claim id, a request that is repeated, for example by a proxy, gets the same tasks.
        "claimId": context.text("claim_id") or os.urandom(16).hex(),
    }
    path = context.api_path("agents", context.required_text("id"), "claim")
    return input.claim(context, path, body, lambda document: _lease_table(context, document), "tasks")


def progress(context: Context) -> int:
    body = without_none(
        {
            "progressPercent": context.number("percent"),
            "currentStep": context.text("step"),
            "checkpointData": json_option(context, "checkpoint"),
        }
    )
    if not body:
        raise UsageError("usage", "Give --percent, --step or --checkpoint.")
    document = _send_report(context, "PATCH", "progress", body)
    context.show(document, lambda task: f"{cell(task.get('id'))} is at {cell(task.get('progressPercent'))}%.")
    return 0


def complete(context: Context) -> int:
    body = without_none({"outputResult": json_or_text_option(context, "result"), "summary": context.text("summary")})
    context.show(_send_report(context, "POST", "complete", body), format_state)
    return 0


def fail(context: Context) -> int:
    body: Document = {"error": context.required_text("error")}
    if context.flag("no_retry"):
        body["retryable"] = False
    context.show(_send_report(context, "POST", "fail", body), format_state)
    return 0


def say(context: Context) -> int:
    body = without_none(
        {
            "message": context.required_text("message"),
            "level": context.text("level"),
            "event": context.text("event"),
            "details": context.parsed.values["details"],
        }
    )
    document = _send_report(context, "POST", "logs", body)
    context.show(document, lambda _: f"Added a line to the log of {context.required_text('id')}.")
    return 0


def release(context: Context) -> int:
    document = _send_report(context, "POST", "release", {})
    context.show(document, lambda task: f"Released {cell(task.get('id'))}. The attempt does not count.")
    return 0


def _send_report(context: Context, method: str, action: str, body: Document) -> Document:
    token = context.text("attempt_token")
    report = body if token is None else {**body, "attemptToken": token}
    path = context.api_path("agent-tasks", context.required_text("id"), action)
    return context.server().call(method, path, body=report).document


def format_state(task: Document) -> str:
    """Format the status of a task, and when it will be retried or can start."""
    task_id, status = cell(task.get("id")), cell(task.get("status"))
    available_at = parse_timestamp(task.get("availableAt"))
    if status in ("FAILED", "ABORTED") and task.get("isFinal") is not True and available_at is not None:
        retry_text = f"Retry {cell(task.get('retryCount'))} of {cell(task.get('maxRetries'))}"
        return f"{task_id} is {status}. {retry_text} is due {relative_time(available_at - time.time())}."
    if status == "PENDING" and available_at is not None and available_at > time.time() + 1:
        return f"{task_id} is {status}. It can start {relative_time(available_at - time.time())}."
    return f"{task_id} is {status}."


def _lease_table(context: Context, document: Document) -> str:
    now = time.time()
    rows = [
        [
            lease.get("id"),
            lease.get("taskType"),
            lease.get("title"),
            lease.get("attempt"),
            lease.get("attemptToken"),
            relative_time((parse_timestamp(lease.get("leaseExpiresAt")) or now) - now),
            to_json_line(lease.get("inputContext")),
        ]
        for lease in page_items(document, "tasks")
    ]
    headers = ("ID", "TYPE", "TITLE", "ATTEMPT", "TOKEN", "LEASE EXPIRES", "INPUT")
    return table(headers, rows, context.styler)
