"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from quarterdeck.core.clock import SECOND, Millis, system_now


class Clock:
    def __init__(self) -> None:
        # From now on, and not from a round date: what is made bears ids that hold the machine's time.
        self._now = system_now()

    def __call__(self) -> Millis:
        return self._now

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now / SECOND, UTC)

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> datetime:
        """Moves it forward, and says what time it is then. Nothing happens by that alone: `settle` does what is due."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta(0):
            raise ValueError("time does not go back: a database that has seen a moment has seen it")
        self._now += round(step / timedelta(milliseconds=1))
        return self.now
