"""The log of what happened: one row per transition, in the order of their commits."""

from __future__ import annotations

import json
import sys

from quarterdeck.cli.command_table import NUMBER, TEXT, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import EMPTY_CELL, cell, pad, table
from quarterdeck.client.api import Document, Query, page_items
from quarterdeck.client.discovery import connect_running_server
from quarterdeck.client.event_stream import EventStream, OutputClosed, SseMessage


def build_command_table() -> CommandTable:
    list_command = Command(
        ("events", "list"), "List events, oldest first.", list_, options=_LIST_OPTIONS, is_default=True
    )
    return CommandTable((list_command,), {"events": "What happened in a zone; alone it is `qd events list`."})


_LIST_OPTIONS = (
    Option("--follow", "Go on printing what happens, from now or from --after.", short="-f"),
    Option("--after", "Only those after this position.", NUMBER),
    Option("--limit", "How many at most.", NUMBER),
    Option("--type", "Only this type; may be repeated.", TEXT, many=True),
    Option("--subject", "Only those about this subject.", TEXT),
)


def list_(context: Context) -> int:
    types = ",".join(str(event_type) for event_type in context.values("type"))
    query = {"after": context.number("after"), "types": types or None, "subject": context.text("subject")}
    limit = context.number("limit")
    if context.flag("follow") and limit != 0:
        pass  # whoever lists does not pay for it

        return follow(context, query, limit)
    query["limit"] = limit
    page = context.server().get(context.in_zone("events"), query)
    context.show(page, lambda document: _table(context, page_items(document)))
    if page.get("next_after") is not None and not context.as_json:
        context.note(f"there may be more: --after {cell(page['next_after'])}")
    return 0


def _table(context: Context, events: list[Document]) -> str:
    if not events:
        return f"no such events in zone {context.zone}"
    field_names = ("pos", "at", "type", "subject", "actor")
    rows = [[*(event.get(name) for name in field_names), _format_transition(event)] for event in events]
    return table(("POS", "AT", "TYPE", "SUBJECT", "ACTOR", "MOVE"), rows, context.styler)


def _format_transition(event: Document) -> str:
    from_state, to_state = event.get("from"), event.get("to")
    return "" if from_state is None and to_state is None else f"{cell(from_state)} → {cell(to_state)}"


_COLUMN_WIDTHS = (("pos", 6), ("at", 24), ("type", 17), ("subject", 36), ("actor", 1))
"""As wide as they usually are: a line must be printed before the next is known."""


def follow(context: Context, query: Query, limit: int | None) -> int:
    """Prints until it is interrupted, or until so many have been printed."""
    stream = EventStream(
        lambda: connect_running_server(context.server_location, context.environ),
        context.in_zone("events"),
        query,
        context.note,
        _stdout_fd(),
    )
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
    return 0


def format_line(event: Document) -> str:
    from_state, to_state = event.get("from"), event.get("to")
    columns = [pad(cell(event.get(name)), column_width) for name, column_width in _COLUMN_WIDTHS]
    transition = "" if from_state is None and to_state is None else f"{cell(from_state)} → {cell(to_state)}"
    return "  ".join([*columns, transition]).rstrip()


def _report_reset(context: Context, reset: Document) -> None:
    floor, head = cell(reset.get("floor")), cell(reset.get("head"))
    context.note(
        f"that position is not in the log any more, or not in this one: going on from {floor} (the log is at {head})"
    )
    if context.as_json:
        context.write(json.dumps({"type": "reset", **reset}))


def _decode_event(message: SseMessage) -> Document:
    try:
        decoded: object = json.loads(message.data)
    except (ValueError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"pos": message.id, "type": message.event, "subject": EMPTY_CELL}


def _stdout_fd() -> int | None:
    """Where the lines go, if that can be waited on."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
