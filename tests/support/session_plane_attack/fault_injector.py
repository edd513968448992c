"""Faults of the servers while clients run: every kind, in an order that the seed determines."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, StopMode
from tests.support.redis import RedisServer
from tests.support.session_plane_attack.run_state import RunState

FROZEN_SECONDS = 20.0
CALLS_BETWEEN_FAULTS = 250
"""Between two faults, clients make this many calls, or SECONDS_BETWEEN_FAULTS pass."""
SECONDS_BETWEEN_FAULTS = 4.0
Fault = Callable[[], Awaitable[None]]


class FaultInjector:
    def __init__(self, state: RunState, postgres: PostgresServer, redis: RedisServer) -> None:
        self._state = state
        self._servers = state.servers
        self._postgres = postgres
        self._redis = redis
        # The label is part of the seed: another label is another sequence of faults.
        self._rng = random.Random(f"{state.seed} disturber")
        self._freezing: asyncio.Task[None] | None = None
        self.counts: dict[str, int] = {}

    async def run(self, deadline: float) -> None:
        """Inject every kind of fault, repeatedly, until the deadline. At the end all servers run."""
        try:
            while time.monotonic() < deadline:
                for fault in self._shuffled_faults():
                    if time.monotonic() >= deadline and len(self.counts) == len(self._faults()):
                        return
                    await fault()
                    await self._wait_for_calls()
        finally:
            if self._freezing is not None:
                await self._freezing

    def _faults(self) -> list[Fault]:
        return [self.kill, self.freeze, self.restart_database, self.wipe_redis, self.restart_redis]

    def _shuffled_faults(self) -> list[Fault]:
        faults = [*self._faults(), self.kill]
        self._rng.shuffle(faults)
        return faults

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    async def kill(self) -> None:
        """SIGKILL a server. It is restarted after the clients have made more calls."""
        slot = self._rng.choice(self._servers.running_slots)
        self._servers.kill(slot)
        self._count("kill")
        await self._wait_for_calls()
        await self._servers.restart(slot)

    async def freeze(self) -> None:
        """SIGSTOP a server for twenty seconds, while other faults happen."""
        if self._freezing is not None:
            await self._freezing
        slot = self._rng.choice(self._servers.running_slots)
        self._servers.freeze(slot)
        self._count("freeze")
        self._freezing = asyncio.create_task(self._thaw_at(slot, time.monotonic() + FROZEN_SECONDS))

    async def _thaw_at(self, slot: int, deadline: float) -> None:
        async def is_time() -> bool:
            return time.monotonic() >= deadline

        await eventually(is_time, "twenty seconds passed", limit=2 * FROZEN_SECONDS)
        self._servers.thaw(slot)

    async def restart_database(self) -> None:
        modes: tuple[StopMode, ...] = ("fast", "immediate")
        mode = self._rng.choice((*modes, None))
        self._servers.actions.append(f"stopped PostgreSQL: {mode or 'killed'}")
        if mode is None:
            await asyncio.to_thread(self._postgres.kill)
        else:
            await asyncio.to_thread(self._postgres.stop, mode)
        await asyncio.to_thread(self._postgres.start)
        self._count("restart")

    async def wipe_redis(self) -> None:
        self._servers.actions.append("wiped Redis")
        await asyncio.to_thread(self._redis.direct.client.flushall)
        self._count("wipe")

    async def restart_redis(self) -> None:
        """Kill Redis. It is restarted after the clients have made more calls."""
        self._servers.actions.append("stopped Redis")
        await asyncio.to_thread(self._redis.kill)
        await self._wait_for_calls()
        await asyncio.to_thread(self._redis.start)
        self._count("redis")

    async def _wait_for_calls(self) -> None:
        """Wait until clients have made more calls, or for SECONDS_BETWEEN_FAULTS."""
        goal, deadline = len(self._state.history) + CALLS_BETWEEN_FAULTS, time.monotonic() + SECONDS_BETWEEN_FAULTS

        async def has_progressed() -> bool:
            return len(self._state.history) >= goal or time.monotonic() >= deadline

        await eventually(has_progressed, "clients made more calls")
