"""The coordinator: whether it runs and what it sees, what it did, and in what order it hands out tasks."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import Argument, Command, Noun, Option, any_case, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGES, ago, show_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def noun() -> Noun:
    strategy = (Argument("strategy", "STRATEGY", choice("priority", "sjf", "fair"), required=False),)
    return Noun(
        (
            Command(("coordinator", "status"), "Tell whether it runs; fails if it does not.", status, (), _WHERE),
            Command(("coordinator", "recover"), "Look for what is lost, now.", recover, (), _WHERE),
            Command(("coordinator", "logs"), "What it did and what went wrong, newest first.", logs, (), _LOGS),
            Command(
                ("coordinator", "strategy"),
                "Show or set the order in which tasks are handed out.",
                strategy_,
                strategy,
                (),
                _ORDERS,
            ),
        ),
        {"coordinator": "Matches tasks to agents, and recovers what is lost."},
    )


_WHERE = (Option("--everywhere", "In every zone, not only in this one."),)
_LOGS = (
    Option(
        "--level",
        "Only those of this level [default: WARN and worse].",
        any_case("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"),
    ),
    *PAGES,
)
_ORDERS = """priority: the highest first, then the oldest. sjf: the shortest estimate first. fair: in turn between those
who added them."""


def status(context: Context) -> int:
    query = {"workspace": None if context.flag("everywhere") else context.zone}
    told = context.server().get(context.work("coordinator", "status"), query)
    context.show(told, lambda found: _status(context, found))
    return 0 if told.get("active") is True else EXIT_FAILED


def recover(context: Context) -> int:
    body: Document = {} if context.flag("everywhere") else {"workspaceId": context.zone}
    told = context.server().call("POST", context.work("coordinator", "recover"), body=body).document
    context.show(told, lambda found: fields([*found.items()], context.paint))
    return 0


def logs(context: Context) -> int:
    query = {"level": context.text("level"), "workspace": context.zone}
    return show_list(context, context.work("coordinator", "logs"), query, _table)


def strategy_(context: Context) -> int:
    wanted, path = context.text("strategy"), context.work("coordinator", "strategy")
    body: Document | None = None if wanted is None else {"strategy": wanted}
    told = context.server().call("GET" if body is None else "PUT", path, body=body).document
    context.show(told, lambda found: cell(found.get("strategy")))
    return 0


def _status(context: Context, told: Document) -> str:
    stats = told.get("stats")
    heard = ago(told.get("lastHeartbeat"), time.time())
    named = {**told, "lastHeartbeat": None if heard is None else f"{cell(told['lastHeartbeat'])} ({heard})"}
    pairs = [(name, value) for name, value in named.items() if name != "stats" and value is not None]
    if isinstance(stats, dict):
        pairs += [*stats.items()]
    return fields(pairs, context.paint)


def _table(context: Context, entries: list[Document]) -> str:
    if not entries:
        return f"nothing of that kind in zone {context.zone}"
    rows = [
        [
            one.get("createdAt"),
            one.get("level"),
            one.get("event"),
            one.get("taskId") or one.get("agentId"),
            one.get("message"),
        ]
        for one in entries
    ]
    return table(("AT", "LEVEL", "EVENT", "ABOUT", "MESSAGE"), rows, context.paint)
