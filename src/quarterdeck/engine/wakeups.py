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
WakeupCallback = Callable[[], None]


class WakeupTransport(Protocol):
    """Takes wakes to the other processes on the same database, and brings theirs."""

    def start(self, on_wakeup: WakeupCallback) -> None:
        """Begins to listen; `heard` is called on the loop for every wake of another process."""

    def send(self) -> None:
        """Has the others woken soon. Never waits, and never fails: a wake that cannot be sent is late or lost."""

    async def stop(self) -> None: ...


class Wakeups:
    """One process's wakes. Everything here happens on the loop."""

    def __init__(self, transport: WakeupTransport | None = None) -> None:
        self._transport = transport
        self._subscribers: dict[int, WakeupCallback] = {}
        self._last_subscription_id = 0

    def start(self) -> None:
        if self._transport:
            self._transport.start(self._notify_subscribers)

    async def stop(self) -> None:
        if self._transport:
            await self._transport.stop()

    def subscribe(self, callback: WakeupCallback) -> Callable[[], None]:
        """Has `callback` called whenever there may be something new, here or elsewhere; the answer unsubscribes.
        It should do no more than set an event: it runs between a commit and the answer to whoever waited for it."""
        self._last_subscription_id += 1
        subscription_id = self._last_subscription_id
        self._subscribers[subscription_id] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(subscription_id, None)

        return unsubscribe

    def notify(self) -> None:
        """Something was committed by this process: its own subscribers learn of it now, the others' in a moment."""
        self._notify_subscribers()
        if self._transport:
            self._transport.send()

    def _notify_subscribers(self) -> None:
        for callback in [*self._subscribers.values()]:
            try:
                callback()
            except Exception:  # one subscriber's defect must not keep the others asleep, nor fail the commit
                log.exception("a subscriber failed to wake")
