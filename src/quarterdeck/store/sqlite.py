"""The store for SQLite: one file, one server process, one writer.

A transaction runs on the event loop's thread, and its awaits complete immediately. Each statement takes microseconds.
In a separate thread, it would acquire and release the GIL while the event loop is busy; measured throughput was one
twentieth. Only COMMIT runs in a thread: its fsync waits for hardware and releases the GIL once. Meanwhile the loop
reads the requests of the next batch.

Reads use a separate connection; with WAL they see the last commit while another is running. Checkpoints also have a
separate connection and thread: if the writer ran them, one commit in thirty would wait until the complete WAL is copied
and synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from quarterdeck.core.clock import Millis, system_now
from quarterdeck.store.interface import ContentError, Row, StoreError, StoreWork, T, TransientError
from quarterdeck.store.sql import BoundStatement

log = logging.getLogger("quarterdeck.store")
VERSION_MIN = (3, 38, 0)
COMMITS_PER_CHECKPOINT = 32
"""Commits between two checkpoints, about a thousand pages under load."""
WAL_PAGES_MAX = 20_000
"""If checkpoints fall behind, the writer runs one itself when the WAL has this many pages (80 MB)."""
STATISTICS_TABLES = "select name from sqlite_schema where type = 'table' and name like 'sqlite_stat_'"
_CONTENT_CODES = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "SQLITE_RANGE")
_TRANSIENT_CODES = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_IOERR",
    "SQLITE_FULL",
    "SQLITE_NOMEM",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
)


class SqliteTransaction:
    """Statements run immediately; nothing here suspends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        return [self._fetch_rows(bound) for bound in statements]

    def write(self, statement: BoundStatement) -> None:
        row_sql = statement.statement.sqlite_row
        try:
            if row_sql:
                self._connection.executemany(row_sql, statement.row_params())
            else:
                self._connection.execute(statement.statement.sqlite, statement.named_params())
        except sqlite3.Error as error:
            raise classify_error(error, statement.statement.name) from error

    def _fetch_rows(self, bound: BoundStatement) -> list[Row]:
        try:
            return self._connection.execute(bound.statement.sqlite, bound.named_params()).fetchall()
        except sqlite3.Error as error:
            raise classify_error(error, bound.statement.name) from error


