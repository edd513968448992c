"""A server for a test, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from quarterdeck.app import App
from quarterdeck.embedded_server import Embedded, EmbeddedConfig
from quarterdeck.engine.event_log import read_bounds
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.task_worker import TaskWorker
from quarterdeck.testing import database
from quarterdeck.testing.clock import Clock

ROUNDS_MAX = 200
"""Of settling: a long chain of dependents that fail takes some, and what takes more never ends."""


class _ManualServer(Embedded):
    """Nothing goes on by itself but those who wait for somebody: whoever looks for work that a claim waits for."""

    def _start(self, app: App) -> None:
        app.runtime.wakeups.start()
        for startable in app.startables:
            if not isinstance(startable, LeaderLoop):
                startable.start()


class Server(Quarterdeck):
    """A client of the server, and a hand on its time."""

    def __init__(self, embedded: Embedded, client: Quarterdeck, clock: Clock) -> None:
        super().__init__(client._transport, client.zone)
        self.clock = clock
        self._embedded = embedded

    def client(self, token: str, zone: str | None = None) -> Quarterdeck:
        """A client that acts as whoever bears this token: `(await qd.agents.token("dev-1")).token`, say."""
        return self._embedded.client(token, zone)

    async def settle(self) -> None:
        """Does everything that is due, and what follows from it, and returns when nothing is left: agents that are
        stale, backoffs and time-outs that have ended, sessions that have expired, webhooks to be told of."""
        app = self._embedded.app
        for _ in range(ROUNDS_MAX):
            before = await self._log_position(app)
            for startable in app.startables:
                if isinstance(startable, LeaderLoop):
                    await startable.run_now()
            for sweep in app.sweeps.sweeps:
                await app.sweeps.run_now(sweep.name)
            await app.runtime.lanes.drain()
            # Those who wait for a moment, and for no commit, look again.
            app.runtime.wakeups.notify()
            await asyncio.sleep(0)
            if await self._log_position(app) == before:
                return
        raise RuntimeError(f"nothing comes to rest: after {ROUNDS_MAX} rounds there is still something due")

    async def drain(self, *workers: TaskWorker) -> int:
        """Has these workers do what there is to do now, and settles, until nothing is left; how many attempts they
        made. They must not be running."""
        attempts = 0
        while True:
            await self.settle()
            counts = [await worker.drain() for worker in workers]
            attempts += sum(counts)
            if not any(counts):
                return attempts

    @staticmethod
    async def _log_position(app: App) -> int:
        return (await app.runtime.stores[1].read(read_bounds)).head


@contextlib.asynccontextmanager
async def server(settings: Mapping[str, str] | None = None, zone: str = "default") -> AsyncIterator[Server]:
    """A server on a database of its own, which is gone afterwards. `settings` are told by their names."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        database.create_database(Path(directory))
        clock = Clock()
        embedded = _ManualServer(EmbeddedConfig(directory, settings=settings or {}, clock=clock), zone)
        async with embedded as client:
            yield Server(embedded, client, clock)
