"""What agents say of tasks, and what is said for them: progress, completion, failure, giving back; and taking work."""

from __future__ import annotations

import os
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID, NUMBER, OBJECT, TEXT, Argument, Command, Option, any_case
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import GIVEN, document, text_or_document, without_nothing
from quarterdeck.cli.list_output import when
from quarterdeck.cli.output import as_json, cell, instant, table
from quarterdeck.cli.task_logs import LEVELS
from quarterdeck.client.api import Document, items_of


def commands() -> tuple[Command, ...]:
    one = (Argument("id", "ID", ID),)
    return (
        Command(("task", "progress"), "Report how far a task has come.", progress, one, _PROGRESS),
        Command(
            ("task", "complete"),
            "Report a task done, or complete a paused one by hand.",
            complete,
            one,
            _COMPLETE,
            _COMPLETING,
        ),
        Command(("task", "fail"), "Report that an attempt has failed.", fail, one, _FAIL, _FAILING),
        Command(("task", "say"), "Write a line into a task's log.", say, (*one, _MESSAGE), _SAY),
        Command(("task", "release"), "Give a task back, uncounted.", release, one, (_TOKEN,)),
    )


def claim_command() -> Command:
    one = (Argument("id", "ID", ID),)
    return Command(("agent", "claim"), "Take work for an agent.", claim, one, _CLAIM, _CLAIMING)


_TOKEN = Option("--attempt-token", "Of the attempt [default: the one that the bearer token names].", TEXT)
_PROGRESS = (
    Option("--percent", "0 to 100; it does not fall within one attempt.", NUMBER),
    Option("--step", "What is being done now.", TEXT),
    Option("--checkpoint", f"Where the next attempt goes on from: {GIVEN}.", TEXT),
    _TOKEN,
)
_COMPLETE = (
    Option("--result", f"What came of it: text, {GIVEN}.", TEXT),
    Option("--summary", "The same in a sentence.", TEXT),
    _TOKEN,
)
_COMPLETING = "A paused task is completed by hand, without a token, by whoever is ADMIN or OWNER."
_FAIL = (
    Option("--error", "What went wrong.", TEXT, required=True),
    Option("--no-retry", "A failure that another attempt would not mend."),
    _TOKEN,
)
_FAILING = "Another attempt follows after the backoff, unless --no-retry is given or it was the last."
_MESSAGE = Argument("message", "MESSAGE", TEXT)
_SAY = (
    Option("--level", "How grave it is [default: INFO].", any_case(*LEVELS)),
    Option("--event", "What kind of line it is [default: log].", TEXT),
    Option("--details", "A JSON object.", OBJECT),
    _TOKEN,
)
_CLAIM = (
    *input.how_much(500),
    Option("--type", "Only tasks of this type; may be repeated.", TEXT, many=True),
    Option("--capability", "Of the agent's capabilities, one to use; may be repeated [default: all].", TEXT, many=True),
    Option("--claim-id", "The same id gives the same tasks again, while they run.", TEXT),
)
_CLAIMING = """Each task comes with a token, which progress, completion and failure are said with. The agent keeps its
tasks for as long as it is heard of: `qd agent heartbeat`."""


def claim(context: Context) -> int:
    body: Document = {
        "waitMs": input.wait_ms(context),
        "taskTypes": context.many("type") or None,
        "capabilities": context.many("capability") or None,
        # Should the answer be lost, the request that is sent again is known by this, and is given the same tasks.
        "claimId": context.text("claim_id") or os.urandom(16).hex(),
    }
    path = context.work("agents", context.given("id"), "claim")
    return input.claim(context, path, body, lambda told: _leases(context, told), "tasks")


def progress(context: Context) -> int:
    body = without_nothing(
        {
            "progressPercent": context.number("percent"),
            "currentStep": context.text("step"),
            "checkpointData": document(context, "checkpoint"),
        }
    )
    if not body:
        raise Usage("usage", "How far has it come? Give --percent, --step or --checkpoint.")
    told = _say(context, "PATCH", "progress", body)
    context.show(told, lambda task: f"{cell(task.get('id'))} is at {cell(task.get('progressPercent'))}%")
    return 0


def complete(context: Context) -> int:
    body = without_nothing({"outputResult": text_or_document(context, "result"), "summary": context.text("summary")})
    context.show(_say(context, "POST", "complete", body), stands)
    return 0


def fail(context: Context) -> int:
    body: Document = {"error": context.given("error")}
    if context.flag("no_retry"):
        body["retryable"] = False
    context.show(_say(context, "POST", "fail", body), stands)
    return 0


def say(context: Context) -> int:
    body = without_nothing(
        {
            "message": context.given("message"),
            "level": context.text("level"),
            "event": context.text("event"),
            "details": context.ask.values["details"],
        }
    )
    told = _say(context, "POST", "logs", body)
    context.show(told, lambda _: f"said of {context.given('id')}")
    return 0


def release(context: Context) -> int:
    told = _say(context, "POST", "release", {})
    context.show(told, lambda task: f"gave {cell(task.get('id'))} back: the attempt does not count")
    return 0


def _say(context: Context, method: str, verb: str, body: Document) -> Document:
    token = context.text("attempt_token")
    said = body if token is None else {**body, "attemptToken": token}
    path = context.work("agent-tasks", context.given("id"), verb)
    return context.server().call(method, path, body=said).document


def stands(task: Document) -> str:
    """Where a task is, and until when."""
    name, status = cell(task.get("id")), cell(task.get("status"))
    at = instant(task.get("availableAt"))
    if status in ("FAILED", "ABORTED") and task.get("isFinal") is not True and at is not None:
        tried = f"retry {cell(task.get('retryCount'))} of {cell(task.get('maxRetries'))}"
        return f"{name} is {status}: it is tried again {when(at - time.time())}, {tried}"
    if status == "PENDING" and at is not None and at > time.time() + 1:
        return f"{name} is {status}: it begins {when(at - time.time())}"
    return f"{name} is {status}"


def _leases(context: Context, told: Document) -> str:
    now = time.time()
    rows = [
        [
            lease.get("id"),
            lease.get("taskType"),
            lease.get("title"),
            lease.get("attempt"),
            lease.get("attemptToken"),
            when((instant(lease.get("leaseExpiresAt")) or now) - now),
            as_json(lease.get("inputContext")),
        ]
        for lease in items_of(told, "tasks")
    ]
    heads = ("ID", "TYPE", "TITLE", "ATTEMPT", "TOKEN", "LEASE ENDS", "INPUT")
    return table(heads, rows, context.paint)
