"""Who watches over a fleet: one process, which claims it, says that it is still there, and lets go of it."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ping_policy import monitor_stale_after_ms
from quarterdeck.domain.fleets.model.commands import (
    ClaimMonitor,
    ConfigureMonitor,
    RecordMonitorHeartbeat,
    ReleaseMonitor,
)
from quarterdeck.domain.fleets.model.rows import MonitorConfig, MonitorRuntime
from quarterdeck.domain.fleets.rules import errors

_replace = msgspec.structs.replace


def decide_runtime(
    command: ClaimMonitor | RecordMonitorHeartbeat | ReleaseMonitor, current: MonitorRuntime | None, now: Millis
) -> MonitorRuntime | Problem:
    """The row of a fleet's monitor after what is asked. Only who holds it says that it is there, or lets go of it."""
    if isinstance(command, ClaimMonitor):
        return _claim(command, current, now)
    if current is None or (current.pid, current.host_id) != (command.pid, command.host_id):
        return errors.not_the_monitor(command.fleet_id)
    if isinstance(command, RecordMonitorHeartbeat):
        return _replace(current, last_tick_at=now)
    # How often it ticked stays known.
    return _replace(current, pid=None, started_at=None, last_tick_at=None)


def _claim(command: ClaimMonitor, current: MonitorRuntime | None, now: Millis) -> MonitorRuntime | Problem:
    if current is not None and is_live(current, _reported_alive(command, current), now):
        return errors.monitor_running(command.fleet_id)
    return MonitorRuntime(
        *(command.zone_id, command.fleet_id, command.pid, now, now),
        *(command.tick_seconds, command.host_id, command.user_id, command.policy),
    )


def _reported_alive(command: ClaimMonitor, current: MonitorRuntime) -> bool | None:
    """Only one on the same host, as the same user, can tell; and only of the pid it has looked at: of two who both
    found the last monitor dead, the second must not take the first for it."""
    checked_process = (command.host_id, command.user_id, command.previous_pid)
    return command.previous_is_alive if (current.host_id, current.user_id, current.pid) == checked_process else None


def configure(config: MonitorConfig, command: ConfigureMonitor) -> MonitorConfig:
    """What is not said stays as it is."""
    interval = config.interval_seconds if command.interval_seconds is None else command.interval_seconds
    enabled = config.enabled if command.enabled is None else int(command.enabled)
    return _replace(config, interval_seconds=interval, enabled=enabled)


def mark_pinged(config: MonitorConfig, now: Millis) -> MonitorConfig:
    return _replace(config, last_ping_at=now)


def is_ping_due(config: MonitorConfig, now: Millis) -> bool:
    """Whether its turn has come, as far as the clock tells."""
    last_ping_at = config.last_ping_at
    return bool(config.enabled) and (last_ping_at is None or now - last_ping_at >= config.interval_seconds * SECOND)


def is_recent(runtime: MonitorRuntime, now: Millis) -> bool:
    """Whether a monitor has been heard of as lately as one must be."""
    if runtime.pid is None or runtime.last_tick_at is None:
        return False
    return now - runtime.last_tick_at <= monitor_stale_after_ms(runtime.tick_seconds)


def is_live(runtime: MonitorRuntime, pid_is_alive: bool | None, now: Millis) -> bool:
    """`pid_is_alive`: None where nobody who could tell has looked, since only its own host knows its processes."""
    return is_recent(runtime, now) and pid_is_alive is not False
