"""What only the server knows, offered to a shell that completes a word: fleets, members by id and name, messages.

A shell waits for this between two keys: no server is started for it, none is waited for, and where nothing can be
known nothing is offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quarterdeck.cli.command_table import Ask, Command
from quarterdeck.cli.context import Context
from quarterdeck.cli.fast_parser import blank
from quarterdeck.cli.fleet_common import COLUMNS, agent_or_none, fleet_or_none, fleets
from quarterdeck.client.api import Document, Query, Server, items_of
from quarterdeck.core.errors import Problem

_SECONDS = 2.0
_MOST = 100


class Offer(NamedTuple):
    value: str
    help: str


def offers(typed: Mapping[str, object], source: str, incomplete: str) -> list[Offer]:
    """What goes on as it was begun: by its id, or by its name, which is then replaced by the id."""
    command = Command((), "", _not_run)
    context = Context(Ask(command, {**blank(command), "agent_id": None, **typed, "timeout": _SECONDS}), os.environ)
    try:
        server = context.again()
        found = [] if server is None else [*_found(context, server, source)]
    except (Problem, OSError):
        # A shell has no place for a sentence: what is wrong is told when the command runs.
        return []
    begun = incomplete.lower()
    return [one for one in found if one.value.startswith(incomplete) or (begun and one.help.lower().startswith(begun))]


def _found(context: Context, server: Server, source: str) -> Iterator[Offer]:
    if source == "fleets":
        for one in items_of(server.get(fleets()), "fleets"):
            yield _offer(one, "fleet_id", "label")
        return
    number = fleet_or_none(context)
    if number is None:
        return
    if source == "members":
        for one in items_of(server.get(fleets(number, "members")), "members"):
            yield _offer(one, "agent_id", "name")
        return
    who = agent_or_none(context)
    if who is not None:
        query: Query = {"status": "input_required", "limit": _MOST}
        for one in items_of(server.get(fleets(number, "members", who, "inbox"), query), "messages"):
            yield _offer(one, COLUMNS[0], "text")


def _offer(one: Document, value: str, text: str) -> Offer:
    told = one.get(text)
    # Of a text one line, and not more of it than a shell can show; nothing in it moves the cursor.
    line = "".join(char for char in told if char.isprintable())[:60] if isinstance(told, str) else ""
    return Offer(str(one.get(value)), line)


def _not_run(context: Context) -> int:
    raise AssertionError("what completes a word runs no command")
