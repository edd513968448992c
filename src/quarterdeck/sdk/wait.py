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
from quarterdeck.sdk.event_stream import Following
from quarterdeck.sdk.transport import Remote

log = logging.getLogger("quarterdeck.sdk")
LOOK_SECONDS = 30.0
"""Between two looks of somebody who waits while the stream stands and says nothing."""
DEAF_SECONDS = 2.0
"""The same while there is no stream."""
LINGER_SECONDS = 20.0
"""For how long the stream is kept when nobody waits: the next may come soon."""


class Ends(Protocol):
    """Something that comes to an end."""

    @property
    def is_over(self) -> bool: ...


T = TypeVar("T", bound=Ends)


class Endings(Generic[T]):
    """The endings of one zone's invocations, or tasks, heard by one stream of the events that may be one."""

    def __init__(self, remote: Remote, path: str, types: Sequence[str]) -> None:
        self._remote = remote
        self._path = path
        self._types = ",".join(types)
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stands = False
        self._settled = asyncio.Event()
        """Whether it is known whether it stands."""
        self._lingering: asyncio.TimerHandle | None = None

    async def wait(self, subject: str, look: Callable[[str], Awaitable[T]]) -> T:
        """The thing of this id, once it is over."""
        async with self._listening(subject) as heard:
            while True:
                heard.clear()
                found = await look(subject)
                if found.is_over:
                    return found
                patience = LOOK_SECONDS if self._stands else DEAF_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await heard.wait()

    @contextlib.asynccontextmanager
    async def _listening(self, subject: str) -> AsyncIterator[asyncio.Event]:
        heard = asyncio.Event()
        self._waiting.setdefault(subject, set()).add(heard)
        try:
            self._begin()
            # Listening before looking: what ends in between is heard of.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEAF_SECONDS):
                    await self._settled.wait()
            yield heard
        finally:
            self._waiting[subject].discard(heard)
            if not self._waiting[subject]:
                del self._waiting[subject]
            if not self._waiting:
                self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._stop)

    def _begin(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._task is None or self._task.done():
            self._settled.clear()
            self._remote.at_close(self._stop)
            self._task = asyncio.get_running_loop().create_task(self._listen())

    def _stop(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._remote.not_at_close(self._stop)

    async def _listen(self) -> None:
        following = Following(self._remote, self._path, {"types": self._types}, self._told)
        try:
            async with contextlib.aclosing(following.messages()) as messages:
                async for message in messages:
                    if message.event == "reset":
                        self._wake_all()
                    else:
                        self._wake(_subject.decode(message.data).subject)
        except Problem as problem:
            # Whoever waits goes on without it, by looking, and meets the same refusal where it concerns them.
            log.warning("endings cannot be followed, and are looked for instead: %s", problem.detail)
        finally:
            self._stands = False
            self._settled.set()

    def _told(self, stands: bool) -> None:
        self._stands = stands
        if stands:
            self._settled.set()
        # What ended while nobody listened must be looked for.
        self._wake_all()

    def _wake(self, subject: str) -> None:
        for heard in self._waiting.get(subject, ()):
            heard.set()

    def _wake_all(self) -> None:
        for subject in self._waiting:
            self._wake(subject)


class _Subject(msgspec.Struct, frozen=True):
    subject: str


_subject = msgspec.json.Decoder(_Subject)
