"""A clock that only moves when the test advances it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from quarterdeck.core.clock import SECOND, Millis, system_now


class Clock:
    def __init__(self) -> None:
        # Starts at the present, not at a round date: generated ids contain the machine's time.
        self._now = system_now()

    def __call__(self) -> Millis:
        return self._now

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now / SECOND, UTC)

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> datetime:
        """Move the clock forward and return the new time. Work that becomes due runs only when `settle` is called."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta(0):
            raise ValueError("the clock cannot go back: the database already holds later times")
        self._now += round(step / timedelta(milliseconds=1))
        return self.now
