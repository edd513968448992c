"""Maps the first word of a command to the module that defines it. Add a line to a section for each new first word."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from quarterdeck.cli.command_table import Command, Group

SECTIONS = {
    "Run a server": {
        "up": "server",
        "status": "server",
        "stop": "server",
        "logs": "server",
        "doctor": "doctor",
        "config": "admin",
    },
    "Sessions": {"session": "session", "zone": "zone", "explain": "explain", "events": "events", "top": "top"},
    "Work": {
        "task": "task",
        "agent": "agent",
        "service": "service",
        "invocation": "invocation",
        "cost": "cost",
        "budget": "cost",
        "coordinator": "coordinator",
    },
    "Fleets of coding agents": {"fleet": "fleet", "member": "member", "message": "message", "monitor": "monitor"},
    "Authority": {"delegation": "delegation", "role": "role", "key": "key", "token": "admin"},
    "Operations": {
        "db": "admin",
        "check": "admin",
        "audit": "admin",
        "sweep": "admin",
        "secrets": "secrets",
        "webhook": "webhook",
        "sink": "sink",
        "redis": "sink",
        "completion": "admin",
        "version": "admin",
    },
}
"""The sections of `qd --help`. Each maps first words to modules of this package."""
MODULES = {word: module for section in SECTIONS.values() for word, module in section.items()}


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
