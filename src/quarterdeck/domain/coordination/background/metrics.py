"""Counters of the coordinator for the metrics endpoint. No decision depends on them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import NewEvent

FAILED = "task.failed"


class _FailedEventData(msgspec.Struct):
    final: bool = False
    exhausted: bool = False


class CoordinatorMetrics:
    """Counters of this process."""

    def __init__(self) -> None:
        self.tasks_failed = 0
        """Tasks that failed and are not retried."""
        self.retries_exhausted = 0
        self.stale_agents = 0
        """As of the last count, like `tasks_pending`."""
        self.tasks_pending = 0
        self.cycles = 0
        self.last_cycle_at: Millis | None = None

    def record_events(self, events: Sequence[NewEvent]) -> None:
        """Count the events of a commit of this process."""
        for event in events:
            if event.type == FAILED:
                event_data = msgspec.json.decode(event.data, type=_FailedEventData)
                self.tasks_failed += event_data.final
                self.retries_exhausted += event_data.exhausted
