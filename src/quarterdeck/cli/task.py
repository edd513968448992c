"""Tasks: add, list, show, wait for, draw with what they depend on, and move by hand. What agents say is in `labour`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from quarterdeck.cli import task_add, task_logs, task_work
from quarterdeck.cli.command_table import ID, NUMBER, OBJECT, TEXT, Argument, Command, Noun, Option, any_case
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.list_output import PAGES, in_full, show_list
from quarterdeck.cli.output import as_json, cell, fields, instant, span, table
from quarterdeck.cli.time_args import EARLIER, LATER, earlier, later
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def noun() -> Noun:
    one, some = (Argument("id", "ID", ID),), (Argument("ids", "ID", ID, many=True),)
    return Noun(
        (
            task_add.command(),
            Command(("task", "list"), "List tasks, newest first.", list_, options=_LIST),
            Command(("task", "show"), "Show one task.", show, one),
            Command(("task", "wait"), "Wait for the end and print the result.", wait, some, (), _WAITING),
            Command(("task", "tree"), "Draw a task, what it depends on and what it blocks.", tree, one, _TREE),
            task_logs.command(),
            Command(("task", "explain"), "Why a task is as it is.", explain, one, (), _EXPLAINING),
            Command(("task", "set"), "Change a task that is not over.", set_, one, _SET),
            Command(("task", "cancel"), "Cancel tasks for good.", cancel, some, _CANCEL, _CANCELING),
            Command(("task", "retry"), "Begin failed or canceled tasks anew.", retry, some),
            Command(("task", "pause"), "Take tasks from their agents until resumed.", pause, some),
            Command(("task", "resume"), "Let paused tasks go on.", resume, some),
            Command(("task", "archive"), "Put tasks away that are over.", archive, some),
            *task_work.commands(),
        ),
        {"task": "Durable units of work, for agents to take."},
    )


_STATES = ("PENDING", "ASSIGNED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "ABORTED", "ARCHIVED")
_LIST = (
    Option("--status", "Only those in this status.", any_case(*_STATES)),
    Option("--type", "Only those of this type.", TEXT),
    Option("--agent", "Only those of this agent.", ID),
    Option("--tag", "Only those with this tag; may be repeated, then with all of them.", TEXT, many=True),
    Option("--priority", "Only those of this priority or a higher one.", NUMBER),
    Option("--since", "Only those added since: an instant, or 10m (so long ago).", EARLIER),
    *PAGES,
)
_WAITING = """Of one task prints the result as JSON; of several, a table. Exits with 0 if all were completed, with 1 if
one failed for good or was canceled, with 5 if --timeout ran out before. What has failed and is to be tried again is
waited for. On a terminal it shows how far they have come."""
_TREE = (Option("--depth", "How far to go, either way, 1 to 100 [default: 25].", NUMBER),)
_EXPLAINING = "The same as `qd explain task`."
_SET = (
    Option("--priority", "1 (low) to 10 (high).", NUMBER),
    Option("--tag", "A word to find it by; may be repeated. Replaces those it has.", TEXT, many=True),
    Option("--metadata", "A JSON object to keep with it. Replaces the one it has.", OBJECT),
    Option("--depends-on", "A task it waits for; may be repeated. Replaces those it has.", ID, many=True),
    Option("--due", "When it should be completed: an instant, or +2h.", LATER),
)
_CANCEL = (Option("--reason", "Why, for the record [default: requested].", TEXT),)
_CANCELING = "Whoever works on one is told with its next heartbeat. It is not tried again, but for `qd task retry`."


def list_(context: Context) -> int:
    since = context.text("since")
    query = {
        "status": context.text("status"),
        "taskType": context.text("type"),
        "agentId": context.text("agent"),
        "tags": ",".join(str(tag) for tag in context.many("tag")) or None,
        # `priority>=8`, as it stands in a URL.
        "priority%3E": context.number("priority"),
        "createdAfter": None if since is None else earlier(since, time.time()),
    }
    return show_list(context, context.work("agent-tasks"), query, _table)


def show(context: Context) -> int:
    found = context.server().get(_path(context, context.given("id")))
    context.show(found, lambda told: fields(_said(told), context.paint))
    return 0


def wait(context: Context) -> int:
    return wait_for(context, [str(one) for one in context.many("ids")])


def wait_for(context: Context, ids: Sequence[str]) -> int:
    from quarterdeck.cli.wait import wait_for_tasks  # whoever only looks does not pay for it

    ended = wait_for_tasks(context, ids)
    good = [task for task in ended if task.get("completedAt") is not None]
    if len(ended) > 1:
        context.show({"items": [*ended]}, lambda _: _ended(context, ended))
    elif context.as_json or good:
        context.show(ended[0], lambda told: as_json(told.get("outputResult")))
    else:
        context.note(f"the task is {cell(ended[0].get('status'))}: {_why(ended[0])}")
    return 0 if len(good) == len(ended) else EXIT_FAILED


def tree(context: Context) -> int:
    from quarterdeck.cli.task_tree import draw, lines_for  # whoever only looks does not pay for it

    target = context.given("id")
    told = context.server().get(_path(context, target, "tree"), {"depth": context.number("depth")})
    pieces = lines_for(sys.stdout.encoding)
    context.show(told, lambda found: draw(found, target, context.paint, pieces))
    if told.get("truncated") is True and not context.as_json:
        context.note("there are more than these: what is farther away was left out")
    return 0


def explain(context: Context) -> int:
    from quarterdeck.cli.explain import task

    return task(context)


def set_(context: Context) -> int:
    due = context.text("due")
    body = without_nothing(
        {
            "priority": context.number("priority"),
            "tags": context.many("tag") or None,
            "metadata": context.ask.values["metadata"],
            "dependsOn": context.many("depends_on") or None,
            "estimatedCompletionAt": None if due is None else later(due, time.time()),
        }
    )
    if not body:
        raise Usage("usage", "Nothing was said to change. Try `qd task set --help`.")
    told = context.server().call("PATCH", _path(context, context.given("id")), body=body).document
    context.show(told, lambda task: f"changed {cell(task.get('id'))}")
    return 0


def cancel(context: Context) -> int:
    body = without_nothing({"reason": context.text("reason")})
    return _each(context, "POST", "cancel", body)


def retry(context: Context) -> int:
    return _each(context, "POST", "retry", {})


def archive(context: Context) -> int:
    return _each(context, "POST", "archive", {})


def pause(context: Context) -> int:
    return _each(context, "PATCH", None, {"status": "PAUSED"})


def resume(context: Context) -> int:
    return _each(context, "PATCH", None, {"status": "PENDING"})


def _each(context: Context, method: str, verb: str | None, body: Document) -> int:
    """One after the other; what is refused of the first is told as of any command, and the rest is left as it is."""
    server = context.server()
    moved: list[Document] = []
    for one in dict.fromkeys(str(one) for one in context.many("ids")):
        path = _path(context, one, *([] if verb is None else [verb]))
        moved.append(server.call(method, path, body=body).document)
        if not context.as_json:
            context.write(task_work.stands(moved[-1]))
    if context.as_json:
        context.show(moved[0] if len(moved) == 1 else {"items": [*moved]}, lambda _: "")
    return 0


def _path(context: Context, *rest: str) -> str:
    return context.work("agent-tasks", *rest)


def _why(task: Document) -> str:
    said = [cell(task[name]) for name in ("reason", "lastError") if task.get(name)]
    return ": ".join(said) or "nobody said why"


def _said(task: Document) -> list[tuple[str, object]]:
    """In full, but for what is empty: most tasks use few of the fields there are."""
    told = {name: value for name, value in task.items() if value not in ([], {}, "")}
    costs = told.pop("costs", None)
    pairs = in_full(told, time.time())
    if isinstance(costs, dict) and any(costs.values()):
        pairs.append(("costs", ", ".join(f"{cell(value)} {name}" for name, value in costs.items())))
    return pairs


def _table(context: Context, tasks: list[Document]) -> str:
    if not tasks:
        return f"no such tasks in zone {context.zone}"
    now = time.time()
    rows = [
        [
            *(one.get(name) for name in ("id", "taskType", "status", "priority")),
            _done(one),
            f"{cell(one.get('retryCount'))}/{cell(one.get('maxRetries'))}",
            one.get("agentId"),
            span(now - (instant(one.get("createdAt")) or now)),
            one.get("title"),
        ]
        for one in tasks
    ]
    heads = ("ID", "TYPE", "STATUS", "PRIO", "DONE", "RETRIES", "AGENT", "AGE", "TITLE")
    return table(heads, rows, context.paint)


def _done(task: Document) -> str:
    percent = task.get("progressPercent")
    return "100%" if task.get("status") == "COMPLETED" else f"{cell(percent)}%"


def _ended(context: Context, tasks: Sequence[Document]) -> str:
    rows = [[one.get("id"), one.get("status"), _took(one), one.get("title"), _came_of(one)] for one in tasks]
    return table(("ID", "STATUS", "TOOK", "TITLE", "RESULT"), rows, context.paint)


def _took(task: Document) -> str | None:
    began = instant(task.get("createdAt"))
    ended = instant(task.get("completedAt")) or instant(task.get("failedAt"))
    return None if began is None or ended is None else span(ended - began)


def _came_of(task: Document) -> object:
    if task.get("completedAt") is None:
        return _why(task)
    return task.get("summary") or as_json(task.get("outputResult"))
