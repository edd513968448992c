"""Tasks: add, list, show, wait for, draw with what they depend on, and move by hand. What agents say is in `labour`."""

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
from quarterdeck.cli.output import as_json, cell, fields, instant, span, table
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
            Command(("task", "wait"), "Wait for the end and print the result.", wait, ids_argument, (), _WAIT_HELP),
            Command(
                ("task", "tree"),
                "Draw a task, what it depends on and what it blocks.",
                tree,
                id_argument,
                _TREE_OPTIONS,
            ),
            task_logs.build_command(),
            Command(("task", "explain"), "Why a task is as it is.", explain, id_argument, (), _EXPLAIN_HELP),
            Command(("task", "set"), "Change a task that is not over.", set_, id_argument, _SET_OPTIONS),
            Command(("task", "cancel"), "Cancel tasks for good.", cancel, ids_argument, _CANCEL_OPTIONS, _CANCEL_HELP),
            Command(("task", "retry"), "Begin failed or canceled tasks anew.", retry, ids_argument),
            Command(("task", "pause"), "Take tasks from their agents until resumed.", pause, ids_argument),
            Command(("task", "resume"), "Let paused tasks go on.", resume, ids_argument),
            Command(("task", "archive"), "Put tasks away that are over.", archive, ids_argument),
            *task_work.build_commands(),
        ),
        {"task": "Durable units of work, for agents to take."},
    )


