"""Maps the first word of a command to the module that defines it. Add a line here for each new first word."""

from __future__ import annotations

import importlib

from quarterdeck.cli.command_table import Command, CommandTable

MODULES = {
    "up": "server",
    "status": "server",
    "stop": "server",
    "logs": "server",
    "zone": "zone",
    "session": "session",
    "service": "service",
    "invocation": "invocation",
    "delegation": "delegation",
    "task": "task",
    "agent": "agent",
    "coordinator": "coordinator",
    "role": "role",
    "fleet": "fleet",
    "member": "member",
    "message": "message",
    "cost": "cost",
    "budget": "cost",
    "webhook": "webhook",
    "top": "top",
    "explain": "explain",
    "key": "key",
    "events": "events",
    "sink": "sink",
    "redis": "redis",
    "secrets": "secrets",
    "sweep": "admin",
    "token": "admin",
    "db": "admin",
    "audit": "admin",
    "check": "admin",
    "config": "admin",
    "monitor": "monitor",
    "doctor": "doctor",
    "completion": "version",
    "version": "version",
}


def load_command_table(word: str) -> CommandTable | None:
    """Return the command table of the module that defines this first word. Imports only that module."""
    module_name = MODULES.get(word)
    if module_name is None:
        return None
    module = importlib.import_module(f"quarterdeck.cli.{module_name}")
    table = module.build_command_table()
    assert isinstance(table, CommandTable)  # import_module returns an untyped module
    return table


def load_commands(word: str) -> list[Command]:
    """Return the commands whose first word is `word`."""
    table = load_command_table(word)
    return [] if table is None else [command for command in table.commands if command.words[0] == word]
