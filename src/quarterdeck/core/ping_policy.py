"""Which fleet members a monitor pings when their interval has passed, and when a monitor counts as stale.

A ping disturbs an agent that is working. So by default a monitor pings a member only if the member has unread messages
or its pane has not changed for the ping interval. The server knows the interval and the messages, but only a monitor on
the member's host can see the pane, so the monitor decides. The server and the monitor share the rule for stale
monitors.
"""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import SECOND, Millis

STALE_TICKS = 3
STALE_MIN_MS = 15 * SECOND


class PaneObservation(NamedTuple):
    """The state of a member and its pane, as the monitor on its host knows it."""

    is_pane_alive: bool
    """The pane exists, belongs to the member, and the agent is running in it."""
    quiet_ms: Millis
    """How long the pane has not changed."""
    unread: int


def should_ping(observation: PaneObservation, interval_seconds: int, *, always: bool) -> bool:
    """Whether to ping a member whose interval has passed. `always`: ping it even while it is working."""
    if not observation.is_pane_alive:
        return False
    return always or observation.unread > 0 or observation.quiet_ms >= interval_seconds * SECOND


def monitor_stale_after_ms(tick_seconds: int) -> Millis:
    """The age of a monitor's heartbeat after which another monitor may replace it."""
    return max(STALE_TICKS * tick_seconds * SECOND, STALE_MIN_MS)
