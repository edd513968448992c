"""Maps the first word of a command to the module that defines it. Add a line here for each new first word."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from quarterdeck.cli.command_table import Command, Group

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
    "redis": "sink",
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


def load_groups(word: str) -> Sequence[Group]:
    """Return the groups of the module that defines this first word. Imports only that module."""
    module_name = MODULES.get(word)
    if module_name is None:
        return ()
    module = importlib.import_module(f"quarterdeck.cli.{module_name}")
    groups: Sequence[Group] = getattr(module, "GROUPS", None) or (module.GROUP,)
    return groups


def load_commands(word: str) -> list[Command]:
    """Return the commands whose first word is `word`."""
    return [command for group in load_groups(word) for command in group.commands if command.words[0] == word]
