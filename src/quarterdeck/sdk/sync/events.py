"""Written by `make sdk` from `sdk/events.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quarterdeck.sdk import events
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.types import Event


class Events:
    def __init__(self, inner: events.Events, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def list(self, *, after: int = 0, types: Sequence[str] = (), subject: str | None = None) -> Iterator[Event]:
        """What is in the log, oldest first, from behind a position to the end there is now."""
        return self._loop_thread.iterate(self._inner.list(after=after, types=types, subject=subject))

    def follow(
        self, *, after: int | None = None, types: Sequence[str] = (), subject: str | None = None
    ) -> Iterator[Event]:
        """What happens, as it happens, without an end: from behind a position, or from now on. Connections that are cut
        are made again, and nothing is missed by it; where the log no longer holds what was missed, `LogReset` is
        raised."""
        return self._loop_thread.iterate(self._inner.follow(after=after, types=types, subject=subject))
