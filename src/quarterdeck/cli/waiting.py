"""`qd invocation wait`: until an invocation has ended, as its events tell."""

from __future__ import annotations

import time

from quarterdeck.cli.context import Context
from quarterdeck.client.api import Document
from quarterdeck.client.discovery import again
from quarterdeck.client.event_stream import Follower, Late
from quarterdeck.client.http_sync import TimedOut

ENDS = ("succeeded", "failed", "timed_out", "canceled", "dead")


def until_ended(context: Context, path: str, invocation_id: str) -> Document:
    """The invocation as it ended. Looked at first: then its whole story is followed from the beginning of the log, and
    what happens between the two is in it."""
    server, limit = context.server(), context.where.timeout
    found = server.get(path)
    if found.get("status") in ENDS:
        return found
    types = ",".join(f"invocation.{end}" for end in ENDS)
    follower = Follower(
        lambda: again(context.where, context.environ),
        context.in_zone("events"),
        {"after": 0, "types": types, "subject": invocation_id},
        context.note,
        None,
    )
    follower.deadline = None if limit is None else time.monotonic() + limit
    try:
        next(message for message in follower.messages(server) if message.event != "reset")
    except Late:
        raise TimedOut(
            "wait_timeout", f"The invocation {invocation_id} has not ended within {limit:g} s.", id=invocation_id
        ) from None
    # By a connection of its own: the other one is taken by a stream that has no end.
    return context.server().get(path)
