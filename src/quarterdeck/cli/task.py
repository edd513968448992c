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
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    uppercase_choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import without_none
from quarterdeck.cli.list_output import PAGING, detail_pairs, print_list
from quarterdeck.cli.output import cell, fields, format_duration, parse_timestamp, table, to_json_line
from quarterdeck.cli.time_args import FUTURE_TIME, PAST_TIME, parse_future_time, parse_past_time
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    id_argument, ids_argument = (Argument("id", "ID", ID),), (Argument("ids", "ID", ID, many=True),)
    return CommandTable(
        (
            task_add.build_command(),
            Command(("task", "list"), "List tasks, newest first.", list_, options=_LIST_OPTIONS),
            Command(("task", "show"), "Show one task.", show, id_argument),
            Command(("task", "wait"), "Wait until tasks end and print the result.", wait, ids_argument, (), _WAIT_HELP),
            Command(
                ("task", "tree"), "Draw a task with its dependencies and dependents.", tree, id_argument, _TREE_OPTIONS
            ),
            task_logs.build_command(),
            Command(("task", "explain"), "Explain the state of a task.", explain, id_argument, (), _EXPLAIN_HELP),
            Command(
                ("task", "set"), "Change the properties of a task that has not ended.", set_, id_argument, _SET_OPTIONS
            ),
            Command(
                ("task", "cancel"),
                "Cancel tasks. They are not retried.",
                cancel,
                ids_argument,
                _CANCEL_OPTIONS,
                _CANCEL_HELP,
            ),
            Command(("task", "retry"), "Retry failed or canceled tasks.", retry, ids_argument),
            Command(("task", "pause"), "Pause tasks and take them away from their agents.", pause, ids_argument),
            Command(("task", "resume"), "Resume paused tasks.", resume, ids_argument),
            Command(("task", "archive"), "Archive tasks that have ended.", archive, ids_argument),
            *task_work.build_commands(),
        ),
        {"task": "Manage tasks: durable units of work for agents."},
    )


