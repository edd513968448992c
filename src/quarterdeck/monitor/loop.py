"""The main loop of a monitor: claim the fleet, then ping and send a heartbeat each tick, until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from quarterdeck.client.http_types import Lost, TimedOut
from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import Conflict, Fault, NotFound, Problem, Unauthenticated
from quarterdeck.core.ping_policy import PaneObservation, monitor_stale_after_ms, should_ping
from quarterdeck.monitor.config import load_coding_agents
from quarterdeck.monitor.model import MonitorState, WatchedMember
from quarterdeck.monitor.pane_observer import PaneObserver
from quarterdeck.monitor.server_api import ServerApi

FLEET_GONE_CODES = ("fleet_deleted", "fleet_not_found")
ALWAYS_POLICY = "seed"
"""The value of `--policy` that pings all due members, even those that are working."""


class MonitorConfig(NamedTuple):
    tick_seconds: int
    policy: str
    report: Callable[[str], None]
    """Called with one line of text for each ping, change or failure."""
    on_started: Callable[[], None]
    """Called once this process has claimed the fleet."""


class Monitor:
    def __init__(self, api: ServerApi, observer: PaneObserver, config: MonitorConfig) -> None:
        self._api = api
        self._observer = observer
        self._config = config
        self._unreported_pings: list[int] = []
        """Agent ids of members that were pinged but not yet reported to the server."""
        self._owned_until = 0.0
        """No other monitor can claim the fleet before this time, on the clock of `now()`."""

    async def run(self) -> None:
        """Run until a signal arrives or the fleet is deleted. Raises if the server refuses the claim or a heartbeat."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signal_number, stopped.set)
        state: MonitorState | None = await self._claim()
        self._config.on_started()
        try:
            while not stopped.is_set():
                started_at = now()
                await self._ping_due_members(state)
                await _wait_until_set(stopped, started_at + self._config.tick_seconds - now())
                if not stopped.is_set():
                    state = await self._send_heartbeat()
        except (Conflict, NotFound) as error:
            # This process no longer owns the fleet, so there is nothing to release.
            if error.code not in FLEET_GONE_CODES:
                raise
            self._config.report(error.detail)
            return
        except BaseException:
            # Release, so that the next monitor need not wait until this one is stale.
            await self._release()
            raise
        await self._release()

    async def _claim(self) -> MonitorState:
        sent_at = now()
        try:
            state = await asyncio.to_thread(self._api.claim, self._config.tick_seconds, self._config.policy)
        except (Lost, TimedOut):
            # The server may have processed the claim.
            await self._release()
            raise
        self._extend_ownership(sent_at)
        return state

    async def _send_heartbeat(self) -> MonitorState | None:
        """Send a heartbeat. Returns None on failure: another monitor may own the fleet, so nothing may be typed."""
        sent_at, pinged = now(), [*self._unreported_pings]
        try:
            state = await asyncio.to_thread(self._api.send_heartbeat, pinged)
        except (Fault, Unauthenticated) as error:
            # Both may be temporary: an expired token in the data directory is renewed.
            self._config.report(error.detail)
            return None
        self._unreported_pings = self._unreported_pings[len(pinged) :]
        self._extend_ownership(sent_at)
        return state

    def _extend_ownership(self, sent_at: float) -> None:
        """Set `_owned_until` after a claim or heartbeat that was sent at `sent_at`.

        The server recorded it after `sent_at`, so its age is at most the time that has passed since `sent_at`.
        """
        self._owned_until = sent_at + monitor_stale_after_ms(self._config.tick_seconds) / SECOND

    async def _ping_due_members(self, state: MonitorState | None) -> None:
        """Ping the due members that the policy selects. Observes all panes, to track how long each has not changed."""
        if state is None:
            return
        observations = await self._observer.observe(state.members, now())
        to_ping = [member for member in state.members if member.is_due and self._should_ping(member, observations)]
        if not to_ping:
            return
        results = await asyncio.gather(*(self._ping(member) for member in to_ping))
        pinged = [member.agent_id for member, was_typed in zip(to_ping, results, strict=True) if was_typed]
        self._unreported_pings += pinged
        if self._unreported_pings:
            # Report now: if this process exits before the next tick, its successor must not ping these members again.
            await self._send_heartbeat()

    def _should_ping(self, member: WatchedMember, observations: dict[int, PaneObservation]) -> bool:
        observation = observations.get(member.agent_id)
        return observation is not None and should_ping(
            observation, member.interval_seconds, always=self._config.policy == ALWAYS_POLICY
        )

    async def _ping(self, member: WatchedMember) -> bool:
        """Ping a member. Returns whether the ping was typed completely."""
        reason = await self._observer.ping(member, lambda: now() < self._owned_until)
        if reason is None:
            self._config.report(f"pinged {member.agent_id} {member.name} ({member.unread} unread)")
        else:
            self._config.report(f"did not ping {member.agent_id} {member.name}: {reason}")
        return reason is None

    async def _release(self) -> None:
        try:
            if self._unreported_pings:
                await asyncio.to_thread(self._api.send_heartbeat, self._unreported_pings)
            await asyncio.to_thread(self._api.release)
        except Problem as problem:
            # Exit anyway: the server detects the exit from the age of the last heartbeat.
            self._config.report(f"could not release the fleet: {problem.detail}")


async def _wait_until_set(event: asyncio.Event, timeout_seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await event.wait()


def now() -> float:
    """Seconds on a clock that keeps running while this host is suspended, when another monitor may claim the fleet."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def monitor_fleet(api: ServerApi, data_dir: Path, config: MonitorConfig) -> None:
    """Monitor a fleet until a signal arrives or the fleet is deleted. `data_dir` holds the settings file."""
    observer = PaneObserver(api.host, load_coding_agents(data_dir), config.report)
    asyncio.run(Monitor(api, observer, config).run())
