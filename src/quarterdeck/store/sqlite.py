"""SQLite: one file, one server process, one writer.

A transaction runs on the loop's own thread and its awaits all complete at once: the statements of a batch take
microseconds each, and a thread that takes and drops the GIL at every one of them, beside a busy loop, was measured
to fall to a twentieth. Only COMMIT leaves the loop: its fsync is the one thing here that waits for hardware, it
releases the GIL once, and meanwhile the loop reads the requests that will be the next batch.

Reads use a connection of their own; WAL lets them see the last commit while a commit is under way. So do checkpoints,
in a thread of their own: left to the writer, one commit in thirty would wait for the whole log to be copied and synced.
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
"""Should checkpoints fall behind, the writer makes one itself: the log stays below 80 MB."""
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
    """Statements run as they are named; nothing here ever suspends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        return [self._rows(bound) for bound in statements]

    def write(self, statement: BoundStatement) -> None:
        row_sql = statement.statement.sqlite_row
        try:
            if row_sql:
                self._connection.executemany(row_sql, statement.row_params())
            else:
                self._connection.execute(statement.statement.sqlite, statement.named_params())
        except sqlite3.Error as error:
            raise classify_error(error, statement.statement.name) from error

    def _rows(self, bound: BoundStatement) -> list[Row]:
        try:
            return self._connection.execute(bound.statement.sqlite, bound.named_params()).fetchall()
        except sqlite3.Error as error:
            raise classify_error(error, bound.statement.name) from error


class SqliteStore:
    kind: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, path: Path, clock: Callable[[], Millis] = system_now) -> None:
        if sqlite3.sqlite_version_info < VERSION_MIN:
            raise StoreError(
                "version", f"SQLite {sqlite3.sqlite_version} is too old; {VERSION_MIN[0]}.{VERSION_MIN[1]} is needed."
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
            except BaseException:  # a cancellation too: the next transaction is on the same connection
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
        """There is never an unknown outcome here: COMMIT answers in this process or the process is gone."""

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
            # Shielded: whoever awaits may be cancelled, but a COMMIT that has begun must be seen to its end before
            # the next transaction may use this connection.
            await asyncio.shield(commit)
            self._maybe_checkpoint()
        except asyncio.CancelledError:
            # How it ended is nobody's question any more: whoever asked was cancelled.
            with contextlib.suppress(sqlite3.Error):
                await commit
            raise
        except sqlite3.Error as error:
            raise classify_error(error, "commit") from error
        finally:
            if self._writer.in_transaction:
                self._writer.rollback()

    def _maybe_checkpoint(self) -> None:
        """Has the log copied into the database now and then, beside the writer, which goes on meanwhile."""
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
            # Nothing is lost by it: the log stays as it is, and the next one copies more.
            log.warning("a checkpoint failed: %s", classify_error(error, "checkpoint"))


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
    """Of what ANALYZE, by whoever's hand, has found in a table whose rows are much alike (one zone, one agent that has
    done nearly everything) SQLite concludes that no index is worth its while. Every statement is a lookup by an index,
    and without statistics is planned as one. An empty table of them is left behind: the next ANALYZE then changes no
    schema, so it is not heard of by the connections that are open, and is forgotten here before the next are."""
    try:
        tables = [str(name) for [name] in connection.execute(STATISTICS_TABLES).fetchall()]
        first_row_sql = "select 1 from {} limit 1"
        filled_tables = [name for name in tables if connection.execute(first_row_sql.format(name)).fetchone()]
        for name in filled_tables:
            connection.execute(f"delete from {name}")  # noqa: S608 - the names are SQLite's own
        if filled_tables or not tables:
            connection.execute("analyze sqlite_schema")
    except sqlite3.OperationalError as error:
        log.warning("SQLite's statistics, which can make it slow, were not removed until the next start: %s", error)
    except sqlite3.Error as error:
        raise classify_error(error, "statistics") from error


def classify_error(error: sqlite3.Error, context: str) -> StoreError:
    """Sorts by SQLite's own error name; a constraint or a mismatch is content, all else may pass."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith(_CONTENT_CODES):
        return ContentError(name, f"in {context}")
    if name.startswith(_TRANSIENT_CODES):
        return TransientError(name, f"in {context}")
    if isinstance(error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return ContentError(name, f"in {context}")
    return StoreError(name, f"in {context}: {error}")
