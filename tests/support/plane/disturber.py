"""What happens to the servers while clients are at work: everything now and then, in an order that the seed gives."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from tests.support.eventually import eventually
from tests.support.plane.known import Plane
from tests.support.postgres import PostgresServer, StopMode
from tests.support.redis import RedisServer

FROZEN_SECONDS = 20.0
CALM_CALLS = 250
"""Between two disturbances so many calls are made, or CALM_SECONDS pass."""
CALM_SECONDS = 4.0
Disturbance = Callable[[], Awaitable[None]]


class Disturber:
    def __init__(self, plane: Plane, postgres: PostgresServer, redis: RedisServer) -> None:
        self._plane = plane
        self._fleet = plane.fleet
        self._postgres = postgres
        self._redis = redis
        self._chance = random.Random(f"{plane.seed} disturber")
        self._freezing: asyncio.Task[None] | None = None
        self.times: dict[str, int] = {}

    async def run(self, until: float) -> None:
        """Each kind once, then again, until the time is over; then everybody is back and awake."""
        try:
            while time.monotonic() < until:
                for disturbance in self._round():
                    if time.monotonic() >= until and len(self.times) == len(self._kinds()):
                        return
                    await disturbance()
                    await self._calm()
        finally:
            if self._freezing is not None:
                await self._freezing

    def _kinds(self) -> list[Disturbance]:
        return [self.kill, self.freeze, self.restart_the_database, self.wipe_redis, self.restart_redis]

    def _round(self) -> list[Disturbance]:
        kinds = [*self._kinds(), self.kill]
        self._chance.shuffle(kinds)
        return kinds

    def _count(self, kind: str) -> None:
        self.times[kind] = self.times.get(kind, 0) + 1

    async def kill(self) -> None:
        """SIGKILL; another takes its place when the clients have noticed."""
        slot = self._chance.choice(self._fleet.awake)
        self._fleet.kill(slot)
        self._count("kill")
        await self._calm()
        await self._fleet.back(slot)

    async def freeze(self) -> None:
        """SIGSTOP for twenty seconds, while other things happen."""
        if self._freezing is not None:
            await self._freezing
        slot = self._chance.choice(self._fleet.awake)
        self._fleet.freeze(slot)
        self._count("freeze")
        self._freezing = asyncio.create_task(self._thawed(slot, time.monotonic() + FROZEN_SECONDS))

    async def _thawed(self, slot: int, at: float) -> None:
        async def is_time() -> bool:
            return time.monotonic() >= at

        await eventually(is_time, "twenty seconds passed", limit=2 * FROZEN_SECONDS)
        self._fleet.thaw(slot)

    async def restart_the_database(self) -> None:
        modes: tuple[StopMode, ...] = ("fast", "immediate")
        mode = self._chance.choice((*modes, None))
        self._fleet.happened.append(f"stopped PostgreSQL: {mode or 'killed'}")
        if mode is None:
            await asyncio.to_thread(self._postgres.kill)
        else:
            await asyncio.to_thread(self._postgres.stop, mode)
        await asyncio.to_thread(self._postgres.start)
        self._count("restart")

    async def wipe_redis(self) -> None:
        self._fleet.happened.append("wiped Redis")
        await asyncio.to_thread(self._redis.side.client.flushall)
        self._count("wipe")

    async def restart_redis(self) -> None:
        """Away for a while."""
        self._fleet.happened.append("stopped Redis")
        await asyncio.to_thread(self._redis.kill)
        await self._calm()
        await asyncio.to_thread(self._redis.start)
        self._count("redis")

    async def _calm(self) -> None:
        """Until clients have come to work again."""
        goal, at = len(self._plane.recorder) + CALM_CALLS, time.monotonic() + CALM_SECONDS

        async def is_calm() -> bool:
            return len(self._plane.recorder) >= goal or time.monotonic() >= at

        await eventually(is_calm, "clients came to work again")
