"""What agents say of tasks, and what is said for them: progress, completion, failure, giving back; and taking work."""

from __future__ import annotations

import os
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID, JSON_OBJECT, NUMBER, TEXT, Argument, Command, Option, uppercase_choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import JSON_INPUT_HELP, json_option, json_or_text_option, without_none
from quarterdeck.cli.list_output import relative_time
from quarterdeck.cli.output import as_json, cell, instant, table
from quarterdeck.cli.task_logs import LEVELS
from quarterdeck.client.api import Document, page_items


def build_commands() -> tuple[Command, ...]:
    id_argument = (Argument("id", "ID", ID),)
    return (
        Command(("task", "progress"), "Report how far a task has come.", progress, id_argument, _PROGRESS_OPTIONS),
        Command(
            ("task", "complete"),
            "Report a task done, or complete a paused one by hand.",
            complete,
            id_argument,
            _COMPLETE_OPTIONS,
            _COMPLETE_HELP,
        ),
        Command(("task", "fail"), "Report that an attempt has failed.", fail, id_argument, _FAIL_OPTIONS, _FAIL_HELP),
        Command(
            ("task", "say"), "Write a line into a task's log.", say, (*id_argument, _MESSAGE_ARGUMENT), _SAY_OPTIONS
        ),
        Command(("task", "release"), "Give a task back, uncounted.", release, id_argument, (_TOKEN_OPTION,)),
    )


def build_claim_command() -> Command:
    id_argument = (Argument("id", "ID", ID),)
    return Command(("agent", "claim"), "Take work for an agent.", claim, id_argument, _CLAIM_OPTIONS, _CLAIM_HELP)


_TOKEN_OPTION = Option("--attempt-token", "Of the attempt [default: the one that the bearer token names].", TEXT)
_PROGRESS_OPTIONS = (
    Option("--percent", "0 to 100; it does not fall within one attempt.", NUMBER),
    Option("--step", "What is being done now.", TEXT),
    Option("--checkpoint", f"Where the next attempt goes on from: {JSON_INPUT_HELP}.", TEXT),
    _TOKEN_OPTION,
)
_COMPLETE_OPTIONS = (
    Option("--result", f"What came of it: text, {JSON_INPUT_HELP}.", TEXT),
    Option("--summary", "The same in a sentence.", TEXT),
    _TOKEN_OPTION,
)
_COMPLETE_HELP = "A paused task is completed by hand, without a token, by whoever is ADMIN or OWNER."
_FAIL_OPTIONS = (
    Option("--error", "What went wrong.", TEXT, required=True),
    Option("--no-retry", "A failure that another attempt would not mend."),
    _TOKEN_OPTION,
)
_FAIL_HELP = "Another attempt follows after the backoff, unless --no-retry is given or it was the last."
_MESSAGE_ARGUMENT = Argument("message", "MESSAGE", TEXT)
_SAY_OPTIONS = (
    Option("--level", "How grave it is [default: INFO].", uppercase_choice(*LEVELS)),
    Option("--event", "What kind of line it is [default: log].", TEXT),
    Option("--details", "A JSON object.", JSON_OBJECT),
    _TOKEN_OPTION,
)
_CLAIM_OPTIONS = (
    *input.claim_options(500),
    Option("--type", "Only tasks of this type; may be repeated.", TEXT, many=True),
    Option("--capability", "Of the agent's capabilities, one to use; may be repeated [default: all].", TEXT, many=True),
    Option("--claim-id", "The same id gives the same tasks again, while they run.", TEXT),
)
_CLAIM_HELP = """Each task comes with a token, which progress, completion and failure are said with. The agent keeps its
tasks for as long as it is heard of: `qd agent heartbeat`."""


def claim(context: Context) -> int:
    body: Document = {
        "waitMs": input.wait_ms(context),
        "taskTypes": context.values("type") or None,
        "capabilities": context.values("capability") or None,
        # Should the answer be lost, the request that is sent again is known by this, and is given the same tasks.
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
        raise UsageError("usage", "How far has it come? Give --percent, --step or --checkpoint.")
    document = _send_report(context, "PATCH", "progress", body)
    context.show(document, lambda task: f"{cell(task.get('id'))} is at {cell(task.get('progressPercent'))}%")
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
    context.show(document, lambda _: f"said of {context.required_text('id')}")
    return 0


def release(context: Context) -> int:
    document = _send_report(context, "POST", "release", {})
    context.show(document, lambda task: f"gave {cell(task.get('id'))} back: the attempt does not count")
    return 0


def _send_report(context: Context, method: str, action: str, body: Document) -> Document:
    token = context.text("attempt_token")
    report = body if token is None else {**body, "attemptToken": token}
    path = context.api_path("agent-tasks", context.required_text("id"), action)
    return context.server().call(method, path, body=report).document


def format_state(task: Document) -> str:
    """Where a task is, and until when."""
    task_id, status = cell(task.get("id")), cell(task.get("status"))
    available_at = instant(task.get("availableAt"))
    if status in ("FAILED", "ABORTED") and task.get("isFinal") is not True and available_at is not None:
        retry_text = f"retry {cell(task.get('retryCount'))} of {cell(task.get('maxRetries'))}"
        return f"{task_id} is {status}: it is tried again {relative_time(available_at - time.time())}, {retry_text}"
    if status == "PENDING" and available_at is not None and available_at > time.time() + 1:
        return f"{task_id} is {status}: it begins {relative_time(available_at - time.time())}"
    return f"{task_id} is {status}"


def _lease_table(context: Context, document: Document) -> str:
    now = time.time()
    rows = [
        [
            lease.get("id"),
            lease.get("taskType"),
            lease.get("title"),
            lease.get("attempt"),
            lease.get("attemptToken"),
            relative_time((instant(lease.get("leaseExpiresAt")) or now) - now),
            as_json(lease.get("inputContext")),
        ]
        for lease in page_items(document, "tasks")
    ]
    headers = ("ID", "TYPE", "TITLE", "ATTEMPT", "TOKEN", "LEASE ENDS", "INPUT")
    return table(headers, rows, context.styler)
