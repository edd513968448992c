"""The monitor of a fleet: one process claims the fleet, sends heartbeats and releases it."""

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
    """The monitor row after the command. Only the current monitor can send heartbeats or release the fleet."""
    if isinstance(command, ClaimMonitor):
        return _claim(command, current, now)
    if current is None or (current.pid, current.host_id) != (command.pid, command.host_id):
        return errors.not_the_monitor(command.fleet_id)
    if isinstance(command, RecordMonitorHeartbeat):
        return _replace(current, last_tick_at=now)
    # Keep the other fields: the view still shows the tick interval and the policy.
    return _replace(current, pid=None, started_at=None, last_tick_at=None)


def _claim(command: ClaimMonitor, current: MonitorRuntime | None, now: Millis) -> MonitorRuntime | Problem:
    if current is not None and is_live(current, _reported_alive(command, current), now):
        return errors.monitor_running(command.fleet_id)
    return MonitorRuntime(
        *(command.zone_id, command.fleet_id, command.pid, now, now),
        *(command.tick_seconds, command.host_id, command.user_id, command.policy),
    )


def _reported_alive(command: ClaimMonitor, current: MonitorRuntime) -> bool | None:
    """Whether the claimer reports the current monitor's process as alive. None if the claimer cannot know.

    The claimer can know only if it runs as the same user on the same host, and only for the pid that it checked: if two
    claimers both find the old monitor dead, the second must not replace the first.
    """
    checked_process = (command.host_id, command.user_id, command.previous_pid)
    return command.previous_is_alive if (current.host_id, current.user_id, current.pid) == checked_process else None


def configure(config: MonitorConfig, command: ConfigureMonitor) -> MonitorConfig:
    """Fields that are None in the command stay unchanged."""
    interval_seconds = config.interval_seconds if command.interval_seconds is None else command.interval_seconds
    enabled = config.enabled if command.enabled is None else int(command.enabled)
    return _replace(config, interval_seconds=interval_seconds, enabled=enabled)


def mark_pinged(config: MonitorConfig, now: Millis) -> MonitorConfig:
    return _replace(config, last_ping_at=now)


def is_ping_due(config: MonitorConfig, now: Millis) -> bool:
    """Whether monitoring is enabled and the interval since the last ping has passed."""
    last_ping_at = config.last_ping_at
    return bool(config.enabled) and (last_ping_at is None or now - last_ping_at >= config.interval_seconds * SECOND)


def is_recent(runtime: MonitorRuntime, now: Millis) -> bool:
    """Whether a monitor is registered and its last heartbeat is not stale."""
    if runtime.pid is None or runtime.last_tick_at is None:
        return False
    return now - runtime.last_tick_at <= monitor_stale_after_ms(runtime.tick_seconds)


def is_live(runtime: MonitorRuntime, pid_is_alive: bool | None, now: Millis) -> bool:
    """`pid_is_alive` is None if unknown: only the monitor's own host can check its process."""
    return is_recent(runtime, now) and pid_is_alive is not False
