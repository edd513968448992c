"""`qd coordinator`: status, recover, logs, strategy."""

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
                "Show the state of the coordinator. Exits 1 if it is not active.",
                status,
                (),
                _ALL_ZONES_OPTIONS,
            ),
            Command(("coordinator", "recover"), "Recover lost tasks now.", recover, (), _ALL_ZONES_OPTIONS),
            Command(("coordinator", "logs"), "List coordinator log entries, newest first.", logs, (), _LOGS_OPTIONS),
            Command(
                ("coordinator", "strategy"),
                "Show or set the order in which tasks are claimed.",
                strategy_,
                strategy_argument,
                (),
                _STRATEGY_HELP,
            ),
        ),
        {"coordinator": "Inspect the coordinator. It assigns tasks to agents and recovers lost tasks."},
    )


_ALL_ZONES_OPTIONS = (Option("--everywhere", "Include all zones, not only the current one."),)
_LOGS_OPTIONS = (
    Option(
        "--level",
        "Only entries with this level [default: WARN and above].",
        uppercase_choice("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"),
    ),
    *PAGING,
)
_STRATEGY_HELP = """priority: highest priority first, then oldest. sjf (shortest job first): shortest estimate first.
fair: round-robin among the creators of tasks, however many tasks each has queued."""


def status(context: Context) -> int:
    query = {"workspace": None if context.flag("everywhere") else context.zone}
    document = context.server().get(context.api_path("coordinator", "status"), query)
    context.show(document, lambda _: _format_status(context, document))
    return 0 if document.get("active") is True else EXIT_FAILED


def recover(context: Context) -> int:
    body: Document = {} if context.flag("everywhere") else {"workspaceId": context.zone}
    document = context.server().call("POST", context.api_path("coordinator", "recover"), body=body).document
    context.show(document, lambda _: fields([*document.items()], context.styler))
    return 0


def logs(context: Context) -> int:
    query = {"level": context.text("level"), "workspace": context.zone}
    return print_list(context, context.api_path("coordinator", "logs"), query, _table)


def strategy_(context: Context) -> int:
    strategy, path = context.text("strategy"), context.api_path("coordinator", "strategy")
    body: Document | None = None if strategy is None else {"strategy": strategy}
    document = context.server().call("GET" if body is None else "PUT", path, body=body).document
    context.show(document, lambda _: cell(document.get("strategy")))
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
        return f"No log entries found in zone {context.zone}."
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
    return table(("TIME", "LEVEL", "EVENT", "SUBJECT", "MESSAGE"), rows, context.styler)
