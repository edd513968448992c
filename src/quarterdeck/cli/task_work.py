"""Commands for agents: `qd agent claim`, and `qd task progress`, `complete`, `fail`, `say` and `release`."""

from __future__ import annotations

import os
import time

from quarterdeck.cli import input
from quarterdeck.cli.command_table import ID_ARGUMENT, JSON_OBJECT, LEVEL, NUMBER, TEXT, Argument, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.input import JSON_INPUT, JSON_INPUT_HELP, JSON_OR_TEXT_INPUT
from quarterdeck.cli.list_output import Column, relative_time, time_from_now
from quarterdeck.cli.output import cell, parse_timestamp, to_json_line
from quarterdeck.client.api import Document

GROUP = Group("task")
AGENT_GROUP = Group("agent")
CHECKPOINT_OPTION = Option(
    "--checkpoint",
    f"State from which the next attempt continues: {JSON_INPUT_HELP}.",
    JSON_INPUT,
    field="checkpointData",
)
_TOKEN_OPTION = Option(
    "--attempt-token", "Token of the attempt [default: the attempt of the bearer token].", TEXT, field="attemptToken"
)


@AGENT_GROUP.command(
    "claim",
    "Claim tasks for an agent.",
    ID_ARGUMENT,
    *input.claim_options(500, "waitMs"),
    Option("--type", "Only tasks of this type; repeatable.", TEXT, many=True, field="taskTypes"),
    Option(
        "--capability",
        "Capability of the agent to use; repeatable [default: all].",
        TEXT,
        many=True,
        field="capabilities",
    ),
    Option("--claim-id", "Id of this claim. The same id returns the same tasks while they are running.", TEXT),
    description=(
        "Each claimed task has an attempt token. Pass it to `qd task progress`, `complete` and `fail`. The "
        "agent keeps its tasks as long as it sends heartbeats: `qd agent heartbeat`."
    ),
)
def claim(context: Context) -> None:
    # With a claim id, a request that is repeated, for example by a proxy, gets the same tasks.
    body = context.body(claimId=context.text("claim_id") or os.urandom(16).hex())
    path = context.api_path("agents", context.required_text("id"), "claim")
    input.claim(context, path, body, _LEASE_COLUMNS, "tasks")


@GROUP.command(
    "progress",
    "Report the progress of a task.",
    ID_ARGUMENT,
    Option("--percent", "Progress, 0 to 100. It cannot decrease within an attempt.", NUMBER, field="progressPercent"),
    Option("--step", "Current step.", TEXT, field="currentStep"),
    CHECKPOINT_OPTION,
    _TOKEN_OPTION,
)
def progress(context: Context) -> None:
    body = context.body()
    if not body.keys() - {"attemptToken"}:
        raise usage_error("Give --percent, --step or --checkpoint.")
    context.send(
        "PATCH",
        _path(context, "progress"),
        lambda task: f"{cell(task.get('id'))} is at {cell(task.get('progressPercent'))}%.",
        body=body,
    )


@GROUP.command(
    "complete",
    "Complete a task.",
    ID_ARGUMENT,
    Option("--result", f"Result: text, {JSON_INPUT_HELP}.", JSON_OR_TEXT_INPUT, field="outputResult"),
    Option("--summary", "Summary of the result in one sentence.", TEXT, field="summary"),
    _TOKEN_OPTION,
    description="The roles ADMIN and OWNER can complete a paused task without an attempt token.",
)
def complete(context: Context) -> None:
    context.send("POST", _path(context, "complete"), format_state, body=context.body())


@GROUP.command(
    "fail",
    "Report that an attempt at a task failed.",
    ID_ARGUMENT,
    Option("--error", "Error message.", TEXT, required=True, field="error"),
    Option("--no-retry", "Do not retry after this failure."),
    _TOKEN_OPTION,
    description="The task is retried after the backoff, unless --no-retry is given or it was the last attempt.",
)
def fail(context: Context) -> None:
    body = context.body(retryable=False if context.flag("no_retry") else None)
    context.send("POST", _path(context, "fail"), format_state, body=body)


@GROUP.command(
    "say",
    "Add a line to the log of a task.",
    ID_ARGUMENT,
    Argument("message", "MESSAGE", TEXT, field="message"),
    Option("--level", "Log level [default: INFO].", LEVEL, field="level"),
    Option("--event", "Event name of the line [default: log].", TEXT, field="event"),
    Option("--details", "JSON object with details.", JSON_OBJECT, field="details"),
    _TOKEN_OPTION,
)
def say(context: Context) -> None:
    context.send(
        "POST",
        _path(context, "logs"),
        f"Added a line to the log of {context.required_text('id')}.",
        body=context.body(),
    )


@GROUP.command("release", "Give a task back. The attempt does not count.", ID_ARGUMENT, _TOKEN_OPTION)
def release(context: Context) -> None:
    context.send(
        "POST",
        _path(context, "release"),
        lambda task: f"Released {cell(task.get('id'))}. The attempt does not count.",
        body=context.body(),
    )


def _path(context: Context, action: str) -> str:
    return context.api_path("agent-tasks", context.required_text("id"), action)


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


_LEASE_COLUMNS = (
    Column("ID", "id"),
    Column("TYPE", "taskType"),
    Column("TITLE", "title"),
    Column("ATTEMPT", "attempt"),
    Column("TOKEN", "attemptToken"),
    Column("LEASE EXPIRES", time_from_now("leaseExpiresAt")),
    Column("INPUT", lambda lease, _: to_json_line(lease.get("inputContext"))),
)