class SqliteStore:
    kind: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, path: Path, clock: Callable[[], Millis] = system_now) -> None:
        if sqlite3.sqlite_version_info < VERSION_MIN:
            raise StoreError(
                "version", f"SQLite {sqlite3.sqlite_version} is too old: {VERSION_MIN[0]}.{VERSION_MIN[1]} is required."
            )
        self._writer = _connect(path, clock)
        _delete_statistics(self._writer)
        self._reader = _connect(path, clock)
        self._reader.execute("pragma query_only = on")
        self._write_lock = asyncio.Lock()
        self._commit_executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite-commit")
        self._checkpoint_connection = _connect(path, clock)
        self._checkpoint_executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite-checkpoint")
        self._running_checkpoint: asyncio.Future[None] | None = None
        self._commits_since_checkpoint = 0

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        async with self._write_lock:
            self._begin()
            try:
                result = await work(SqliteTransaction(self._writer))
            except BaseException:  # also a cancellation: the next transaction uses the same connection
                self._writer.rollback()
                raise
            await self._commit()
            return result

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        self._reader.execute("begin")
        try:
            return await work(SqliteTransaction(self._reader))
        finally:
            self._reader.rollback()

    async def wait_until_ended(self, key: int) -> None:
        """Does nothing, because the outcome is never unknown: COMMIT returns in this process, or the process ended."""

    async def ping(self) -> None:
        try:
            self._reader.execute("select pos from log_head").fetchone()
        except sqlite3.Error as error:
            raise classify_error(error, "ping") from error

    async def close(self) -> None:
        async with self._write_lock:
            self._commit_executor.shutdown()
            self._checkpoint_executor.shutdown()
            for connection in (self._checkpoint_connection, self._reader, self._writer):
                connection.close()

    def _begin(self) -> None:
        try:
            self._writer.execute("begin immediate")
        except sqlite3.Error as error:
            raise classify_error(error, "begin") from error

    async def _commit(self) -> None:
        commit = asyncio.get_running_loop().run_in_executor(self._commit_executor, self._writer.execute, "commit")
        try:
            # Shielded: the caller may be canceled, but a started COMMIT must finish before the next transaction may use
            # this connection.
            await asyncio.shield(commit)
            self._maybe_checkpoint()
        except asyncio.CancelledError:
            # The caller was canceled, so the outcome no longer matters.
            with contextlib.suppress(sqlite3.Error):
                await commit
            raise
        except sqlite3.Error as error:
            raise classify_error(error, "commit") from error
        finally:
            if self._writer.in_transaction:
                self._writer.rollback()

    def _maybe_checkpoint(self) -> None:
        """Copy the WAL into the database every `COMMITS_PER_CHECKPOINT` commits. The writer does not wait for it."""
        self._commits_since_checkpoint += 1
        if self._commits_since_checkpoint >= COMMITS_PER_CHECKPOINT and (
            self._running_checkpoint is None or self._running_checkpoint.done()
        ):
            self._commits_since_checkpoint = 0
            self._running_checkpoint = asyncio.get_running_loop().run_in_executor(
                self._checkpoint_executor, self._run_checkpoint
            )

    def _run_checkpoint(self) -> None:
        try:
            self._checkpoint_connection.execute("pragma wal_checkpoint(passive)").fetchall()
        except sqlite3.Error as error:
            # Nothing is lost: the WAL keeps the pages, and the next checkpoint copies them.
            log.warning("checkpoint failed: %s", classify_error(error, "checkpoint"))


def _connect(path: Path, clock: Callable[[], Millis]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    connection.create_function("now_ms", 0, clock)
    for pragma in (
        "journal_mode = wal",
        "synchronous = full",
        "foreign_keys = on",
        "busy_timeout = 100",
        "cache_size = -16000",
        "temp_store = memory",
        f"wal_autocheckpoint = {WAL_PAGES_MAX}",
    ):
        connection.execute(f"pragma {pragma}")
    return connection


def _delete_statistics(connection: sqlite3.Connection) -> None:
    """Delete the statistics of ANALYZE, so that SQLite prefers index lookups.

    If most rows of a table have the same values (one zone, one agent that ran nearly every task), statistics make
    SQLite ignore the indexes. The statistics tables stay, empty, and are created if there are none: a later ANALYZE
    then does not change the schema, so open connections do not load its statistics. The next start deletes them.
    """
    try:
        tables = [str(name) for [name] in connection.execute(STATISTICS_TABLES).fetchall()]
        first_row_sql = "select 1 from {} limit 1"
        filled_tables = [name for name in tables if connection.execute(first_row_sql.format(name)).fetchone()]
        for name in filled_tables:
            connection.execute(f"delete from {name}")  # noqa: S608 - the names are SQLite's own
        if filled_tables or not tables:
            connection.execute("analyze sqlite_schema")
    except sqlite3.OperationalError as error:
        log.warning("cannot delete SQLite's statistics; statements may be slow until the next start: %s", error)
    except sqlite3.Error as error:
        raise classify_error(error, "statistics") from error


def classify_error(error: sqlite3.Error, context: str) -> StoreError:
    """Classify an error by SQLite's error name, or by its Python type if the name is in neither list."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith(_CONTENT_CODES):
        return ContentError(name, f"in {context}")
    if name.startswith(_TRANSIENT_CODES):
        return TransientError(name, f"in {context}")
    if isinstance(error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return ContentError(name, f"in {context}")
    return StoreError(name, f"in {context}: {error}")
