"""Wake-ups: they make readers of the log read at once instead of at their next interval.

After a commit the process wakes its own subscribers, and those of other processes through a transport
(`store.postgres_notify` on PostgreSQL; SQLite has one process and needs none). A wake-up has no content, several may
arrive as one, and one may be lost with its connection. So subscribers also poll at an interval, and a lost wake-up only
adds latency.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger("quarterdeck.wakeups")
WakeupCallback = Callable[[], None]


class WakeupTransport(Protocol):
    """Sends wake-ups to the other processes on the same database, and receives theirs."""

    def start(self, on_wakeup: WakeupCallback) -> None:
        """Start listening. `on_wakeup` is called on the event loop for every wake-up from another process."""

    def send(self) -> None:
        """Wake the other processes soon. Never waits and never fails: a wake-up may be late or lost."""

    async def stop(self) -> None: ...


class Wakeups:
    """The wake-ups of one process. Everything here runs on the event loop."""

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
        """Call `callback` whenever there may be something new, in this process or another. Return a function that
        unsubscribes. The callback should only set an event: it runs between a commit and the response to its caller."""
        self._last_subscription_id += 1
        subscription_id = self._last_subscription_id
        self._subscribers[subscription_id] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(subscription_id, None)

        return unsubscribe

    @contextmanager
    def subscribed(self, callback: WakeupCallback) -> Iterator[None]:
        unsubscribe = self.subscribe(callback)
        try:
            yield
        finally:
            unsubscribe()

    def notify(self) -> None:
        """Called after a commit by this process. Wakes its own subscribers now, and other processes shortly."""
        self._notify_subscribers()
        if self._transport:
            self._transport.send()

    def _notify_subscribers(self) -> None:
        for callback in [*self._subscribers.values()]:
            try:
                callback()
            except Exception:  # a bug in one subscriber must not block the others, nor fail the commit
                log.exception("a wake-up callback failed")
