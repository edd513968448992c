"""What is counted of coordination, for whoever asks for metrics. None of it decides anything."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import NewEvent

FAILED = "task.failed"


class _Ended(msgspec.Struct):
    final: bool = False
    exhausted: bool = False


class Figures:
    """Of this process."""

    def __init__(self) -> None:
        self.tasks_failed = 0
        """For good."""
        self.retries_exhausted = 0
        self.stale_agents = 0
        self.tasks_pending = 0
        """As they were last counted."""
        self.cycles = 0
        self.last_cycle: Millis | None = None

    def committed(self, events: Sequence[NewEvent]) -> None:
        """Hears of what this process has committed."""
        for event in events:
            if event.type == FAILED:
                ended = msgspec.json.decode(event.data, type=_Ended)
                self.tasks_failed += ended.final
                self.retries_exhausted += ended.exhausted
