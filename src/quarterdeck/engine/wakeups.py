"""Waking: whoever follows the log looks at once instead of at its next turn.

After a commit the process wakes its own subscribers, and has the others' woken by a carrier (`store.notify` on
PostgreSQL; SQLite has one process and needs none). A wake says only "look": it carries nothing, several may arrive as
one, and one may be lost with the connection that carried it. So whoever subscribes looks again at an interval, too,
and nothing but latency depends on a wake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("quarterdeck.wake")
Wake = Callable[[], None]


class Carrier(Protocol):
    """Takes wakes to the other processes on the same database, and brings theirs."""

    def start(self, heard: Wake) -> None:
        """Begins to listen; `heard` is called on the loop for every wake of another process."""

    def send(self) -> None:
        """Has the others woken soon. Never waits, and never fails: a wake that cannot be sent is late or lost."""

    async def stop(self) -> None: ...


class Wakes:
    """One process's wakes. Everything here happens on the loop."""

    def __init__(self, carrier: Carrier | None = None) -> None:
        self._carrier = carrier
        self._subscribers: dict[int, Wake] = {}
        self._numbers = 0

    def start(self) -> None:
        if self._carrier:
            self._carrier.start(self._wake)

    async def stop(self) -> None:
        if self._carrier:
            await self._carrier.stop()

    def subscribe(self, callback: Wake) -> Callable[[], None]:
        """Has `callback` called whenever there may be something new, here or elsewhere; the answer unsubscribes.
        It should do no more than set an event: it runs between a commit and the answer to whoever waited for it."""
        self._numbers += 1
        number = self._numbers
        self._subscribers[number] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(number, None)

        return unsubscribe

    def committed(self) -> None:
        """Something was committed by this process: its own subscribers learn of it now, the others' in a moment."""
        self._wake()
        if self._carrier:
            self._carrier.send()

    def _wake(self) -> None:
        for callback in [*self._subscribers.values()]:
            try:
                callback()
            except Exception:  # one subscriber's defect must not keep the others asleep, nor fail the commit
                log.exception("a subscriber failed to wake")