_STATUSES = ("PENDING", "ASSIGNED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "ABORTED", "ARCHIVED")
_LIST_OPTIONS = (
    Option("--status", "Only tasks with this status.", uppercase_choice(*_STATUSES)),
    Option("--type", "Only tasks of this type.", TEXT),
    Option("--agent", "Only tasks of this agent.", ID),
    Option("--tag", "Only tasks with this tag; if repeated, only tasks with all of the tags.", TEXT, many=True),
    Option("--priority", "Only tasks with this priority or a higher one.", NUMBER),
    Option("--since", "Only tasks created since this time; 10m means 10 minutes ago.", PAST_TIME),
    *PAGING,
)
_WAIT_HELP = """Prints the result of one task as JSON, and the results of several as a table. Exits 0 if all tasks were
completed, 1 if a task was canceled or failed with no retry left, 5 after --timeout. Waits for retries of failed tasks.
Shows progress on a terminal."""
_TREE_OPTIONS = (Option("--depth", "Maximum depth in both directions, 1 to 100 [default: 25].", NUMBER),)
_EXPLAIN_HELP = "The same as `qd explain task`."
_SET_OPTIONS = (
    Option("--priority", "Priority, 1 (low) to 10 (high).", NUMBER),
    Option("--tag", "Tag; repeatable. Replaces the current tags.", TEXT, many=True),
    Option("--metadata", "JSON object to store with the task. Replaces the current object.", JSON_OBJECT),
    Option("--depends-on", "Task to depend on; repeatable. Replaces the current dependencies.", ID, many=True),
    Option("--due", "When the task should be completed: a time, or +2h for 2 hours from now.", FUTURE_TIME),
)
_CANCEL_OPTIONS = (Option("--reason", "Reason to record [default: requested].", TEXT),)
_CANCEL_HELP = "The agent of a running task is notified at its next heartbeat. Only `qd task retry` restarts the task."


def list_(context: Context) -> int:
    since = context.text("since")
    query = {
        "status": context.text("status"),
        "taskType": context.text("type"),
        "agentId": context.text("agent"),
        "tags": ",".join(str(tag) for tag in context.values("tag")) or None,
        # The parameter is named `priority>` (escaped here), so that the URL reads `priority>=8`.
        "priority%3E": context.number("priority"),
        "createdAfter": None if since is None else parse_past_time(since, time.time()),
    }
    return print_list(context, context.api_path("agent-tasks"), query, _table)


def show(context: Context) -> int:
    task = context.server().get(_path(context, context.required_text("id")))
    context.show(task, lambda document: fields(_detail_pairs(document), context.styler))
    return 0


def wait(context: Context) -> int:
    return wait_and_print_results(context, [str(task_id) for task_id in context.values("ids")])


def wait_and_print_results(context: Context, ids: Sequence[str]) -> int:
    from quarterdeck.cli.wait import wait_for_tasks  # imported here: other commands do not need it

    tasks = wait_for_tasks(context, ids)
    completed = [task for task in tasks if task.get("completedAt") is not None]
    if len(tasks) > 1:
        context.show({"items": [*tasks]}, lambda _: _result_table(context, tasks))
    elif context.as_json or completed:
        context.show(tasks[0], lambda document: to_json_line(document.get("outputResult")))
    else:
        context.note(f"The task is {cell(tasks[0].get('status'))}: {_failure_reason(tasks[0])}")
    return 0 if len(completed) == len(tasks) else EXIT_FAILED


def tree(context: Context) -> int:
    from quarterdeck.cli.task_tree import draw, glyphs_for  # imported here: other commands do not need it

    task_id = context.required_text("id")
    document = context.server().get(_path(context, task_id, "tree"), {"depth": context.number("depth")})
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(document, lambda _: draw(document, task_id, context.styler, glyphs))
    if document.get("truncated") is True and not context.as_json:
        context.note("The tree is incomplete: tasks beyond the depth or size limit are not shown.")
    return 0


def explain(context: Context) -> int:
    from quarterdeck.cli.explain import task

    return task(context)


def set_(context: Context) -> int:
    due = context.text("due")
    body = without_none(
        {
            "priority": context.number("priority"),
            "tags": context.values("tag") or None,
            "metadata": context.parsed.values["metadata"],
            "dependsOn": context.values("depends_on") or None,
            "estimatedCompletionAt": None if due is None else parse_future_time(due, time.time()),
        }
    )
    if not body:
        raise UsageError("usage", "Give at least one option to change. Try `qd task set --help`.")
    document = context.server().call("PATCH", _path(context, context.required_text("id")), body=body).document
    context.show(document, lambda task: f"Changed task {cell(task.get('id'))}.")
    return 0


def cancel(context: Context) -> int:
    body = without_none({"reason": context.text("reason")})
    return _apply_to_each(context, "POST", "cancel", body)


def retry(context: Context) -> int:
    return _apply_to_each(context, "POST", "retry", {})


def archive(context: Context) -> int:
    return _apply_to_each(context, "POST", "archive", {})


def pause(context: Context) -> int:
    return _apply_to_each(context, "PATCH", None, {"status": "PAUSED"})


def resume(context: Context) -> int:
    return _apply_to_each(context, "PATCH", None, {"status": "PENDING"})


def _apply_to_each(context: Context, method: str, action: str | None, body: Document) -> int:
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
    return 0


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


def _table(context: Context, tasks: list[Document]) -> str:
    if not tasks:
        return f"No tasks found in zone {context.zone}."
    now = time.time()
    rows = [
        [
            *(task.get(name) for name in ("id", "taskType", "status", "priority")),
            _format_progress(task),
            f"{cell(task.get('retryCount'))}/{cell(task.get('maxRetries'))}",
            task.get("agentId"),
            format_duration(now - (parse_timestamp(task.get("createdAt")) or now)),
            task.get("title"),
        ]
        for task in tasks
    ]
    headers = ("ID", "TYPE", "STATUS", "PRIORITY", "PROGRESS", "RETRIES", "AGENT", "AGE", "TITLE")
    return table(headers, rows, context.styler)


def _format_progress(task: Document) -> str:
    percent = task.get("progressPercent")
    return "100%" if task.get("status") == "COMPLETED" else f"{cell(percent)}%"


def _result_table(context: Context, tasks: Sequence[Document]) -> str:
    rows = [
        [task.get("id"), task.get("status"), _format_task_duration(task), task.get("title"), _result_or_reason(task)]
        for task in tasks
    ]
    return table(("ID", "STATUS", "DURATION", "TITLE", "RESULT"), rows, context.styler)


def _format_task_duration(task: Document) -> str | None:
    created_at = parse_timestamp(task.get("createdAt"))
    ended_at = parse_timestamp(task.get("completedAt")) or parse_timestamp(task.get("failedAt"))
    return None if created_at is None or ended_at is None else format_duration(ended_at - created_at)


def _result_or_reason(task: Document) -> object:
    if task.get("completedAt") is None:
        return _failure_reason(task)
    return task.get("summary") or to_json_line(task.get("outputResult"))
