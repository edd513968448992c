"""Written by `make sdk` from `sdk/members.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.sdk import members
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.work_types import Member, Role


class Members:
    def __init__(self, inner: members.Members, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def list(self) -> Iterator[Member]:
        """In the order of their names."""
        return self._loop_thread.iterate(self._inner.list())

    def get(self, subject: str) -> Member:
        return self._loop_thread.run(self._inner.get(subject))

    def put(self, subject: str, role: Role) -> Member:
        """Makes somebody a member, or gives them another role. Only an OWNER makes or unmakes an OWNER."""
        return self._loop_thread.run(self._inner.put(subject, role))

    def remove(self, subject: str) -> None:
        """Not repeated after a lost answer: it would not be found."""
        self._loop_thread.run(self._inner.remove(subject))
