"""Redis: whether what is shown there of tasks and agents is all there, and writing it anew."""

from __future__ import annotations

from quarterdeck.cli.command_table import Command, CommandTable
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import fields
from quarterdeck.client.api import Document
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(("redis", "status"), "Show whether the keys in Redis are all there.", status),
            Command(("redis", "rebuild"), "Write the keys in Redis anew.", rebuild, description=_REBUILD_HELP),
        ),
        {"redis": "What Redis shows of tasks and agents."},
    )


_REBUILD_HELP = """Everything is written as the database has it, and what the database does not know is taken away. Nothing
is missing meanwhile that was there before. Exits with 1 if it takes longer than 14 seconds: then it goes on by
itself, and `qd redis status` tells how it stands."""


def status(context: Context) -> int:
    return _print_status(context, context.server().get("/redis", {}))


def rebuild(context: Context) -> int:
    return _print_status(context, context.server().call("POST", "/redis/rebuild", body={}).document)


def _print_status(context: Context, document: Document) -> int:
    field_names = ("state", "written", "repairs")
    context.show(document, lambda found: fields([(name, found.get(name)) for name in field_names], context.styler))
    return 0 if document.get("state") == "whole" else EXIT_FAILED
