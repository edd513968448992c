"""Written by `make sdk` from `sdk/coordinator.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.sdk import coordinator
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.work_types import CoordinatorLine, CoordinatorStatus, Level, Recovered, Strategy


class Coordinator:
    def __init__(self, inner: coordinator.Coordinator, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def status(self) -> CoordinatorStatus:
        return self._loop_thread.run(self._inner.status())

    def recover(self) -> Recovered:
        """Looks now for whatever is to be put right in this zone, and says how much was."""
        return self._loop_thread.run(self._inner.recover())

    def logs(self, *, level: Level | None = None) -> Iterator[CoordinatorLine]:
        """Newest first."""
        return self._loop_thread.iterate(self._inner.logs(level=level))

    def strategy(self) -> Strategy:
        """In which order tasks are given out."""
        return self._loop_thread.run(self._inner.strategy())

    def choose(self, strategy: Strategy) -> Strategy:
        return self._loop_thread.run(self._inner.choose(strategy))
