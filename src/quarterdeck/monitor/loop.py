"""The loop of a monitor: a tick, a wait that a signal ends, and how it ends."""

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


class MonitorConfig(NamedTuple):
    """How one monitor is to be."""

    tick_seconds: int
    policy: str
    report: Callable[[str], None]
    """What happens, in lines."""
    on_started: Callable[[], None]
    """Called once the fleet is ours."""


class Monitor:
    def __init__(self, api: ServerApi, observer: PaneObserver, config: MonitorConfig) -> None:
        self._api = api
        self._observer = observer
        self._config = config
        self._unreported_pings: list[int] = []
        """Whose pings have landed, and the server has not heard of it."""
        self._owned_until = 0.0

    async def run(self) -> None:
        """Until a signal, or the end of its fleet. Raises what refused it."""
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
                await _wait_set(stopped, started_at + self._config.tick_seconds - now())
                if not stopped.is_set():
                    state = await self._send_heartbeat()
        except (Conflict, NotFound) as error:
            # Nothing is ours to let go of any more.
            if error.code not in FLEET_GONE_CODES:
                raise
            self._config.report(error.detail)
            return
        except BaseException:
            # Whatever it was, the next monitor need not wait until this one has grown stale.
            await self._release()
            raise
        await self._release()

    async def _claim(self) -> MonitorState:
        sent_at = now()
        try:
            state = await asyncio.to_thread(self._api.claim, self._config.tick_seconds, self._config.policy)
        except (Lost, TimedOut):
            # It may have been heard all the same.
            await self._release()
            raise
        self._extend_ownership(sent_at)
        return state

    async def _send_heartbeat(self) -> MonitorState | None:
        """None: nobody knows whether the fleet is still ours, so nothing may be typed."""
        sent_at, pinged = now(), [*self._unreported_pings]
        try:
            state = await asyncio.to_thread(self._api.send_heartbeat, pinged)
        except (Fault, Unauthenticated) as error:
            # A token is renewed where the server's are; that too may pass.
            self._config.report(error.detail)
            return None
        self._unreported_pings = self._unreported_pings[len(pinged) :]
        self._extend_ownership(sent_at)
        return state

    def _extend_ownership(self, sent_at: float) -> None:
        """Nobody else can claim the fleet before its heartbeat is this old, and it is younger than the question."""
        self._owned_until = sent_at + monitor_stale_after_ms(self._config.tick_seconds) / SECOND

    async def _ping_due_members(self, state: MonitorState | None) -> None:
        """Looks at everybody, so that it is known since when a pane is quiet; pings who is due and has a reason."""
        if state is None:
            return
        observations = await self._observer.observe(state.members, now())
        due = [member for member in state.members if member.is_due and self._should_ping(member, observations)]
        if not due:
            return
        results = await asyncio.gather(*(self._ping(member) for member in due))
        self._unreported_pings += [member.agent_id for member, was_typed in zip(due, results, strict=True) if was_typed]
        if self._unreported_pings:
            # At once: should this process end before the next tick, its successor pings nobody twice.
            await self._send_heartbeat()

    def _should_ping(self, member: WatchedMember, observations: dict[int, PaneObservation]) -> bool:
        observation = observations.get(member.agent_id)
        return observation is not None and should_ping(
            observation, member.interval_seconds, always=self._config.policy == ALWAYS_POLICY
        )

    async def _ping(self, member: WatchedMember) -> bool:
        """Whether it landed."""
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
            # It ends all the same, and is found to have ended by the age of its heartbeat.
            self._config.report(f"the server did not hear of the end: {problem.detail}")


async def _wait_set(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()


def now() -> float:
    """Seconds that also count while the machine sleeps: what was ours when it fell asleep may be another's by now."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def monitor_fleet(api: ServerApi, data_dir: Path, config: MonitorConfig) -> None:
    """Returns when it was told to stop, or its fleet is over. `data`: where the settings are."""
    observer = PaneObserver(api.host, load_coding_agents(data_dir), config.report)
    asyncio.run(Monitor(api, observer, config).run())
