"""`qd task`: list, show, wait, tree, explain, set, cancel, retry, pause, resume, archive.

`qd task add` is in `task_add`, `logs` in `task_logs`, and the commands for agents are in `task_work`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from quarterdeck.cli import task_add, task_logs, task_work
from quarterdeck.cli.command_table import (
    ID,
    ID_ARGUMENT,
    IDS_ARGUMENT,
    JSON_OBJECT,
    NUMBER,
    REASON_OPTION,
    TEXT,
    Group,
    Option,
    uppercase_choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import FUTURE_TIME, PAST_TIME
from quarterdeck.cli.list_output import PAGING, Column, age, detail_pairs, format_table, print_list
from quarterdeck.cli.output import cell, fields, format_duration, parse_timestamp, to_json_line
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED

GROUP = Group("task", "Manage tasks: durable units of work for agents.")
GROUP.commands += task_add.GROUP.commands


_STATUSES = ("PENDING", "ASSIGNED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "ABORTED", "ARCHIVED")


@GROUP.command(
    "list",
    "List tasks, newest first.",
    Option("--status", "Only tasks with this status.", uppercase_choice(*_STATUSES), field="status"),
    Option("--type", "Only tasks of this type.", TEXT, field="taskType"),
    Option("--agent", "Only tasks of this agent.", ID, field="agentId"),
    Option(
        "--tag",
        "Only tasks with this tag; if repeated, only tasks with all of the tags.",
        TEXT,
        many=True,
        field="tags",
    ),
    Option("--priority", "Only tasks with this priority or a higher one.", NUMBER, field="priority%3E"),
    Option("--since", "Only tasks created since this time; 10m means 10 minutes ago.", PAST_TIME, field="createdAfter"),
    *PAGING,
)
def list_(context: Context) -> None:
    # The server names the parameter of --priority `priority>` (escaped here), so that the URL reads `priority>=8`.
    print_list(context, context.api_path("agent-tasks"), _COLUMNS, f"No tasks found in zone {context.zone}.")


@GROUP.command("show", "Show one task.", ID_ARGUMENT)
def show(context: Context) -> None:
    path = _path(context, context.required_text("id"))
    context.send("GET", path, lambda task: fields(_detail_pairs(task), context.styler))


@GROUP.command(
    "wait",
    "Wait until tasks end and print the result.",
    IDS_ARGUMENT,
    description=(
        "Prints the result of one task as JSON, and the results of several as a table. Exits 0 if all tasks "
        "were completed, 1 if a task was canceled or failed with no retry left, 5 after --timeout. Waits for "
        "retries of failed tasks. Shows progress on a terminal."
    ),
)
def wait(context: Context) -> int:
    return wait_and_print_results(context, [str(task_id) for task_id in context.values("ids")])


def wait_and_print_results(context: Context, ids: Sequence[str]) -> int:
    from quarterdeck.cli.wait import wait_for_tasks  # imported here: other commands do not need it

    tasks = wait_for_tasks(context, ids)
    completed = [task for task in tasks if task.get("completedAt") is not None]
    if len(tasks) > 1:
        context.show({"items": [*tasks]}, lambda _: format_table(context, _RESULT_COLUMNS, tasks))
    elif context.as_json or completed:
        context.show(tasks[0], lambda document: to_json_line(document.get("outputResult")))
    else:
        context.note(f"The task is {cell(tasks[0].get('status'))}: {_failure_reason(tasks[0])}")
    return 0 if len(completed) == len(tasks) else EXIT_FAILED


@GROUP.command(
    "tree",
    "Draw a task with its dependencies and dependents.",
    ID_ARGUMENT,
    Option("--depth", "Maximum depth in both directions, 1 to 100 [default: 25].", NUMBER, field="depth"),
)
def tree(context: Context) -> None:
    from quarterdeck.cli.session_tree import glyphs_for  # imported here: other commands do not need them
    from quarterdeck.cli.task_tree import draw

    task_id = context.required_text("id")
    path, glyphs = context.with_query(_path(context, task_id, "tree")), glyphs_for(sys.stdout.encoding)
    document = context.send("GET", path, lambda tree: draw(tree, task_id, context.styler, glyphs))
    if document.get("truncated") is True:
        context.hint("The tree is incomplete: tasks beyond the depth or size limit are not shown.")


GROUP.commands += task_logs.GROUP.commands


@GROUP.command("explain", "Explain the state of a task.", ID_ARGUMENT, description="The same as `qd explain task`.")
def explain(context: Context) -> None:
    from quarterdeck.cli.explain import task

    task(context)


@GROUP.command(
    "set",
    "Change the properties of a task that has not ended.",
    ID_ARGUMENT,
    Option("--priority", "Priority, 1 (low) to 10 (high).", NUMBER, field="priority"),
    Option("--tag", "Tag; repeatable. Replaces the current tags.", TEXT, many=True, field="tags"),
    Option(
        "--metadata", "JSON object to store with the task. Replaces the current object.", JSON_OBJECT, field="metadata"
    ),
    Option(
        "--depends-on",
        "Task to depend on; repeatable. Replaces the current dependencies.",
        ID,
        many=True,
        field="dependsOn",
    ),
    Option(
        "--due",
        "When the task should be completed: a time, or +2h for 2 hours from now.",
        FUTURE_TIME,
        field="estimatedCompletionAt",
    ),
)
def set_(context: Context) -> None:
    path = _path(context, context.required_text("id"))
    context.send("PATCH", path, lambda task: f"Changed task {cell(task.get('id'))}.", body=context.changes())


@GROUP.command(
    "cancel",
    "Cancel tasks. They are not retried.",
    IDS_ARGUMENT,
    REASON_OPTION,
    description="The agent of a running task is notified at its next heartbeat. Only `qd task retry` restarts the "
    "task.",
)
def cancel(context: Context) -> None:
    _apply_to_each(context, "POST", "cancel", context.body())


@GROUP.command("retry", "Retry failed or canceled tasks.", IDS_ARGUMENT)
def retry(context: Context) -> None:
    _apply_to_each(context, "POST", "retry", {})


@GROUP.command("pause", "Pause tasks and take them away from their agents.", IDS_ARGUMENT)
def pause(context: Context) -> None:
    _apply_to_each(context, "PATCH", None, {"status": "PAUSED"})


@GROUP.command("resume", "Resume paused tasks.", IDS_ARGUMENT)
def resume(context: Context) -> None:
    _apply_to_each(context, "PATCH", None, {"status": "PENDING"})


@GROUP.command("archive", "Archive tasks that have ended.", IDS_ARGUMENT)
def archive(context: Context) -> None:
    _apply_to_each(context, "POST", "archive", {})


def _apply_to_each(context: Context, method: str, action: str | None, body: Document) -> None:
    """Send one request per task, in order. The first refusal ends the command; later tasks are not changed."""
    server = context.server()
    updated: list[Document] = []
    for task_id in dict.fromkeys(map(str, context.values("ids"))):
        path = _path(context, task_id, *([] if action is None else [action]))
        updated.append(server.call(method, path, body=body).document)
        if not context.as_json:
            context.write(task_work.format_state(updated[-1]))
    if context.as_json:
        context.show(updated[0] if len(updated) == 1 else {"items": [*updated]}, lambda _: "")


def _path(context: Context, *segments: str) -> str:
    return context.api_path("agent-tasks", *segments)


def _failure_reason(task: Document) -> str:
    reasons = [cell(task[name]) for name in ("reason", "lastError") if task.get(name)]
    return ": ".join(reasons) or "no reason was given"


def _detail_pairs(task: Document) -> list[tuple[str, object]]:
    """Return the fields that are not empty: most tasks use few of them."""
    non_empty = {name: value for name, value in task.items() if value not in ([], {}, "")}
    costs = non_empty.pop("costs", None)
    pairs = detail_pairs(non_empty, time.time())
    if isinstance(costs, dict) and any(costs.values()):
        pairs.append(("costs", ", ".join(f"{cell(value)} {name}" for name, value in costs.items())))
    return pairs


_COLUMNS = (
    Column("ID", "id"),
    Column("TYPE", "taskType"),
    Column("STATUS", "status"),
    Column("PRIORITY", "priority"),
    Column(
        "PROGRESS",
        lambda task, _: f"{100 if task.get('status') == 'COMPLETED' else cell(task.get('progressPercent'))}%",
    ),
    Column("RETRIES", lambda task, _: f"{cell(task.get('retryCount'))}/{cell(task.get('maxRetries'))}"),
    Column("AGENT", "agentId"),
    Column("AGE", age("createdAt")),
    Column("TITLE", "title"),
)
_RESULT_COLUMNS = (
    Column("ID", "id"),
    Column("STATUS", "status"),
    Column("DURATION", lambda task, _: _format_task_duration(task)),
    Column("TITLE", "title"),
    Column("RESULT", lambda task, _: _result_or_reason(task)),
)


def _format_task_duration(task: Document) -> str | None:
    created_at = parse_timestamp(task.get("createdAt"))
    ended_at = parse_timestamp(task.get("completedAt")) or parse_timestamp(task.get("failedAt"))
    return None if created_at is None or ended_at is None else format_duration(ended_at - created_at)


def _result_or_reason(task: Document) -> object:
    if task.get("completedAt") is None:
        return _failure_reason(task)
    return task.get("summary") or to_json_line(task.get("outputResult"))


GROUP.commands += task_work.GROUP.commands
