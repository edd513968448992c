"""When a member's turn to be pinged has come, and whether a monitor is there. Whether it is pinged then depends on what
its pane shows, which only one on its host can see: that half of the rule is `core.monitoring`.
"""

from __future__ import annotations

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.ping_policy import stale_after
from quarterdeck.domain.fleets.model.rows import MonitorConfig, MonitorRuntime


def elapsed(config: MonitorConfig, now: Millis) -> bool:
    """Whether its turn has come, as far as the clock tells."""
    last = config.last_ping_at
    return bool(config.enabled) and (last is None or now - last >= config.interval_seconds * SECOND)


def is_recent(runtime: MonitorRuntime, now: Millis) -> bool:
    """Whether a monitor has been heard of as lately as one must be."""
    if runtime.pid is None or runtime.last_tick_at is None:
        return False
    return now - runtime.last_tick_at <= stale_after(runtime.tick_seconds)


def is_live(runtime: MonitorRuntime, pid_is_alive: bool | None, now: Millis) -> bool:
    """`pid_is_alive`: None where nobody who could tell has looked, since only its own host knows its processes."""
    return is_recent(runtime, now) and pid_is_alive is not False
