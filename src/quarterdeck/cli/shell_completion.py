"""Shell completion from the server: fleets, members by id or name, and messages.

The shell blocks while the user waits for completions. So this module starts no server, waits at most 2 s for each
response, and offers nothing if the server cannot be reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quarterdeck.cli.command_table import Command, ParsedCommand
from quarterdeck.cli.context import Context
from quarterdeck.cli.fast_parser import empty_values
from quarterdeck.cli.fleet_common import MESSAGE_FIELDS, agent_id_or_none, fleet_id_or_none, fleets_path
from quarterdeck.client.api import ApiClient, Document, Query, page_items
from quarterdeck.core.errors import Problem

_TIMEOUT_SECONDS = 2.0
_LIMIT = 100


class Completion(NamedTuple):
    value: str
    help: str


def complete_from_server(typed_values: Mapping[str, object], source: str, incomplete: str) -> list[Completion]:
    """Return the completions whose id, name, label or text starts with `incomplete`."""
    command = Command((), "", _refuse_to_run)
    context = Context(
        ParsedCommand(
            command, {**empty_values(command), "agent_id": None, **typed_values, "timeout": _TIMEOUT_SECONDS}
        ),
        os.environ,
    )
    try:
        server = context.find_running_server()
        completions = [] if server is None else [*_load_completions(context, server, source)]
    except (Problem, OSError):
        # The shell cannot show an error. The command itself will report it.
        return []
    prefix = incomplete.lower()
    return [
        completion
        for completion in completions
        if completion.value.startswith(incomplete) or (prefix and completion.help.lower().startswith(prefix))
    ]


def _load_completions(context: Context, server: ApiClient, source: str) -> Iterator[Completion]:
    if source == "fleets":
        for item in page_items(server.get(fleets_path()), "fleets"):
            yield _to_completion(item, "fleet_id", "label")
        return
    fleet_id = fleet_id_or_none(context)
    if fleet_id is None:
        return
    if source == "members":
        for item in page_items(server.get(fleets_path(fleet_id, "members")), "members"):
            yield _to_completion(item, "agent_id", "name")
        return
    agent_id = agent_id_or_none(context)
    if agent_id is not None:
        query: Query = {"status": "input_required", "limit": _LIMIT}
        for item in page_items(server.get(fleets_path(fleet_id, "members", agent_id, "inbox"), query), "messages"):
            yield _to_completion(item, MESSAGE_FIELDS[0], "text")


def _to_completion(item: Document, value_field: str, help_field: str) -> Completion:
    help_text = item.get(help_field)
    # One line of at most 60 printable characters: control characters could move the cursor.
    line = "".join(char for char in help_text if char.isprintable())[:60] if isinstance(help_text, str) else ""
    return Completion(str(item.get(value_field)), line)


def _refuse_to_run(context: Context) -> None:
    raise AssertionError("completion does not run a command")
