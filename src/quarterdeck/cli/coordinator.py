"""The coordinator: whether it runs and what it sees, what it did, and in what order it hands out tasks."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import Argument, Command, CommandTable, Option, choice, uppercase_choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, ago, print_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    strategy_argument = (Argument("strategy", "STRATEGY", choice("priority", "sjf", "fair"), required=False),)
    return CommandTable(
        (
            Command(
                ("coordinator", "status"),
                "Tell whether it runs; fails if it does not.",
                status,
                (),
                _EVERYWHERE_OPTIONS,
            ),
            Command(("coordinator", "recover"), "Look for what is lost, now.", recover, (), _EVERYWHERE_OPTIONS),
            Command(("coordinator", "logs"), "What it did and what went wrong, newest first.", logs, (), _LOGS_OPTIONS),
            Command(
                ("coordinator", "strategy"),
                "Show or set the order in which tasks are handed out.",
                strategy_,
                strategy_argument,
                (),
                _STRATEGY_HELP,
            ),
        ),
        {"coordinator": "Matches tasks to agents, and recovers what is lost."},
    )


_EVERYWHERE_OPTIONS = (Option("--everywhere", "In every zone, not only in this one."),)
_LOGS_OPTIONS = (
    Option(
        "--level",
        "Only those of this level [default: WARN and worse].",
        uppercase_choice("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"),
    ),
    *PAGING,
)
_STRATEGY_HELP = """priority: the highest first, then the oldest. sjf: the shortest estimate first. fair: in turn between those
who added them."""


def status(context: Context) -> int:
    query = {"workspace": None if context.flag("everywhere") else context.zone}
    document = context.server().get(context.api_path("coordinator", "status"), query)
    context.show(document, lambda found: _format_status(context, found))
    return 0 if document.get("active") is True else EXIT_FAILED


def recover(context: Context) -> int:
    body: Document = {} if context.flag("everywhere") else {"workspaceId": context.zone}
    document = context.server().call("POST", context.api_path("coordinator", "recover"), body=body).document
    context.show(document, lambda found: fields([*found.items()], context.styler))
    return 0


def logs(context: Context) -> int:
    query = {"level": context.text("level"), "workspace": context.zone}
    return print_list(context, context.api_path("coordinator", "logs"), query, _table)


def strategy_(context: Context) -> int:
    strategy, path = context.text("strategy"), context.api_path("coordinator", "strategy")
    body: Document | None = None if strategy is None else {"strategy": strategy}
    document = context.server().call("GET" if body is None else "PUT", path, body=body).document
    context.show(document, lambda found: cell(found.get("strategy")))
    return 0


def _format_status(context: Context, document: Document) -> str:
    stats = document.get("stats")
    last_seen = ago(document.get("lastHeartbeat"), time.time())
    values = {
        **document,
        "lastHeartbeat": None if last_seen is None else f"{cell(document['lastHeartbeat'])} ({last_seen})",
    }
    pairs = [(name, value) for name, value in values.items() if name != "stats" and value is not None]
    if isinstance(stats, dict):
        pairs += [*stats.items()]
    return fields(pairs, context.styler)


def _table(context: Context, entries: list[Document]) -> str:
    if not entries:
        return f"nothing of that kind in zone {context.zone}"
    rows = [
        [
            entry.get("createdAt"),
            entry.get("level"),
            entry.get("event"),
            entry.get("taskId") or entry.get("agentId"),
            entry.get("message"),
        ]
        for entry in entries
    ]
    return table(("AT", "LEVEL", "EVENT", "ABOUT", "MESSAGE"), rows, context.styler)
