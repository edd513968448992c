"""PostgreSQL 14+: psycopg in pipeline mode over a pool.

Each round trip costs the loop an iteration, in which it serves its neighbours' sockets, so few round trips matter more
than cheap ones: BEGIN, locks and loads travel together; writes and COMMIT travel together.

Locks are a statement of their own. Under READ COMMITTED each statement sees what was committed before it began, so
the loads that follow a lock in the same pipeline see everything its former holder wrote.

A replica that freezes between lock and commit must not hold the others up, and a plan made when the tables were empty
must not be kept when they are full: both are settings of the connection (`OPTIONS`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Literal

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from quarterdeck.store.port import CommitUnknown, ContentError, Row, StoreError, T, TransientError, Work
from quarterdeck.store.sql import Bound, Statement

OPTIONS = {
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "1s",
    "statement_timeout": "5s",
    "jit": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "default_transaction_isolation": "read\\ committed",
}
BEGIN = Statement("begin", "", "BEGIN", ())
COMMIT = Statement("commit", "", "COMMIT", ())
ROLLBACK = Statement("rollback", "", "ROLLBACK", ())
MARK = Statement("mark", "", "select pg_advisory_xact_lock($1)", ("key",))
_UNPREPARED = frozenset({"begin", "commit", "rollback"})
_CONTENT = ("22", "23")
_TRANSIENT = ("08", "25P03", "40", "53", "55", "57", "58")


class PostgresTx:
    def __init__(self, connection: AsyncConnection[TupleRow], queued: list[Bound]) -> None:
        self._connection = connection
        self.queued = queued

    async def read(self, *statements: Bound) -> list[list[Row]]:
        sent, self.queued = [*self.queued, *statements], []
        return await round_trip(self._connection, sent, len(statements))

    def write(self, statement: Bound) -> None:
        self.queued.append(statement)


class PostgresStore:
    kind: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[TupleRow]]) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, url: str, pool_max: int) -> PostgresStore:
        pool = AsyncConnectionPool(
            url,
            min_size=min(2, pool_max),
            max_size=pool_max,
            timeout=2.0,
            max_waiting=1_000,
            reconnect_timeout=float("inf"),
            configure=_configure,
            kwargs={
                "autocommit": True,
                "cursor_factory": AsyncRawCursor,
                "application_name": "quarterdeck",
                "options": " ".join(f"-c {name}={value}" for name, value in OPTIONS.items()),
                "connect_timeout": 5,
                "tcp_user_timeout": 10_000,
            },
            open=False,
            name="quarterdeck",
        )
        await pool.open()
        return cls(pool)

    async def transact(self, work: Work[T], key: int | None = None) -> T:
        async with self._connection() as connection:
            tx = PostgresTx(connection, [BEGIN()] if key is None else [BEGIN(), MARK(key=key)])
            try:
                result = await work(tx)
            except BaseException:
                await _abandon(connection)
                raise
            await self._commit(connection, tx.queued)
            return result

    async def read(self, work: Work[T]) -> T:
        async with self._connection() as connection:
            return await work(PostgresTx(connection, []))

    async def settled(self, key: int) -> None:
        # The old backend holds this lock until its transaction is over, whichever way: winning it means it is over.
        async with self._connection() as connection:
            await round_trip(connection, [BEGIN(), MARK(key=key), ROLLBACK()], 0)

    async def ping(self) -> None:
        async with self._connection() as connection:
            await round_trip(connection, [Bound(_PING, {})], 1)

    async def close(self) -> None:
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def _connection(self):  # type: ignore[no-untyped-def]
        try:
            connection = await self._pool.getconn()
        except (PoolTimeout, TooManyRequests, psycopg.Error) as error:
            raise TransientError("08001", "no connection to the database could be had in time") from error
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)

    @staticmethod
    async def _commit(connection: AsyncConnection[TupleRow], queued: Sequence[Bound]) -> None:
        try:
            await round_trip(connection, [*queued, COMMIT()], 0)
        except TransientError as error:
            if connection.closed or connection.broken:
                raise CommitUnknown(error.code, "the connection was lost during COMMIT") from error
            await _abandon(connection)
            raise
        except BaseException:
            await _abandon(connection)
            raise


_PING = Statement("ping", "", "select 1", ())


async def round_trip(connection: AsyncConnection[TupleRow], statements: Sequence[Bound], wanted: int) -> list[list[Row]]:
    """Sends all statements in one pipeline; the rows of the last `wanted` of them."""
    cursors: list[AsyncRawCursor[TupleRow]] = []
    try:
        async with connection.pipeline():
            for bound in statements:
                cursor = AsyncRawCursor(connection)
                name = bound.statement.name
                # BEGIN and COMMIT are not worth a prepared statement's place, and stay readable on the wire.
                await cursor.execute(
                    bound.statement.postgresql, bound.positional() or None, prepare=name not in _UNPREPARED
                )
                cursors.append(cursor)
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors[len(cursors) - wanted :]]
    except psycopg.Error as error:
        raise sorted_error(error, connection) from error
    except OSError as error:
        raise TransientError("08006", "the connection to the database was lost") from error


async def _abandon(connection: AsyncConnection[TupleRow]) -> None:
    """Rolls back; a connection that cannot even do that is closed, and the server rolls back for it."""
    try:
        if not connection.closed:
            await connection.execute("ROLLBACK")
    except psycopg.Error:
        await connection.close()


async def _configure(connection: AsyncConnection[TupleRow]) -> None:
    # One dumper for all integers: psycopg otherwise picks int2, int4 or int8 by value, and prepares a plan for each.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.prepare_threshold = 0
    connection.prepared_max = 1_000


def sorted_error(error: psycopg.Error, connection: AsyncConnection[TupleRow]) -> StoreError:
    """Sorts by SQLSTATE class; an error without one is the connection itself."""
    code = error.sqlstate
    if code is None:
        gone = connection.closed or isinstance(error, psycopg.OperationalError)
        return TransientError("08006", "the connection was lost") if gone else StoreError("XX000", str(error))
    where = error.diag.message_primary or ""
    if code.startswith(_CONTENT):
        return ContentError(code, where)
    if code.startswith(_TRANSIENT):
        return TransientError(code, where)
    return StoreError(code, where)
