"""Written by `make sdk` from `sdk/sessions.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from quarterdeck.sdk import sessions
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import SpawnOptions
from quarterdeck.sdk.types import Receipt, Session, SessionStatus


class Sessions:
    def __init__(self, inner: sessions.Sessions, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def spawn(self, application_id: str, *, key: str | None = None, **options: Unpack[SpawnOptions]) -> Session:
        """Spawns a session of an application. With the same `key`, the same session while it lives."""
        return self._loop_thread.run(self._inner.spawn(application_id, key=key, **options))

    def get(self, session_id: str) -> Session:
        return self._loop_thread.run(self._inner.get(session_id))

    def list(
        self,
        *,
        status: SessionStatus | None = None,
        application_id: str | None = None,
        parent_id: str | None = None,
        root_id: str | None = None,
    ) -> Iterator[Session]:
        """Newest first."""
        return self._loop_thread.iterate(
            self._inner.list(status=status, application_id=application_id, parent_id=parent_id, root_id=root_id)
        )

    def children(self, session_id: str, *, status: SessionStatus | None = None) -> Iterator[Session]:
        """Those spawned directly under a session, newest first."""
        return self._loop_thread.iterate(self._inner.children(session_id, status=status))

    def tree(self, session_id: str) -> tuple[Session, ...]:
        """A session with its whole subtree, parents before their children."""
        return self._loop_thread.run(self._inner.tree(session_id))

    def suspend(self, session_id: str) -> int:
        """Puts a session and everything under it to sleep; how many fell asleep. Not made again by itself if its answer
        is lost: suspending twice is two events."""
        return self._loop_thread.run(self._inner.suspend(session_id))

    def resume(self, session_id: str) -> int:
        """Clears a session's own suspension; how many woke."""
        return self._loop_thread.run(self._inner.resume(session_id))

    def end(self, session_id: str, *, reason: str | None = None) -> Receipt:
        """Ends a session and its whole subtree; what was stopped, counted afterwards. Ending twice is harmless."""
        return self._loop_thread.run(self._inner.end(session_id, reason=reason))
