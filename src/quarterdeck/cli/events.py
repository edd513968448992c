"""`qd events`: lists and follows the event log, one row per transition in commit order."""

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
    return CommandTable(
        (list_command,), {"events": "List the events of a zone. `qd events` is short for `qd events list`."}
    )


_LIST_OPTIONS = (
    Option("--follow", "Keep printing new events, starting now or after --after.", short="-f"),
    Option("--after", "Only events after this position.", NUMBER),
    Option("--limit", "Maximum number of events.", NUMBER),
    Option("--type", "Only events of this type; repeatable.", TEXT, many=True),
    Option("--subject", "Only events about this subject.", TEXT),
)


def list_(context: Context) -> int:
    types = ",".join(str(event_type) for event_type in context.values("type"))
    query = {"after": context.number("after"), "types": types or None, "subject": context.text("subject")}
    limit = context.number("limit")
    if context.flag("follow") and limit != 0:
        return follow(context, query, limit)
    query["limit"] = limit
    page = context.server().get(context.zone_path("events"), query)
    context.show(page, lambda document: _table(context, page_items(document)))
    if page.get("next_after") is not None and not context.as_json:
        context.note(f"More events may exist. Use --after {cell(page['next_after'])} to continue.")
    return 0


def _table(context: Context, events: list[Document]) -> str:
    if not events:
        return f"No events found in zone {context.zone}."
    field_names = ("pos", "at", "type", "subject", "actor")
    rows = [[*(event.get(name) for name in field_names), _format_transition(event)] for event in events]
    return table(("POS", "TIME", "TYPE", "SUBJECT", "ACTOR", "CHANGE"), rows, context.styler)


def _format_transition(event: Document) -> str:
    from_state, to_state = event.get("from"), event.get("to")
    return "" if from_state is None and to_state is None else f"{cell(from_state)} → {cell(to_state)}"


_COLUMN_WIDTHS = (("pos", 6), ("at", 24), ("type", 17), ("subject", 36), ("actor", 1))
"""Fixed widths that fit typical values: each line is printed before the next event arrives."""


def follow(context: Context, query: Query, limit: int | None) -> int:
    """Print events until Ctrl-C, or until `limit` events have been printed."""
    stream = EventStream(
        lambda: connect_running_server(context.server_location, context.environ),
        context.zone_path("events"),
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
    context.note(f"The log does not have the requested position. Continuing from {floor}; the newest is {head}.")
    if context.as_json:
        context.write(json.dumps({"type": "reset", **reset}))


def _decode_event(message: SseMessage) -> Document:
    try:
        decoded: object = json.loads(message.data)
    except (ValueError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"pos": message.id, "type": message.event, "subject": EMPTY_CELL}


def _stdout_fd() -> int | None:
    """Return the file descriptor of stdout, which is used to detect a closed pipe. Returns None if stdout has none."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
