"""A server for a test, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from quarterdeck.app import App
from quarterdeck.embedded import Embedded, Told
from quarterdeck.engine.event_log import bounds
from quarterdeck.engine.leader_loop import Duty
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.task_worker import TaskWorker
from quarterdeck.testing import database
from quarterdeck.testing.clock import Clock

ROUNDS_MAX = 200
"""Of settling: a long chain of dependents that fail takes some, and what takes more never ends."""


class _House(Embedded):
    """Nothing goes on by itself but those who wait for somebody: whoever looks for work that a claim waits for."""

    def _start(self, app: App) -> None:
        app.keel.wakes.start()
        for each in app.runs:
            if not isinstance(each, Duty):
                each.start()


class Server(Quarterdeck):
    """A client of the server, and a hand on its time."""

    def __init__(self, house: Embedded, own: Quarterdeck, clock: Clock) -> None:
        super().__init__(own._remote, own.zone)
        self.clock = clock
        self._house = house

    def client(self, token: str, zone: str | None = None) -> Quarterdeck:
        """A client that acts as whoever bears this token: `(await qd.agents.token("dev-1")).token`, say."""
        return self._house.client(token, zone)

    async def settle(self) -> None:
        """Does everything that is due, and what follows from it, and returns when nothing is left: agents that are
        stale, backoffs and time-outs that have ended, sessions that have expired, webhooks to be told of."""
        app = self._house.app
        for _ in range(ROUNDS_MAX):
            before = await self._position(app)
            for each in app.runs:
                if isinstance(each, Duty):
                    await each.run_now()
            for sweep in app.sweeps.sweeps:
                await app.sweeps.run_now(sweep.name)
            await app.keel.lanes.drain()
            # Those who wait for a moment, and for no commit, look again.
            app.keel.wakes.committed()
            await asyncio.sleep(0)
            if await self._position(app) == before:
                return
        raise RuntimeError(f"nothing comes to rest: after {ROUNDS_MAX} rounds there is still something due")

    async def drain(self, *workers: TaskWorker) -> int:
        """Has these workers do what there is to do now, and settles, until nothing is left; how many attempts they
        made. They must not be running."""
        made = 0
        while True:
            await self.settle()
            done = [await worker.drain() for worker in workers]
            made += sum(done)
            if not any(done):
                return made

    @staticmethod
    async def _position(app: App) -> int:
        return (await app.keel.stores[1].read(bounds)).head


@contextlib.asynccontextmanager
async def server(settings: Mapping[str, str] | None = None, zone: str = "default") -> AsyncIterator[Server]:
    """A server on a database of its own, which is gone afterwards. `settings` are told by their names."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        database.lay(Path(directory))
        clock = Clock()
        house = _House(Told(directory, settings=settings or {}, clock=clock), zone)
        async with house as own:
            yield Server(house, own, clock)
