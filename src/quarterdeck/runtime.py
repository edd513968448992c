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
from quarterdeck.engine.transaction import Engine, TransactionListener
from quarterdeck.engine.wakeups import Wakeups, WakeupTransport
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

    zone_store = await PostgresStore.open(url, settings.server.db_pool_max)
    try:
        return zone_store, await PostgresStore.open(url, SWEEP_CONNECTIONS, SWEEP)
    except BaseException:
        # Nobody else knows of the first yet, who could close it.
        await zone_store.close()
        raise


def wakeup_transport_for(settings: Settings) -> WakeupTransport | None:
    """SQLite has one process, which wakes itself."""
    if sqlite_path(settings.database_url):
        return None
    from quarterdeck.store.postgres_notify import NotifyTransport

    return NotifyTransport(settings.database_url)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every room of this process stands on."""

    settings: Settings
    stores: tuple[Store, Store]
    wakeups: Wakeups
    metrics: Metrics
    engine: Engine
    """Held to the zones of whoever asks."""
    cross_zone_engine: Engine
    """Sees across zones: for sweeps, the tailer, and whoever administers all zones."""
    lanes: Lanes
    commit_listeners: list[Callable[[Sequence[NewEvent]], None]]
    """Who is told what this process has committed, right after it."""


class Startable(Protocol):
    """Something that goes on by itself as long as the process serves, and is no sweep."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Component:
    """What a room brings along."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()
    startables: Sequence[Startable] = ()
    on_drain: Sequence[Callable[[], None]] = ()
    """Told when the server begins to stop, before anything else is: whoever waits for long is let go."""


async def build_runtime(settings: Settings, transaction_listeners: Sequence[TransactionListener]) -> Runtime:
    stores = store, cross_zone_store = await open_stores(settings)
    metrics = Metrics()
    wakeups = Wakeups(wakeup_transport_for(settings))

    commit_listeners: list[Callable[[Sequence[NewEvent]], None]] = [metrics.record_events]

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakeups.notify()
        for listener in commit_listeners:
            listener(events)

    engine = Engine(store, transaction_listeners, after_commit)

    def wait_for_zone_lock(zone_id: str) -> Awaitable[object]:
        # One round trip, at whose end the lock is free again: a transaction would keep it for another.
        return engine.read(lambda tx: zones.wait_for_lock(tx, zone_id), zones=[zone_id], for_writer=True)

    lanes = Lanes(engine, settings.section(EngineSettings), metrics, wait_for_zone=wait_for_zone_lock)
    return Runtime(settings, stores, wakeups, metrics, engine, Engine(cross_zone_store), lanes, commit_listeners)
