"""Messages between the members of a fleet: send, broadcast, poll, show, acknowledge, cancel, follow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from quarterdeck.cli.command_table import (
    DURATION,
    FILE,
    MEMBER,
    MESSAGE,
    NUMBER,
    TEXT,
    Argument,
    Command,
    Noun,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.fleet_common import (
    AGENT,
    FULL,
    agent,
    agent_or_none,
    block,
    document,
    fleet,
    fleets,
    given_text,
    picked,
    plainly,
    tell,
)
from quarterdeck.client.api import Document, Query, Server, items_of
from quarterdeck.core.errors import NotFound

_TELLING_MS = 3_000
"""How long a broadcast waits until its recipients were told in their panes: so many are counted as delivered."""


def noun() -> Noun:
    stdin = (Argument("stdin", "-", choice("-"), required=False),)
    return Noun(
        (
            Command(("message", "send"), "Send a message.", plainly(send), stdin, _SEND, _SENDING),
            Command(
                ("message", "broadcast"),
                "Send a message to all other members.",
                plainly(broadcast),
                stdin,
                (AGENT, *_SAID, FULL),
                _SENDING,
            ),
            Command(
                ("message", "poll"),
                "Print what waits for a member.",
                plainly(poll),
                options=_POLL,
                description=_POLLING,
            ),
            Command(("message", "show"), "Show one message.", plainly(show), options=_ONE),
            Command(("message", "ack"), "Acknowledge a message, as its recipient.", plainly(ack), options=_ONE),
            Command(("message", "cancel"), "Cancel a message, as its sender.", plainly(cancel), options=_ONE),
            Command(
                ("message", "follow"),
                "Print what waits for a member, and what comes.",
                plainly(follow),
                options=(AGENT, _AFTER, FULL),
                description=_FOLLOWING,
            ),
        ),
        {"message": "What the members of a fleet say to each other."},
    )


_SAID = (
    Option("--text", "What is said (- for standard input).", TEXT),
    Option("--text-file", "A file that says it (- for standard input).", FILE),
    Option("--key", "Idempotency key: repeating the command sends nothing twice.", TEXT),
)
_SEND = (
    AGENT,
    Option("--to", "To whom.", MEMBER, required=True),
    *_SAID,
    FULL,
    Option("--quiet", "Print the id alone."),
)
_SENDING = "What is said is given by --text, by --text-file, or with - on standard input."
_AFTER = Option("--after", "Only those with a higher id.", NUMBER)
_POLL = (
    AGENT,
    FULL,
    Option("--wait", "How long to wait if there are none: 30, 5m.", DURATION),
    Option("--oldest-first", "In the order in which they came."),
    Option("--limit", "How many at most, 1 to 500 [default: 100].", NUMBER),
    _AFTER,
)
_POLLING = "What nobody has acknowledged, newest first. Without --full texts are clipped to QD_MAX_TEXT_LEN (200)."
_ONE = (AGENT, Option("--task-id", "The message.", MESSAGE), Option("--message-id", "The same.", MESSAGE), FULL)
_FOLLOWING = "Until Ctrl-C. With --json each is an object on a line of its own."


# -- sending ---------------------------------------------------------------------------------------------------------


def send(context: Context) -> int:
    if context.flag("full") and context.flag("quiet"):
        raise Usage("usage", "--full or --quiet: one of them.")
    sent = _post(context, context.number("to"))
    if context.flag("quiet") and not context.as_json:
        context.write(str(sent.get("task_id")))
    else:
        _tell_one(context, sent, "Message sent.")
    return 0


def broadcast(context: Context) -> int:
    told = _post(context, "*", wait_ms=_TELLING_MS)
    summary = told.get("summary")
    message = summary if isinstance(summary, dict) else {}
    counts = picked(told, "recipients", "delivered")

    def line() -> str:
        said = f"broadcast id={message.get('task_id')} " + " ".join(f"{n}={v}" for n, v in counts.items())
        return f"{said}\n{block(context, message)}" if context.flag("full") else said

    tell(context, {**document(context, message), **counts}, line)
    return 0


def _post(context: Context, to: object, **more: int) -> Document:
    """Under a key of this run, if none was given: should the answer be lost, whatever sends it again sends it once."""
    who, text = agent(context), given_text(context, context.text("stdin"))
    body: Document = {"from_agent_id": who, "to_agent_id": to, "text": text, **more}
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    return context.server().call("POST", fleets(fleet(context), "messages"), body=body, key=key).document


# -- one message -----------------------------------------------------------------------------------------------------


def show(context: Context) -> int:
    where, number = fleet(context), _number(context)
    server = context.server()
    who = agent_or_none(context)
    if who is not None:
        _require_member(server, where, who)
    found = server.get(fleets(where, "messages", number))
    tell(context, document(context, found), lambda: block(context, found))
    return 0


def _require_member(server: Server, where: int, who: int) -> None:
    """Nobody's business but the fleet's: who has left it, or never was in it, is told so before anything is read."""
    if server.get(fleets(where, "members", who)).get("status") != "active":
        raise NotFound("fleet_member_not_found", f"agent {who} is not a member of fleet {where}.")


def ack(context: Context) -> int:
    return _end(context, "ack", "Message acknowledged.")


def cancel(context: Context) -> int:
    return _end(context, "cancel", "Task canceled.")


def _end(context: Context, verb: str, said: str) -> int:
    path = fleets(fleet(context), "messages", _number(context), verb)
    ended = context.server().call("POST", path, body={"agent_id": agent(context)}).document
    # Whoever ends it knows what it said: that is not paid for twice.
    _tell_one(context, ended, said, with_text=context.flag("full"))
    return 0


def _number(context: Context) -> int:
    given = {context.number("task_id"), context.number("message_id")} - {None}
    if len(given) != 1:
        raise Usage("usage", "Which message? Give --task-id (or --message-id, which is the same).")
    [number] = given
    assert number is not None  # taken out above
    return number


# -- many ------------------------------------------------------------------------------------------------------------


def poll(context: Context) -> int:
    order = "asc" if context.flag("oldest_first") else "desc"
    inbox = _Inbox(context, order=order, limit=context.number("limit"))
    wait = context.number("wait")
    found = inbox.awaited(wait) if wait else inbox.ask(context.server(), 0)
    shown = [document(context, one) for one in found]
    tell(context, shown, lambda: "\n\n".join(block(context, one) for one in found) or "No messages found.")
    if inbox.has_more and not context.as_json:
        context.note("there are more than these: --limit says how many are printed, --after where to begin")
    return 0


def follow(context: Context) -> int:
    inbox = _Inbox(context, order="asc")

    def told(found: list[Document]) -> bool:
        for message in found:
            inbox.after = _id(message)
            _tell_next(context, message)
        return False

    inbox.trail(told)
    return 0


class _Inbox:
    """What a member has not acknowledged yet."""

    def __init__(self, context: Context, *, order: str, limit: int | None = None) -> None:
        self._context = context
        self._path = fleets(fleet(context), "members", agent(context), "inbox")
        self._order = order
        self._limit = limit
        self.after = context.number("after")
        self.has_more = False

    def ask(self, server: Server, wait_ms: int) -> list[Document]:
        query: Query = {
            "status": "input_required",
            "order": self._order,
            "after": self.after,
            "limit": self._limit,
            # Also where it does not wait: this is who acts, and not whoever reads what was said.
            "wait_ms": wait_ms,
        }
        page = server.get(self._path, query)
        self.has_more = page.get("next_cursor") is not None
        return items_of(page, "messages")

    def awaited(self, seconds: int) -> list[Document]:
        """What is there; where nothing is, what comes first, if it comes in time."""
        end = time.monotonic() + seconds
        found: list[Document] = []

        def is_enough(more: list[Document]) -> bool:
            found.extend(more)
            return bool(more) or time.monotonic() >= end

        self.trail(is_enough, end)
        return found

    def trail(self, taken: Callable[[list[Document]], bool], end: float | None = None) -> None:
        from quarterdeck.cli.long_poll import WAIT_MS, trail  # whoever does not wait does not pay for it

        def step(server: Server) -> bool:
            left = WAIT_MS if end is None else min(WAIT_MS, max(round((end - time.monotonic()) * 1000), 0))
            return taken(self.ask(server, left))

        trail(self._context, step, end=end)


def _id(message: Document) -> int | None:
    found = message.get("task_id")
    return found if isinstance(found, int) else None


def _tell_one(context: Context, message: Document, said: str, *, with_text: bool = True) -> None:
    tell(context, document(context, message), lambda: f"{said}\n{block(context, message)}" if with_text else said)


def _tell_next(context: Context, message: Document) -> None:
    """One of those that have no end: it is seen as it comes, a blank line after it."""
    tell(context, document(context, message), lambda: f"{block(context, message)}\n\n")
    sys.stdout.flush()
