"""Opens the stores of a database URL. PostgreSQL is imported only when a URL names it: its driver is optional."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quarterdeck.core.clock import Millis, system_now
from quarterdeck.store.interface import Store
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres_roles import SWEEP
from quarterdeck.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from quarterdeck.store.postgres_notify import NotifyTransport

CROSS_ZONE_CONNECTIONS = 6
"""The pool size of the cross-zone store. At most half of the connections read at once: the event tailer, a slow sweep,
and one other sweep."""


async def open_stores(
    url: str,
    connections: int,
    clock: Callable[[], Millis] = system_now,
    cross_zone_connections: int = CROSS_ZONE_CONNECTIONS,
) -> tuple[Store, Store]:
    """Return the store for callers, confined to their zones, and the store that sees all zones.

    `clock` is the clock of SQLite. PostgreSQL has its own.
    """
    if path := sqlite_path(url):
        store = SqliteStore(path, clock)
        return store, store
    from quarterdeck.store.postgres import PostgresStore

    zone_store = await PostgresStore.open(url, connections)
    try:
        return zone_store, await PostgresStore.open(url, cross_zone_connections, SWEEP)
    except BaseException:
        # No other code has the first store yet, so close it here.
        await zone_store.close()
        raise


def create_wakeup_transport(url: str) -> NotifyTransport | None:
    """Return None on SQLite, which only one process uses."""
    if sqlite_path(url):
        return None
    from quarterdeck.store.postgres_notify import NotifyTransport

    return NotifyTransport(url)
