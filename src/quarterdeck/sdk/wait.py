"""Waiting for the end of invocations, or of tasks, without asking over and over.

One stream for everybody who waits in a zone: it hears of every ending, and wakes whoever waits for that one, who then
looks. Hearing is only a hint. Whoever waits looks once when the stream stands (it may have been over before), again
whenever the stream had to be opened anew, and now and then in any case, so a stream that cannot be had makes waiting
slower and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.event_stream import AsyncEventStream
from quarterdeck.sdk.transport import Transport

log = logging.getLogger("quarterdeck.sdk")
POLL_SECONDS = 30.0
"""Between two looks of somebody who waits while the stream stands and says nothing."""
POLL_WITHOUT_STREAM_SECONDS = 2.0
"""The same while there is no stream."""
STREAM_KEEP_SECONDS = 20.0
"""For how long the stream is kept when nobody waits: the next may come soon."""


class Finishable(Protocol):
    """Something that comes to an end."""

    @property
    def is_over(self) -> bool: ...


T = TypeVar("T", bound=Finishable)


class EndWaiter(Generic[T]):
    """The endings of one zone's invocations, or tasks, heard by one stream of the events that may be one."""

    def __init__(self, transport: Transport, path: str, types: Sequence[str]) -> None:
        self._transport = transport
        self._path = path
        self._types = ",".join(types)
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_connected = False
        self._connection_known = asyncio.Event()
        """Whether it is known whether it stands."""
        self._stop_timer: asyncio.TimerHandle | None = None

    async def wait(self, subject: str, fetch: Callable[[str], Awaitable[T]]) -> T:
        """The thing of this id, once it is over."""
        async with self._subscribe(subject) as changed:
            while True:
                changed.clear()
                found = await fetch(subject)
                if found.is_over:
                    return found
                poll_seconds = POLL_SECONDS if self._is_connected else POLL_WITHOUT_STREAM_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(poll_seconds):
                        await changed.wait()

    @contextlib.asynccontextmanager
    async def _subscribe(self, subject: str) -> AsyncIterator[asyncio.Event]:
        changed = asyncio.Event()
        self._waiters.setdefault(subject, set()).add(changed)
        try:
            self._start_stream()
            # Listening before looking: what ends in between is heard of.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_WITHOUT_STREAM_SECONDS):
                    await self._connection_known.wait()
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
        if self._task is None or self._task.done():
            self._connection_known.clear()
            self._transport.add_close_callback(self._stop_stream)
            self._task = asyncio.get_running_loop().create_task(self._run_stream())

    def _stop_stream(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._transport.remove_close_callback(self._stop_stream)

    async def _run_stream(self) -> None:
        stream = AsyncEventStream(self._transport, self._path, {"types": self._types}, self._on_connection_change)
        try:
            async with contextlib.aclosing(stream.messages()) as messages:
                async for message in messages:
                    if message.event == "reset":
                        self._wake_all()
                    else:
                        self._wake(_subject_decoder.decode(message.data).subject)
        except Problem as problem:
            # Whoever waits goes on without it, by looking, and meets the same refusal where it concerns them.
            log.warning("endings cannot be followed, and are looked for instead: %s", problem.detail)
        finally:
            self._is_connected = False
            self._connection_known.set()

    def _on_connection_change(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        if is_connected:
            self._connection_known.set()
        # What ended while nobody listened must be looked for.
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
