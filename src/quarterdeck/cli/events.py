"""`qd events`: lists and follows the event log, one row per transition in commit order."""

from __future__ import annotations

import json
import sys

from quarterdeck.cli.command_table import NUMBER, TEXT, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import Column, format_table
from quarterdeck.cli.output import EMPTY_CELL, cell, decode_object, pad
from quarterdeck.client.api import Document, Query, page_items
from quarterdeck.client.event_stream import EventStream, OutputClosed, SseMessage

GROUP = Group("events", "List the events of a zone. `qd events` is short for `qd events list`.")


@GROUP.command(
    "list",
    "List events, oldest first.",
    Option("--follow", "Keep printing new events, starting now or after --after.", short="-f"),
    Option("--after", "Only events after this position.", NUMBER, field="after"),
    Option("--limit", "Maximum number of events.", NUMBER),
    Option("--type", "Only events of this type; repeatable.", TEXT, many=True, field="types"),
    Option("--subject", "Only events about this subject.", TEXT, field="subject"),
    is_default=True,
)
def list_(context: Context) -> None:
    query = context.query()
    limit = context.number("limit")
    if context.flag("follow") and limit != 0:
        follow(context, query, limit)
        return
    query["limit"] = limit
    page = context.server().get(context.zone_path("events"), query)
    empty = f"No events found in zone {context.zone}."
    context.show(page, lambda _: format_table(context, _COLUMNS, page_items(page), empty))
    if page.get("next_after") is not None:
        context.hint(f"More events may exist. Use --after {cell(page['next_after'])} to continue.")


def _format_transition(event: Document) -> str:
    from_state, to_state = event.get("from"), event.get("to")
    return "" if from_state is None and to_state is None else f"{cell(from_state)} → {cell(to_state)}"


_COLUMNS = (
    Column("POS", "pos"),
    Column("TIME", "at"),
    Column("TYPE", "type"),
    Column("SUBJECT", "subject"),
    Column("ACTOR", "actor"),
    Column("CHANGE", lambda event, _: _format_transition(event)),
)
_COLUMN_WIDTHS = (("pos", 6), ("at", 24), ("type", 17), ("subject", 36), ("actor", 1))
"""Fixed widths that fit typical values: each line is printed before the next event arrives."""


def follow(context: Context, query: Query, limit: int | None) -> None:
    """Print events until Ctrl-C, or until `limit` events have been printed."""
    stream = EventStream(context.find_running_server, context.zone_path("events"), query, context.note, _stdout_fd())
    remaining = limit
    try:
        for message in stream.messages(context.server()):
            event = _decode_event(message)
            if message.event == "reset":
                _report_reset(context, event)
            else:
                context.write(message.data if context.as_json else format_line(event))
                remaining = None if remaining is None else remaining - 1
            sys.stdout.flush()
            if remaining == 0:
                break
    except OutputClosed:
        raise BrokenPipeError from None


def format_line(event: Document) -> str:
    columns = [pad(cell(event.get(name)), column_width) for name, column_width in _COLUMN_WIDTHS]
    return "  ".join([*columns, _format_transition(event)]).rstrip()


def _report_reset(context: Context, reset: Document) -> None:
    floor, head = cell(reset.get("floor")), cell(reset.get("head"))
    context.note(f"The log does not have the requested position. Continuing from {floor}; the newest is {head}.")
    if context.as_json:
        context.write(json.dumps({"type": "reset", **reset}))


def _decode_event(message: SseMessage) -> Document:
    decoded = decode_object(message.data)
    return {"pos": message.id, "type": message.event, "subject": EMPTY_CELL} if decoded is None else decoded


def _stdout_fd() -> int | None:
    """Return the file descriptor of stdout, which is used to detect a closed pipe. Returns None if stdout has none."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
