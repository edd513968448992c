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
from quarterdeck.core.ping_policy import Sight, is_worth_a_ping, stale_after
from quarterdeck.monitor.config import coding_agents
from quarterdeck.monitor.model import Watch, Watched
from quarterdeck.monitor.pane_observer import Eyes
from quarterdeck.monitor.server_api import Desk

FLEET_IS_OVER = ("fleet_deleted", "fleet_not_found")
ALWAYS = "seed"


class Told(NamedTuple):
    """How one monitor is to be."""

    tick_seconds: int
    policy: str
    say: Callable[[str], None]
    """What happens, in lines."""
    begun: Callable[[], None]
    """Called once the fleet is ours."""


class Monitor:
    def __init__(self, desk: Desk, eyes: Eyes, told: Told) -> None:
        self._desk = desk
        self._eyes = eyes
        self._told = told
        self._pinged: list[int] = []
        """Whose pings have landed, and the server has not heard of it."""
        self._ours_until = 0.0

    async def run(self) -> None:
        """Until a signal, or the end of its fleet. Raises what refused it."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, over.set)
        watch: Watch | None = await self._claim()
        self._told.begun()
        try:
            while not over.is_set():
                began = now()
                await self._attend(watch)
                await _set_within(over, began + self._told.tick_seconds - now())
                if not over.is_set():
                    watch = await self._beat()
        except (Conflict, NotFound) as ended:
            # Nothing is ours to let go of any more.
            if ended.code not in FLEET_IS_OVER:
                raise
            self._told.say(ended.detail)
            return
        except BaseException:
            # Whatever it was, the next monitor need not wait until this one has grown stale.
            await self._let_go()
            raise
        await self._let_go()

    async def _claim(self) -> Watch:
        asked = now()
        try:
            watch = await asyncio.to_thread(self._desk.claim, self._told.tick_seconds, self._told.policy)
        except (Lost, TimedOut):
            # It may have been heard all the same.
            await self._let_go()
            raise
        self._extend(asked)
        return watch

    async def _beat(self) -> Watch | None:
        """None: nobody knows whether the fleet is still ours, so nothing may be typed."""
        asked, told = now(), [*self._pinged]
        try:
            watch = await asyncio.to_thread(self._desk.beat, told)
        except (Fault, Unauthenticated) as away:
            # A token is renewed where the server's are; that too may pass.
            self._told.say(away.detail)
            return None
        self._pinged = self._pinged[len(told) :]
        self._extend(asked)
        return watch

    def _extend(self, asked: float) -> None:
        """Nobody else can claim the fleet before its heartbeat is this old, and it is younger than the question."""
        self._ours_until = asked + stale_after(self._told.tick_seconds) / SECOND

    async def _attend(self, watch: Watch | None) -> None:
        """Looks at everybody, so that it is known since when a pane is quiet; pings who is due and has a reason."""
        if watch is None:
            return
        sights = await self._eyes.look(watch.members, now())
        due = [member for member in watch.members if member.is_due and self._deserves(member, sights)]
        if not due:
            return
        landed = await asyncio.gather(*(self._ping(member) for member in due))
        self._pinged += [member.agent_id for member, has in zip(due, landed, strict=True) if has]
        if self._pinged:
            # At once: should this process end before the next tick, its successor pings nobody twice.
            await self._beat()

    def _deserves(self, member: Watched, sights: dict[int, Sight]) -> bool:
        sight = sights.get(member.agent_id)
        return sight is not None and is_worth_a_ping(sight, member.interval_seconds, always=self._told.policy == ALWAYS)

    async def _ping(self, member: Watched) -> bool:
        """Whether it landed."""
        why_not = await self._eyes.ping(member, lambda: now() < self._ours_until)
        if why_not is None:
            self._told.say(f"pinged {member.agent_id} {member.name} ({member.unread} unread)")
        else:
            self._told.say(f"did not ping {member.agent_id} {member.name}: {why_not}")
        return why_not is None

    async def _let_go(self) -> None:
        try:
            if self._pinged:
                await asyncio.to_thread(self._desk.beat, self._pinged)
            await asyncio.to_thread(self._desk.release)
        except Problem as problem:
            # It ends all the same, and is found to have ended by the age of its heartbeat.
            self._told.say(f"the server did not hear of the end: {problem.detail}")


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()


def now() -> float:
    """Seconds that also count while the machine sleeps: what was ours when it fell asleep may be another's by now."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def watch_over(desk: Desk, data: Path, told: Told) -> None:
    """Returns when it was told to stop, or its fleet is over. `data`: where the settings are."""
    eyes = Eyes(desk.host, coding_agents(data), told.say)
    asyncio.run(Monitor(desk, eyes, told).run())
