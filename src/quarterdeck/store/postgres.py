"""The store for PostgreSQL 14 and newer: libpq's pipeline mode (`postgres_pipeline.py`) over a pool of connections.

Each round trip costs an iteration of the event loop, in which the loop also serves other sockets. So the number of
round trips matters more than their size: BEGIN, locks and loads are sent together; writes and COMMIT are sent together.

Locks are separate statements. Under READ COMMITTED each statement sees what was committed before it started, so the
loads that follow a lock in the same pipeline see everything that the previous holder of the lock wrote.

The settings in `CONNECTION_OPTIONS` prevent two problems: a server process that freezes between lock and commit does
not block the others, and a plan that was cached while the tables were empty stays fast when they are full.

Each connection acts as a role under row-level security (`postgres_roles.py`). A transaction first sets the zones that
its callers were authenticated for. A read outside a transaction sets them in each round trip, since the statements
before one sync are one implicit transaction. The setting ends with the transaction, so the next user of the connection
does not inherit it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Literal

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from quarterdeck.store.interface import CommitUnknown, ContentError, Row, StoreError, StoreWork, T, TransientError
from quarterdeck.store.postgres_pipeline import Connection, round_trip
from quarterdeck.store.postgres_roles import SERVER, Role
from quarterdeck.store.row_security_check import require_row_security
from quarterdeck.store.sql import BoundStatement, Statement

CONNECTION_OPTIONS = {
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "1s",
    "statement_timeout": "5s",
    "jit": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    # Joins run in the order in which they are written, the batch first. Otherwise the planner joins two tables that it
    # believes to be empty to each other, and the batch to the result.
    "join_collapse_limit": "1",
    # These costs make the planner look up a batch row by row, by index. A new table has no statistics, and with the
    # default costs the planner sometimes compares every row of the batch with every row of the table, which takes
    # seconds for thousands of rows.
    "cpu_operator_cost": "0.1",
    "random_page_cost": "0.01",
    "seq_page_cost": "0.01",
    "default_transaction_isolation": "read\\ committed",
    # If the peer disappears in the middle of a message, the backend waits for bytes, and no other timeout applies.
    "tcp_user_timeout": "10000",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
CACHED_CONNECTIONS_MAX = 4
OPEN_TIMEOUT_SECONDS = 10.0
BEGIN = Statement("begin", "", "BEGIN", ())
COMMIT = Statement("commit", "", "COMMIT", ())
ROLLBACK = Statement("rollback", "", "ROLLBACK", ())
LOCK_KEY = Statement("lock_key", "", "select pg_advisory_xact_lock($1)", ("key",))
SET_ZONES = Statement("set_zones", "", "select set_config('quarterdeck.zones', $1, true)", ("zones",))
PING = Statement("ping", "", "select 1", ())


class PostgresTransaction:
    def __init__(
        self, connection: Connection, queued: Sequence[BoundStatement], prefix: Sequence[BoundStatement] = ()
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        """Statements that start every round trip."""
        self.queued = [*queued]

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        sent, self.queued = [*self._prefix, *self.queued, *statements], []
        return await round_trip(self._connection, sent, len(statements))

    def write(self, statement: BoundStatement) -> None:
        self.queued.append(statement)


class PostgresStore:
    kind: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, pool: AsyncConnectionPool[Connection], role: Role) -> None:
        self._pool = pool
        self._has_row_security = role == SERVER
        self._reader_slots = asyncio.Semaphore(max(1, pool.max_size // 2))
        """Half of the pool, so that slow reads do not leave writers without a connection."""
        self._cached_connections: list[Connection] = []
        """Idle connections that were taken from the pool and not returned. Calling the pool for each transaction would
        take a tenth of the time of a small batch."""
        self._pool_waiters = 0
        """How many callers are waiting for the pool. While there are any, connections are returned to the pool and not
        cached."""

    @classmethod
    async def open(cls, url: str, pool_max: int, role: Role = SERVER) -> PostgresStore:
        """Raises `StoreError` if row-level security would not apply to this login in this role."""
        await require_row_security(url, role)
        pool = AsyncConnectionPool(
            url,
            connection_class=Connection,
            min_size=min(2, pool_max),
            max_size=pool_max,
            timeout=2.0,
            max_waiting=1_000,
            reconnect_timeout=float("inf"),
            configure=_configure,
            kwargs={
                "autocommit": True,
                "application_name": "quarterdeck",
                "options": connection_options(url, role),
                "connect_timeout": 5,
                "tcp_user_timeout": 10_000,
                "target_session_attrs": "read-write",
            },
            open=False,
            name="quarterdeck",
        )
        try:
            # Wait for the connections: if startup failed while they were being opened, they would keep the process from
            # exiting.
            await pool.open(wait=True, timeout=OPEN_TIMEOUT_SECONDS)
        except PoolTimeout as error:
            await pool.close()
            raise TransientError("08001", "no database connection was available in time") from error
        return cls(pool, role)

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        async with self._connection() as connection:
            lock = [] if key is None else [LOCK_KEY(key=key)]
            tx = PostgresTransaction(connection, [BEGIN(), *self._zone_setting(zones), *lock])
            try:
                result = await work(tx)
            except BaseException:
                # Also on cancellation: the connection is reused and must not keep a transaction open.
                await _roll_back(connection)
                raise
            await self._commit(connection, tx.queued)
            return result

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        reader_slot = contextlib.nullcontext() if for_writer else self._reader_slots
        async with reader_slot, self._connection() as connection:
            return await work(PostgresTransaction(connection, [], self._zone_setting(zones)))

    async def wait_until_ended(self, key: int) -> None:
        # The transaction with this key holds the lock until it ends. Once we get the lock, that transaction has ended.
        async with self._connection() as connection:
            await round_trip(connection, [BEGIN(), LOCK_KEY(key=key), ROLLBACK()], 0)

    async def ping(self) -> None:
        async with self._connection() as connection:
            await round_trip(connection, [PING()], 1)

    async def close(self) -> None:
        while self._cached_connections:
            await self._return_to_pool(self._cached_connections.pop())
        await self._pool.close()

    def _zone_setting(self, zones: Collection[str]) -> list[BoundStatement]:
        """The statement that sets the zones for row-level security. It is sent even without zones, to override a value
        that an administrator may have set for the database."""
        if not self._has_row_security:
            return []
        zone_list = ",".join(zones)
        if zone_list.count(",") != max(0, len(zones) - 1):
            raise ContentError("22023", "a zone id must not contain a comma")
        return [SET_ZONES(zones=zone_list)]

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = self._cached_connections.pop() if self._cached_connections else await self._get_from_pool()
        try:
            yield connection
        finally:
            if connection.closed:
                # If one connection is lost, the cached ones probably are, too. Drop them all, so that no other caller
                # fails with one of them.
                dropped_connections, self._cached_connections = [connection, *self._cached_connections], []
                for dropped_connection in dropped_connections:
                    await dropped_connection.close()
                    await self._pool.putconn(dropped_connection)
            elif not self._pool_waiters and len(self._cached_connections) < CACHED_CONNECTIONS_MAX:
                self._cached_connections.append(connection)
            else:
                await self._return_to_pool(connection)

    async def _get_from_pool(self) -> Connection:
        self._pool_waiters += 1
        try:
            return await self._pool.getconn()
        except (PoolTimeout, TooManyRequests, psycopg.Error) as error:
            raise TransientError("08001", "no database connection was available in time") from error
        finally:
            self._pool_waiters -= 1

    async def _return_to_pool(self, connection: Connection) -> None:
        connection.pgconn.exit_pipeline_mode()
        await self._pool.putconn(connection)

    @staticmethod
    async def _commit(connection: Connection, queued: Sequence[BoundStatement]) -> None:
        try:
            await round_trip(connection, [*queued, COMMIT()], 0)
        except TransientError as error:
            # If the connection was lost, it cannot be known here whether COMMIT took effect.
            if connection.closed or connection.pgconn.status != pq.ConnStatus.OK:
                raise CommitUnknown(error.code, "the connection was lost during COMMIT") from error
            await _roll_back(connection)
            raise
        except BaseException:  # also a cancellation, as in `transact`
            await _roll_back(connection)
            raise


def connection_options(url: str, role: Role) -> str:
    """The `options` parameter of a connection. Our options come after those in the URL and override them."""
    url_options = str(conninfo_to_dict(url).get("options") or "")
    own_options = " ".join(f"-c {name}={value}" for name, value in {**CONNECTION_OPTIONS, "role": role}.items())
    return f"{url_options} {own_options}".strip()


async def _roll_back(connection: Connection) -> None:
    """Roll back. If that fails, close the connection, which makes PostgreSQL roll back."""
    if connection.closed:
        return
    try:
        await round_trip(connection, [ROLLBACK()], 0)
    except StoreError:
        await connection.close()


async def _configure(connection: Connection) -> None:
    connection.prepared_names = set()
