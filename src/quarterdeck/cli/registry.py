"""Which module knows which first word. The one list to extend when a noun gets commands."""

from __future__ import annotations

import importlib

from quarterdeck.cli.command_table import Command, Noun

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


def noun_of(word: str) -> Noun | None:
    """The table of the module that knows this first word; only that module is imported."""
    name = MODULES.get(word)
    if name is None:
        return None
    module = importlib.import_module(f"quarterdeck.cli.{name}")
    table = module.noun()
    assert isinstance(table, Noun)  # what import_module returns has no type
    return table


def commands_of(word: str) -> list[Command]:
    """The commands that begin with this word."""
    table = noun_of(word)
    return [] if table is None else [command for command in table.commands if command.words[0] == word]
