"""A server for tests, on a clock that the test advances."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from quarterdeck.app import App
from quarterdeck.core.clock import SECOND, Millis, system_now
from quarterdeck.embedded_server import Embedded, EmbeddedConfig
from quarterdeck.engine.event_log import read_bounds
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.task_worker import TaskWorker
from quarterdeck.store.migrate import upgrade

DATABASE_FILE = "quarterdeck.db"
ROUNDS_MAX = 200
"""Maximum rounds of `settle`. A long chain of failing dependents needs several rounds, but never this many."""


class Clock:
    """A clock that only moves when the test advances it."""

    def __init__(self) -> None:
        # Starts at the present, not at a round date: generated ids contain the machine's time.
        self._now = system_now()

    def __call__(self) -> Millis:
        return self._now

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now / SECOND, UTC)

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> datetime:
        """Move the clock forward and return the new time. Work that becomes due runs only when `settle` is called."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta(0):
            raise ValueError("the clock cannot go back: the database already holds later times")
        self._now += round(step / timedelta(milliseconds=1))
        return self.now


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
        _create_database(Path(directory))
        clock = Clock()
        embedded = _ManualServer(EmbeddedConfig(directory, settings=settings or {}, clock=clock), zone)
        async with embedded as client:
            yield Server(embedded, client, clock)


def _create_database(data: Path) -> None:
    """Write an empty database into a data directory. It is migrated once per process and copied for each test."""
    (data / DATABASE_FILE).write_bytes(_empty_database())


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        file = Path(directory) / DATABASE_FILE
        upgrade(f"sqlite:///{file}")
        with contextlib.closing(sqlite3.connect(file)) as connection:
            # Move everything from the WAL into the database file.
            connection.execute("pragma wal_checkpoint(truncate)")
        return file.read_bytes()
