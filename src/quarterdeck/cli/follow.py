"""`qd events --follow`: what happens, as it happens."""

from __future__ import annotations

import json
import sys

from quarterdeck.cli.context import Context
from quarterdeck.cli.output import NOTHING, cell, pad
from quarterdeck.client.api import Document, Query
from quarterdeck.client.discovery import again
from quarterdeck.client.event_stream import Follower, Message, NobodyReads

_COLUMNS = (("pos", 6), ("at", 24), ("type", 17), ("subject", 36), ("actor", 1))
"""As wide as they usually are: a line must be printed before the next is known."""


def follow(context: Context, query: Query, limit: int | None) -> int:
    """Prints until it is interrupted, or until so many have been printed."""
    follower = Follower(
        lambda: again(context.where, context.environ), context.in_zone("events"), query, context.note, _output()
    )
    left = limit
    try:
        for message in follower.messages(context.server()):
            told = _document(message)
            if message.event == "reset":
                _say_reset(context, told)
            else:
                context.write(message.data if context.as_json else line_of(told))
                left = None if left is None else left - 1
            sys.stdout.flush()
            if left == 0:
                break
    except NobodyReads:
        raise BrokenPipeError from None
    return 0


def line_of(event: Document) -> str:
    begun, ended = event.get("from"), event.get("to")
    told = [pad(cell(event.get(name)), width) for name, width in _COLUMNS]
    move = "" if begun is None and ended is None else f"{cell(begun)} → {cell(ended)}"
    return "  ".join([*told, move]).rstrip()


def _say_reset(context: Context, told: Document) -> None:
    floor, head = cell(told.get("floor")), cell(told.get("head"))
    context.note(
        f"that position is not in the log any more, or not in this one: going on from {floor} (the log is at {head})"
    )
    if context.as_json:
        context.write(json.dumps({"type": "reset", **told}))


def _document(message: Message) -> Document:
    try:
        told: object = json.loads(message.data)
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {"pos": message.id, "type": message.event, "subject": NOTHING}


def _output() -> int | None:
    """Where the lines go, if that can be waited on."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
