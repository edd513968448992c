"""`qd coordinator`: status, recover, logs, strategy."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import LEVEL, Argument, Group, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, Column, ago, field_text, nested, print_list
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED

GROUP = Group("coordinator", "Inspect the coordinator. It assigns tasks to agents and recovers lost tasks.")


_ALL_ZONES_OPTION = Option("--everywhere", "Include all zones, not only the current one.")


@GROUP.command("status", "Show the state of the coordinator. Exits 1 if it is not active.", _ALL_ZONES_OPTION)
def status(context: Context) -> int:
    zone = None if context.flag("everywhere") else context.zone
    path = context.with_query(context.api_path("coordinator", "status"), workspace=zone)
    document = context.send("GET", path, lambda status: _format_status(context, status))
    return 0 if document.get("active") is True else EXIT_FAILED


@GROUP.command("recover", "Recover lost tasks now.", _ALL_ZONES_OPTION)
def recover(context: Context) -> None:
    body = context.body(workspaceId=None if context.flag("everywhere") else context.zone)
    path = context.api_path("coordinator", "recover")
    context.send("POST", path, lambda counts: fields(counts.items(), context.styler), body=body)


@GROUP.command(
    "logs",
    "List coordinator log entries, newest first.",
    Option("--level", "Only entries with this level [default: WARN and above].", LEVEL, field="level"),
    *PAGING,
)
def logs(context: Context) -> None:
    empty = f"No log entries found in zone {context.zone}."
    path = context.api_path("coordinator", "logs")
    print_list(context, path, _COLUMNS, empty, context.query(workspace=context.zone))


@GROUP.command(
    "strategy",
    "Show or set the order in which tasks are claimed.",
    Argument("strategy", "STRATEGY", choice("priority", "sjf", "fair"), required=False, field="strategy"),
    description=(
        "priority: highest priority first, then oldest. sjf (shortest job first): shortest estimate first. "
        "fair: round-robin among the creators of tasks, however many tasks each has queued."
    ),
)
def strategy_(context: Context) -> None:
    body, path = context.body(), context.api_path("coordinator", "strategy")
    context.send("PUT" if body else "GET", path, field_text("strategy"), body=body or None)


def _format_status(context: Context, document: Document) -> str:
    last_seen = ago(document.get("lastHeartbeat"), time.time())
    heartbeat = None if last_seen is None else f"{cell(document['lastHeartbeat'])} ({last_seen})"
    values = {**document, "stats": None, "lastHeartbeat": heartbeat}
    pairs = [(name, value) for name, value in values.items() if value is not None]
    return fields([*pairs, *nested(document, "stats").items()], context.styler)


_COLUMNS = (
    Column("TIME", "createdAt"),
    Column("LEVEL", "level"),
    Column("EVENT", "event"),
    Column("SUBJECT", lambda entry, _: entry.get("taskId") or entry.get("agentId")),
    Column("MESSAGE", "message"),
)