_STATUSES = ("PENDING", "ASSIGNED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "ABORTED", "ARCHIVED")
_LIST_OPTIONS = (
    Option("--status", "Only those in this status.", uppercase_choice(*_STATUSES)),
    Option("--type", "Only those of this type.", TEXT),
    Option("--agent", "Only those of this agent.", ID),
    Option("--tag", "Only those with this tag; may be repeated, then with all of them.", TEXT, many=True),
    Option("--priority", "Only those of this priority or a higher one.", NUMBER),
    Option("--since", "Only those added since: an instant, or 10m (so long ago).", PAST_TIME),
    *PAGING,
)
_WAIT_HELP = """Of one task prints the result as JSON; of several, a table. Exits with 0 if all were completed, with 1 if
one failed for good or was canceled, with 5 if --timeout ran out before. What has failed and is to be tried again is
waited for. On a terminal it shows how far they have come."""
_TREE_OPTIONS = (Option("--depth", "How far to go, either way, 1 to 100 [default: 25].", NUMBER),)
_EXPLAIN_HELP = "The same as `qd explain task`."
_SET_OPTIONS = (
    Option("--priority", "1 (low) to 10 (high).", NUMBER),
    Option("--tag", "A word to find it by; may be repeated. Replaces those it has.", TEXT, many=True),
    Option("--metadata", "A JSON object to keep with it. Replaces the one it has.", JSON_OBJECT),
    Option("--depends-on", "A task it waits for; may be repeated. Replaces those it has.", ID, many=True),
    Option("--due", "When it should be completed: an instant, or +2h.", FUTURE_TIME),
)
_CANCEL_OPTIONS = (Option("--reason", "Why, for the record [default: requested].", TEXT),)
_CANCEL_HELP = "Whoever works on one is told with its next heartbeat. It is not tried again, but for `qd task retry`."


def list_(context: Context) -> int:
    since = context.text("since")
    query = {
        "status": context.text("status"),
        "taskType": context.text("type"),
        "agentId": context.text("agent"),
        "tags": ",".join(str(tag) for tag in context.values("tag")) or None,
        # `priority>=8`, as it stands in a URL.
        "priority%3E": context.number("priority"),
        "createdAfter": None if since is None else parse_past_time(since, time.time()),
    }
    return print_list(context, context.api_path("agent-tasks"), query, _table)


def show(context: Context) -> int:
    found = context.server().get(_path(context, context.required_text("id")))
    context.show(found, lambda document: fields(_detail_pairs(document), context.styler))
    return 0


def wait(context: Context) -> int:
    return wait_for(context, [str(task_id) for task_id in context.values("ids")])


def wait_for(context: Context, ids: Sequence[str]) -> int:
    from quarterdeck.cli.wait import wait_for_tasks  # whoever only looks does not pay for it

    tasks = wait_for_tasks(context, ids)
    completed = [task for task in tasks if task.get("completedAt") is not None]
    if len(tasks) > 1:
        context.show({"items": [*tasks]}, lambda _: _result_table(context, tasks))
    elif context.as_json or completed:
        context.show(tasks[0], lambda document: as_json(document.get("outputResult")))
    else:
        context.note(f"the task is {cell(tasks[0].get('status'))}: {_failure_reason(tasks[0])}")
    return 0 if len(completed) == len(tasks) else EXIT_FAILED


def tree(context: Context) -> int:
    from quarterdeck.cli.task_tree import draw, glyphs_for  # whoever only looks does not pay for it

    task_id = context.required_text("id")
    document = context.server().get(_path(context, task_id, "tree"), {"depth": context.number("depth")})
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(document, lambda found: draw(found, task_id, context.styler, glyphs))
    if document.get("truncated") is True and not context.as_json:
        context.note("there are more than these: what is farther away was left out")
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
        raise UsageError("usage", "Nothing was said to change. Try `qd task set --help`.")
    document = context.server().call("PATCH", _path(context, context.required_text("id")), body=body).document
    context.show(document, lambda task: f"changed {cell(task.get('id'))}")
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
    """One after the other; what is refused of the first is told as of any command, and the rest is left as it is."""
    server = context.server()
    updated: list[Document] = []
    for task_id in dict.fromkeys(str(one) for one in context.values("ids")):
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
    return ": ".join(reasons) or "nobody said why"


def _detail_pairs(task: Document) -> list[tuple[str, object]]:
    """In full, but for what is empty: most tasks use few of the fields there are."""
    non_empty = {name: value for name, value in task.items() if value not in ([], {}, "")}
    costs = non_empty.pop("costs", None)
    pairs = detail_pairs(non_empty, time.time())
    if isinstance(costs, dict) and any(costs.values()):
        pairs.append(("costs", ", ".join(f"{cell(value)} {name}" for name, value in costs.items())))
    return pairs


def _table(context: Context, tasks: list[Document]) -> str:
    if not tasks:
        return f"no such tasks in zone {context.zone}"
    now = time.time()
    rows = [
        [
            *(task.get(name) for name in ("id", "taskType", "status", "priority")),
            _format_progress(task),
            f"{cell(task.get('retryCount'))}/{cell(task.get('maxRetries'))}",
            task.get("agentId"),
            span(now - (instant(task.get("createdAt")) or now)),
            task.get("title"),
        ]
        for task in tasks
    ]
    headers = ("ID", "TYPE", "STATUS", "PRIO", "DONE", "RETRIES", "AGENT", "AGE", "TITLE")
    return table(headers, rows, context.styler)


def _format_progress(task: Document) -> str:
    percent = task.get("progressPercent")
    return "100%" if task.get("status") == "COMPLETED" else f"{cell(percent)}%"


def _result_table(context: Context, tasks: Sequence[Document]) -> str:
    rows = [
        [task.get("id"), task.get("status"), _format_duration(task), task.get("title"), _result_or_reason(task)]
        for task in tasks
    ]
    return table(("ID", "STATUS", "TOOK", "TITLE", "RESULT"), rows, context.styler)


def _format_duration(task: Document) -> str | None:
    created_at = instant(task.get("createdAt"))
    ended_at = instant(task.get("completedAt")) or instant(task.get("failedAt"))
    return None if created_at is None or ended_at is None else span(ended_at - created_at)


def _result_or_reason(task: Document) -> object:
    if task.get("completedAt") is None:
        return _failure_reason(task)
    return task.get("summary") or as_json(task.get("outputResult"))
