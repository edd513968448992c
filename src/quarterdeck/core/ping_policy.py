"""Which fleet members a monitor pings when their interval has passed, and when a monitor counts as stale.

A ping disturbs an agent that is working. So by default only members with unread messages are pinged, or those whose
pane has not changed for their ping interval. The server knows the interval and the messages; only the monitor on the
member's host sees the pane. Both use these rules.
"""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import SECOND, Millis

STALE_TICKS = 3
STALE_MIN_MS = 15 * SECOND


class PaneObservation(NamedTuple):
    """What the monitor on the member's host knows about a member."""

    is_pane_alive: bool
    """The pane exists, belongs to the member, and the agent runs in it."""
    quiet_ms: Millis
    """How long the pane has not changed."""
    unread: int


def should_ping(observation: PaneObservation, interval_seconds: int, *, always: bool) -> bool:
    """Whether to ping a member whose interval has passed. `always` pings it also while it works."""
    if not observation.is_pane_alive:
        return False
    return always or observation.unread > 0 or observation.quiet_ms >= interval_seconds * SECOND


def monitor_stale_after_ms(tick_seconds: int) -> Millis:
    """The age of a monitor's heartbeat after which another monitor may replace it."""
    return max(STALE_TICKS * tick_seconds * SECOND, STALE_MIN_MS)
