"""A server for tests, on a clock that the test advances."""

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
"""Maximum rounds of `settle`. A long chain of failing dependents needs several rounds, but never this many."""


class _ManualServer(Embedded):
    """Starts all background work except sweeps and leader loops, which `settle` runs."""

    def _start(self, app: App) -> None:
        app.runtime.wakeups.start()
        for startable in app.startables:
            if not isinstance(startable, LeaderLoop):
                startable.start()


class Server(Quarterdeck):
    """A client of the server, with control over its clock."""

    def __init__(self, embedded: Embedded, client: Quarterdeck, clock: Clock) -> None:
        super().__init__(client._transport, client.zone)
        self.clock = clock
        self._embedded = embedded

    def client(self, token: str, zone: str | None = None) -> Quarterdeck:
        """Create a client with this token, for example `(await qd.agents.token("dev-1")).token`."""
        return self._embedded.client(token, zone)

    async def settle(self) -> None:
        """Do everything that is due and everything that follows from it, and return when nothing is left.

        That includes stale agents, backoffs and timeouts that have ended, expired sessions, and the creation of webhook
        deliveries, which are then sent in the background.
        """
        app = self._embedded.app
        for _ in range(ROUNDS_MAX):
            position_before = await self._log_position(app)
            for startable in app.startables:
                if isinstance(startable, LeaderLoop):
                    await startable.run_now()
            for sweep in app.sweeps.sweeps:
                await app.sweeps.run_now(sweep.name)
            await app.runtime.lanes.drain()
            # Wake long polls and workers that are waiting for a time rather than for a commit.
            app.runtime.wakeups.notify()
            await asyncio.sleep(0)
            if await self._log_position(app) == position_before:
                return
        raise RuntimeError(f"settle did not finish: work is still due after {ROUNDS_MAX} rounds")

    async def drain(self, *workers: TaskWorker) -> int:
        """Let these workers run all available tasks, and settle, until nothing is left. Return the number of attempts.

        The workers must not be running.
        """
        attempts = 0
        while True:
            await self.settle()
            counts = [await worker.drain() for worker in workers]
            attempts += sum(counts)
            if not any(counts):
                return attempts

    @staticmethod
    async def _log_position(app: App) -> int:
        _, cross_zone_store = app.runtime.stores
        return (await cross_zone_store.read(read_bounds)).head


@contextlib.asynccontextmanager
async def server(settings: Mapping[str, str] | None = None, zone: str = "default") -> AsyncIterator[Server]:
    """Start a server on a temporary database. `settings` maps setting names to values."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        database.create_database(Path(directory))
        clock = Clock()
        embedded = _ManualServer(EmbeddedConfig(directory, settings=settings or {}, clock=clock), zone)
        async with embedded as client:
            yield Server(embedded, client, clock)
