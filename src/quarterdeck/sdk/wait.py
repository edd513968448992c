"""Waits for invocations or tasks to end, using an event stream instead of frequent polling.

All waiters of an `EndWaiter` share one stream. An event wakes the waiters for its subject, and each then fetches the
object. The event is only a hint. A waiter also fetches every 30 s, and when the stream connects or is lost, because the
object may have ended while there was no connection. Without a stream, a waiter fetches every 2 s, so waiting is slower
but correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.events import AsyncEventStream
from quarterdeck.sdk.transport import Transport

log = logging.getLogger("quarterdeck.sdk")
POLL_SECONDS = 30.0
"""Time between two fetches of a waiter while the stream is connected and silent."""
POLL_WITHOUT_STREAM_SECONDS = 2.0
"""Time between two fetches of a waiter without a stream."""
STREAM_KEEP_SECONDS = 20.0
"""How long the stream stays open without waiters, in case another waiter arrives soon."""


class Finishable(Protocol):
    """An invocation or a task."""

    @property
    def is_over(self) -> bool: ...


T = TypeVar("T", bound=Finishable)


async def wait_at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait until the event is set or the time has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class EndWaiter(Generic[T]):
    """Waits for invocations or tasks in one zone, using one stream of the events that may end them."""

    def __init__(self, transport: Transport, path: str, event_types: Sequence[str]) -> None:
        self._transport = transport
        self._path = path
        self._event_types = ",".join(event_types)
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._stream_task: asyncio.Task[None] | None = None
        self._is_connected = False
        self._connection_known = asyncio.Event()
        """Set once the first connection has succeeded or failed."""
        self._stop_timer: asyncio.TimerHandle | None = None

    async def wait(self, subject: str, fetch: Callable[[str], Awaitable[T]]) -> T:
        """Wait until the object with this id has ended, and return it."""
        async with self._subscribe(subject) as changed:
            while True:
                changed.clear()
                current = await fetch(subject)
                if current.is_over:
                    return current
                poll_seconds = POLL_SECONDS if self._is_connected else POLL_WITHOUT_STREAM_SECONDS
                await wait_at_most(poll_seconds, changed)

    @contextlib.asynccontextmanager
    async def _subscribe(self, subject: str) -> AsyncIterator[asyncio.Event]:
        changed = asyncio.Event()
        self._waiters.setdefault(subject, set()).add(changed)
        try:
            self._start_stream()
            # Subscribe before the first fetch, so that an end in between is not missed.
            await wait_at_most(POLL_WITHOUT_STREAM_SECONDS, self._connection_known)
            yield changed
        finally:
            self._waiters[subject].discard(changed)
            if not self._waiters[subject]:
                del self._waiters[subject]
            if not self._waiters:
                self._stop_timer = asyncio.get_running_loop().call_later(STREAM_KEEP_SECONDS, self._stop_stream)

    def _start_stream(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        if self._stream_task is None or self._stream_task.done():
            self._connection_known.clear()
            self._transport.add_close_callback(self._stop_stream)
            self._stream_task = asyncio.get_running_loop().create_task(self._run_stream())

    def _stop_stream(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        if self._stream_task is not None:
            self._stream_task.cancel()
            self._stream_task = None
        self._transport.remove_close_callback(self._stop_stream)

    async def _run_stream(self) -> None:
        stream = AsyncEventStream(self._transport, self._path, {"types": self._event_types}, self._on_connection_change)
        try:
            async with contextlib.aclosing(stream.messages()) as messages:
                async for message in messages:
                    if message.event == "reset":
                        self._wake_all()
                    else:
                        self._wake(_subject_decoder.decode(message.data).subject)
        except Problem as problem:
            # The waiters fall back to polling. If the problem also affects their own calls, they raise it.
            log.warning("cannot follow the event stream, polling instead: %s", problem.detail)
        finally:
            self._is_connected = False
            self._connection_known.set()

    def _on_connection_change(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        if is_connected:
            self._connection_known.set()
        # Objects may have ended while there was no connection.
        self._wake_all()

    def _wake(self, subject: str) -> None:
        for changed in self._waiters.get(subject, ()):
            changed.set()

    def _wake_all(self) -> None:
        for subject in self._waiters:
            self._wake(subject)


class _EventSubject(msgspec.Struct, frozen=True):
    subject: str


_subject_decoder = msgspec.json.Decoder(_EventSubject)
