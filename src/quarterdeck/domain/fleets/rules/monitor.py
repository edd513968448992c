"""Who watches over a fleet: one process, which claims it, says that it is still there, and lets go of it."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ping_policy import monitor_stale_after_ms
from quarterdeck.domain.fleets.model.commands import BeatMonitor, ClaimMonitor, ConfigureMonitor, ReleaseMonitor
from quarterdeck.domain.fleets.model.rows import MonitorConfig, MonitorRuntime
from quarterdeck.domain.fleets.rules import errors

_replace = msgspec.structs.replace


def decide(
    ask: ClaimMonitor | BeatMonitor | ReleaseMonitor, held: MonitorRuntime | None, now: Millis
) -> MonitorRuntime | Problem:
    """The row of a fleet's monitor after what is asked. Only who holds it says that it is there, or lets go of it."""
    if isinstance(ask, ClaimMonitor):
        return _claimed(ask, held, now)
    if held is None or (held.pid, held.host_id) != (ask.pid, ask.host_id):
        return errors.not_the_monitor(ask.fleet_id)
    if isinstance(ask, BeatMonitor):
        return _replace(held, last_tick_at=now)
    # How often it ticked stays known.
    return _replace(held, pid=None, started_at=None, last_tick_at=None)


def _claimed(ask: ClaimMonitor, held: MonitorRuntime | None, now: Millis) -> MonitorRuntime | Problem:
    if held is not None and is_live(held, _is_alive(ask, held), now):
        return errors.monitor_runs(ask.fleet_id)
    return MonitorRuntime(
        *(ask.zone_id, ask.fleet_id, ask.pid, now, now), *(ask.tick_seconds, ask.host_id, ask.user_id, ask.policy)
    )


def _is_alive(ask: ClaimMonitor, held: MonitorRuntime) -> bool | None:
    """Only one on the same host, as the same user, can tell; and only of the pid it has looked at: of two who both
    found the last monitor dead, the second must not take the first for it."""
    looked_at = (ask.host_id, ask.user_id, ask.previous_pid)
    return ask.is_alive if (held.host_id, held.user_id, held.pid) == looked_at else None


def configured(config: MonitorConfig, ask: ConfigureMonitor) -> MonitorConfig:
    """What is not said stays as it is."""
    interval = config.interval_seconds if ask.interval_seconds is None else ask.interval_seconds
    enabled = config.enabled if ask.enabled is None else int(ask.enabled)
    return _replace(config, interval_seconds=interval, enabled=enabled)


def pinged(config: MonitorConfig, now: Millis) -> MonitorConfig:
    return _replace(config, last_ping_at=now)


def elapsed(config: MonitorConfig, now: Millis) -> bool:
    """Whether its turn has come, as far as the clock tells."""
    last = config.last_ping_at
    return bool(config.enabled) and (last is None or now - last >= config.interval_seconds * SECOND)


def is_recent(runtime: MonitorRuntime, now: Millis) -> bool:
    """Whether a monitor has been heard of as lately as one must be."""
    if runtime.pid is None or runtime.last_tick_at is None:
        return False
    return now - runtime.last_tick_at <= monitor_stale_after_ms(runtime.tick_seconds)


def is_live(runtime: MonitorRuntime, pid_is_alive: bool | None, now: Millis) -> bool:
    """`pid_is_alive`: None where nobody who could tell has looked, since only its own host knows its processes."""
    return is_recent(runtime, now) and pid_is_alive is not False
