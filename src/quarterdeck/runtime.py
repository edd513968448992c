"""The runtime that all components of a process share, and what a component adds to a server."""

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
"""The pool size of the cross-zone store. At most half of the connections read at once: the event tailer, a slow sweep,
and one other sweep."""


async def open_stores(settings: Settings) -> tuple[Store, Store]:
    """Return the store for callers, confined to their zones, and the store that sees all zones."""
    url = settings.database_url
    if path := sqlite_path(url):
        store = SqliteStore(path, settings.clock)
        return store, store
    from quarterdeck.store.postgres import PostgresStore  # late: the driver is an optional extra

    zone_store = await PostgresStore.open(url, settings.server.db_pool_max)
    try:
        return zone_store, await PostgresStore.open(url, SWEEP_CONNECTIONS, SWEEP)
    except BaseException:
        # No other code has the first store yet, so close it here.
        await zone_store.close()
        raise


def create_wakeup_transport(settings: Settings) -> WakeupTransport | None:
    """Return None on SQLite, which only one process uses."""
    if sqlite_path(settings.database_url):
        return None
    from quarterdeck.store.postgres_notify import NotifyTransport

    return NotifyTransport(settings.database_url)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all components of a process share."""

    settings: Settings
    stores: tuple[Store, Store]
    wakeups: Wakeups
    metrics: Metrics
    engine: Engine
    """Confined to the zones of the caller."""
    cross_zone_engine: Engine
    """Sees all zones: for sweeps, the event tailer and administrators."""
    lanes: Lanes
    commit_listeners: list[Callable[[Sequence[NewEvent]], None]]
    """Called with the events of each commit of this process, right after the commit."""


class Startable(Protocol):
    """Background work other than a sweep. It runs while the process is serving."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Component:
    """What a component adds to a server."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()
    startables: Sequence[Startable] = ()
    on_drain: Sequence[Callable[[], None]] = ()
    """Called first when the server begins to stop, so that long polls return."""


async def build_runtime(settings: Settings, transaction_listeners: Sequence[TransactionListener]) -> Runtime:
    stores = store, cross_zone_store = await open_stores(settings)
    metrics = Metrics()
    wakeups = Wakeups(create_wakeup_transport(settings))

    commit_listeners: list[Callable[[Sequence[NewEvent]], None]] = [metrics.record_events]

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakeups.notify()
        for listener in commit_listeners:
            listener(events)

    engine = Engine(store, transaction_listeners, after_commit)

    def wait_for_zone_lock(zone_id: str) -> Awaitable[object]:
        # A read takes one round trip and then frees the lock. A transaction would hold it for a second round trip.
        return engine.read(lambda tx: zones.wait_for_lock(tx, zone_id), zones=[zone_id], for_writer=True)

    lanes = Lanes(engine, settings.section(EngineSettings), metrics, wait_for_zone=wait_for_zone_lock)
    return Runtime(settings, stores, wakeups, metrics, engine, Engine(cross_zone_store), lanes, commit_listeners)
