"""Whom a monitor pings, of those whose turn has come by the server's clock; and how long nobody may doubt a monitor.

Blind pings hurt agents that are at work: by default only those are pinged that have unread messages, or whose pane has
been quiet for as long as their interval. The server knows the clock and the messages, and one on the member's host the
pane: so what both must agree on stands where both may read it.
"""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import SECOND, Millis

STALE_TICKS = 3
STALE_MIN_MS = 15 * SECOND


class PaneObservation(NamedTuple):
    """What one who is on the member's host knows of it."""

    is_pane_alive: bool
    """It is there, is the member's own, and the agent runs in it."""
    quiet_ms: Millis
    """For how long its pane has shown the same."""
    unread: int


def should_ping(observation: PaneObservation, interval_seconds: int, *, always: bool) -> bool:
    """Of one whose turn has come. `always`: as the seed has it, whoever may be at work."""
    if not observation.is_pane_alive:
        return False
    return always or observation.unread > 0 or observation.quiet_ms >= interval_seconds * SECOND


def monitor_stale_after_ms(tick_seconds: int) -> Millis:
    """How old a monitor's heartbeat may be before another may take its place."""
    return max(STALE_TICKS * tick_seconds * SECOND, STALE_MIN_MS)
