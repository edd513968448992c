"""`qd top`: agents, queues and rates as they are now, drawn again as things happen.

Two threads feed the picture. One follows the zone's events, counts them by kind and says that something has happened;
the other looks at what can only be looked at (who is there, how much waits), not more often than every two seconds and
only if something has happened, or if nothing was looked at for ten (the queues and the monitors, which are many, only
then). The picture itself is drawn once a second, because its rates and ages move with time, and at once when the
terminal is resized.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quarterdeck.cli.command_table import Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.monitor import is_live
from quarterdeck.cli.top_view import Frame, Rates, Seen, Size, draw
from quarterdeck.client.api import Document, Query, Server, cursor_of, items_of
from quarterdeck.client.event_stream import Follower
from quarterdeck.core.errors import Fault, Forbidden

if TYPE_CHECKING:
    from quarterdeck.cli.terminal import Screen

_KINDS = ("created", "assigned", "started", "paused", "resumed", "completed", "failed", "aborted")
_OF_AGENTS = ("registered", "changed", "degraded", "recovered", "stale", "revived", "terminated")
TYPES = ",".join([*(f"task.{kind}" for kind in _KINDS), *(f"agent.{kind}" for kind in _OF_AGENTS)])
_AGAIN, _NET, _DRAWN = 2.0, 10.0, 1.0
"""Seconds: between two looks, between two looks when nothing happens, between two pictures."""
_QUIT = frozenset("qQ\x04")
_PAGE, _PAGES = 100, 5
"""What is looked at of a list: tasks are shown with all they are given, so pages are small."""
_FLEETS = 8


def noun() -> Noun:
    once = Option("--once", "Print one picture and end; what is no terminal gets this anyway.")
    return Noun((Command(("top",), "Watch agents, queues and rates.", top, options=(once,), description=_KEYS),), {})


_KEYS = "q quits. Rates are of the last ten seconds, and known only to whoever watches: --once has none."


def top(context: Context) -> int:
    if context.flag("once") or context.as_json or not _is_watched(context):
        return _once(context)
    _Live(context).run()
    return 0


def _is_watched(context: Context) -> bool:
    streams = (sys.stdin, sys.stdout)
    return context.environ.get("TERM") != "dumb" and all(one is not None and one.isatty() for one in streams)


def _once(context: Context) -> int:
    seen = look(context, context.server())
    document: Document = {
        "zone": context.zone,
        "stats": seen.stats,
        "agents": [*seen.agents],
        "running": [*seen.running],
        "pending": [*seen.pending],
        "monitors": [*seen.monitors],
        "truncated": seen.more_agents or seen.more_running or seen.more_pending,
    }
    frame = Frame(context.zone, seen, time.time(), context.paint)
    context.show(document, lambda _: "\n".join(draw(frame, Size(_columns(), None))))
    return 0


def _columns() -> int:
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 200


def look(context: Context, server: Server, before: Seen | None = None) -> Seen:
    """What can only be looked at; with `before`, all but the queues, which are long, and the
    fleets' monitors, which are asked for one by one."""
    agents, more_agents = _listed(server, context.work("agents"), {})
    tasks = context.work("agent-tasks")
    running, more_running = _listed(server, tasks, {"status": "RUNNING"})
    if before is not None:
        pending, more_pending, monitors = before.pending, before.more_pending, before.monitors
    else:
        pending, more_pending = _listed(server, tasks, {"status": "PENDING"})
        monitors = _monitors(context, server)
    stats = _stats(context, server)
    return Seen(stats, agents, more_agents, running, more_running, pending, more_pending, monitors)


def _monitors(context: Context, server: Server) -> Sequence[Document]:
    """Of the newest fleets: a line has room for so many."""
    page = server.get(context.work("fleets"), {"limit": _FLEETS})
    numbers = [one.get("fleet_id") for one in items_of(page, "fleets")]
    found = [server.get(context.work("fleets", str(number), "monitor")) for number in numbers]
    return [{**one, "is_live": is_live(one)} for one in found]


def _listed(server: Server, path: str, query: Query) -> tuple[Sequence[Document], bool]:
    """Some pages of a list, and whether there are more."""
    items: list[Document] = []
    asked = {**query, "limit": _PAGE}
    for _ in range(_PAGES):
        page = server.get(path, asked)
        items += items_of(page)
        cursor = cursor_of(page)
        if not isinstance(cursor, str):
            return items, False
        asked["cursor"] = cursor
    return items, True


def _stats(context: Context, server: Server) -> Document | None:
    try:
        told = server.get(context.work("coordinator", "status"), {"workspace": context.zone}).get("stats")
    except Forbidden:
        return None  # it is asked by ADMIN and OWNER only: then what was listed is counted
    return told if isinstance(told, dict) else None


class _Live:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._rates = Rates(time.time())
        self._happened = threading.Event()
        self._over = threading.Event()
        self._trouble: str | None = None
        self._wrong: Exception | None = None
        """What ends it: a refusal, which no trying again mends."""
        # What is refused at first is told as by any command, on a screen that nobody has touched yet.
        self._seen = look(context, context.server())

    def run(self) -> None:
        from quarterdeck.cli.terminal import Screen

        with Screen() as screen:
            for work in (self._follow, self._look_again):
                threading.Thread(target=self._run, args=(work, screen), daemon=True).start()
            keys = ""
            while self._wrong is None and not _QUIT & {*keys}:
                screen.draw(draw(self._frame(), Size(*screen.size())))
                keys = screen.wait(self._until_next())
            self._over.set()
        if self._wrong is not None:
            raise self._wrong

    def _frame(self) -> Frame:
        paint = self._context.paint
        return Frame(self._context.zone, self._seen, time.time(), paint, self._rates, self._trouble)

    def _until_next(self) -> float:
        """Rates are of whole seconds: drawn when one is over, they do not jump."""
        return _DRAWN - time.time() % _DRAWN

    def _run(self, work: Callable[[], None], screen: Screen) -> None:
        try:
            work()
        except Exception as wrong:
            # Whatever it is, a picture that nobody feeds would go on looking well: whoever draws it raises this.
            self._wrong = wrong
            screen.wake()

    def _follow(self) -> None:
        follower = Follower(self._context.again, self._context.in_zone("events"), {"types": TYPES}, self._say, None)
        for message in follower.messages(self._context.server()):
            self._rates.note(message.event, time.time())
            self._happened.set()

    def _say(self, text: str) -> None:
        self._trouble = text
        self._happened.set()

    def _look_again(self) -> None:
        server: Server | None = None
        queues_at = time.monotonic()
        while not self._over.wait(_AGAIN):
            self._happened.wait(_NET - _AGAIN)
            self._happened.clear()
            try:
                server = server or self._context.again()
                if server is None:
                    self._trouble = "no server answers"
                    continue
                is_time = time.monotonic() - queues_at >= _NET
                self._seen = look(self._context, server, None if is_time else self._seen)
                self._trouble = None
                queues_at = time.monotonic() if is_time else queues_at
            except Fault as fault:
                # It may pass: the last picture stays, and says that it is old.
                self._trouble, server = fault.detail, None
