"""`qd redis`: shows and rebuilds the mirror of tasks and agents in Redis."""

from __future__ import annotations

from quarterdeck.cli.command_table import Command, CommandTable
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import fields
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(("redis", "status"), "Show the state of the mirror. Exits 1 if it is not complete.", status),
            Command(("redis", "rebuild"), "Rewrite all keys of the mirror.", rebuild, description=_REBUILD_HELP),
        ),
        {"redis": "Manage the mirror of tasks and agents in Redis."},
    )


_REBUILD_HELP = """Writes all keys from the database and deletes keys for objects that are not in it. Readers see no gap
during the rebuild. Exits 1 if it takes longer than 14 seconds: the rebuild then continues in the server, and `qd redis
status` shows its state."""


def status(context: Context) -> int:
    return _print_status(context, context.server().get("/redis", {}))


def rebuild(context: Context) -> int:
    return _print_status(context, context.server().call("POST", "/redis/rebuild", body={}).document)


def _print_status(context: Context, document: Document) -> int:
    field_names = ("state", "written", "repairs")
    context.show(document, lambda _: fields([(name, document.get(name)) for name in field_names], context.styler))
    return 0 if document.get("state") == "whole" else EXIT_FAILED
