"""A part of the composition root: what every room of a process stands on, and what a room brings along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quarterdeck.core.routing import Route
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Lanes
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Listener
from quarterdeck.engine.wakeups import Carrier, Wakes
from quarterdeck.http.metrics import Metrics
from quarterdeck.settings import Settings
from quarterdeck.store.interface import Store
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres_roles import SWEEP
from quarterdeck.store.sqlite import SqliteStore

SWEEP_CONNECTIONS = 6
"""Half of them read: one for whoever follows the log, one for a sweep that takes its time."""


async def open_stores(settings: Settings) -> tuple[Store, Store]:
    """The store for what is done for callers, held to their zones, and the one that sees across zones."""
    url = settings.database_url
    if path := sqlite_path(url):
        store = SqliteStore(path, settings.clock)
        return store, store
    from quarterdeck.store.postgres import PostgresStore  # the driver is an extra, and costs a laptop nothing

    own = await PostgresStore.open(url, settings.server.db_pool_max)
    try:
        return own, await PostgresStore.open(url, SWEEP_CONNECTIONS, SWEEP)
    except BaseException:
        # Nobody else knows of the first yet, who could close it.
        await own.close()
        raise


def carrier_for(settings: Settings) -> Carrier | None:
    """SQLite has one process, which wakes itself."""
    if sqlite_path(settings.database_url):
        return None
    from quarterdeck.store.postgres_notify import Notifier

    return Notifier(settings.database_url)


@dataclass(frozen=True, slots=True)
class Keel:
    """What every room of this process stands on."""

    settings: Settings
    stores: tuple[Store, Store]
    wakes: Wakes
    metrics: Metrics
    engine: Engine
    """Held to the zones of whoever asks."""
    everywhere: Engine
    """Sees across zones: for sweeps, the tailer, and whoever administers all zones."""
    lanes: Lanes
    heard: list[Callable[[Sequence[NewEvent]], None]]
    """Who is told what this process has committed, right after it."""


class Runs(Protocol):
    """Something that goes on by itself as long as the process serves, and is no sweep."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What a room brings along."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()
    runs: Sequence[Runs] = ()
    on_drain: Sequence[Callable[[], None]] = ()
    """Told when the server begins to stop, before anything else is: whoever waits for long is let go."""


async def lay(settings: Settings, within: Sequence[Listener]) -> Keel:
    stores = store, store_everywhere = await open_stores(settings)
    metrics = Metrics()
    wakes = Wakes(carrier_for(settings))

    heard: list[Callable[[Sequence[NewEvent]], None]] = [metrics.committed]

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakes.committed()
        for hear in heard:
            hear(events)

    engine = Engine(store, within, after_commit)

    def turnstile(zone_id: str) -> Awaitable[object]:
        # One round trip, at whose end the lock is free again: a transaction would keep it for another.
        return engine.read(lambda tx: zones.wait_for(tx, zone_id), zones=[zone_id], for_a_writer=True)

    lanes = Lanes(engine, settings.section(EngineSettings), metrics, turnstile=turnstile)
    return Keel(settings, stores, wakes, metrics, engine, Engine(store_everywhere), lanes, heard)
