"""One round trip to PostgreSQL, however many statements it carries, on libpq's pipeline mode.

psycopg's own pipeline talks to the socket after every statement: a batch of twelve cost forty wake-ups of the loop,
and each wake-up waits for the loop to serve its neighbours. Here everything is queued first, sent with one sync, and
read when it has arrived. psycopg still makes the connections, speaks libpq, and turns bytes into Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.abc import Transformer as AdaptTransformer
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow

from quarterdeck.store.interface import ContentError, Row, StoreError, TransientError
from quarterdeck.store.sql import BoundStatement, Statement

RESPONSE_SECONDS = 7.0
"""Seconds without a word after which a connection is given up: longer than any time-out of the server's."""
UNPREPARED = frozenset({"begin", "commit", "rollback"})
"""Not worth a prepared statement's place, and worth being readable on the wire."""
_DATA = "22"
_CONTENT = (_DATA, "23")
_READ_ONLY = "25006"
_TRANSIENT = ("08", "25P03", _READ_ONLY, "40", "53", "55", "57", "58")


class Connection(AsyncConnection[TupleRow]):
    """A connection that remembers which statements it has prepared."""

    prepared: set[str]


async def round_trip(
    connection: Connection, statements: Sequence[BoundStatement], result_count: int
) -> list[list[Row]]:
    """Sends all statements at once; gives the rows of the last `wanted` of them. Raises a sorted StoreError."""
    pgconn = connection.pgconn
    # Before anything is sent: a value that cannot be sent must not cost the connection.
    encoded = [(bound.statement, _encode_params(bound)) for bound in statements]
    try:
        if pgconn.pipeline_status == pq.PipelineStatus.OFF:
            pgconn.enter_pipeline_mode()
        expected = _send(connection, encoded)
        results = await _receive(pgconn)
    except (psycopg.Error, OSError, TimeoutError) as error:
        await connection.close()
        raise TransientError("08006", "the connection to the database was lost") from error
    except BaseException:
        # Whoever waited was cancelled, and answers are still on their way: this connection cannot be used again.
        await connection.close()
        raise
    query_results = []
    for prepared, result in zip(expected, results, strict=True):
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            store_error = classify_error(result)
            if store_error.code == _READ_ONLY:
                # This node was demoted: the next connection should look for the one that writes.
                await connection.close()
            raise store_error
        if prepared is None:
            query_results.append(result)
        else:
            # One by one: what was prepared before a failure stays prepared, whatever is rolled back.
            connection.prepared.add(prepared)
    transformer = Transformer(connection)
    return (
        [_load_rows(transformer, result) for result in query_results[len(query_results) - result_count :]]
        if result_count
        else []
    )


def _send(connection: Connection, encoded: Sequence[tuple[Statement, list[bytes | None]]]) -> list[str | None]:
    """Queues everything and one sync. For each result to come: the name it prepares, or None if it answers."""
    pgconn = connection.pgconn
    expected: list[str | None] = []
    for statement, params in encoded:
        name = statement.name
        if name in UNPREPARED or statement.planned_each_time:
            pgconn.send_query_params(statement.postgresql.encode(), params or None)
        else:
            if name not in connection.prepared and name not in expected:
                pgconn.send_prepare(name.encode(), statement.postgresql.encode())
                expected.append(name)
            pgconn.send_query_prepared(name.encode(), params)
        expected.append(None)
    pgconn.pipeline_sync()
    return expected


async def _receive(pgconn: PGconn) -> list[PGresult]:
    """The results up to the sync. Waits for the socket only when libpq has nothing more to give."""
    results: list[PGresult] = []
    while True:
        has_unsent = bool(pgconn.flush())
        while not has_unsent and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == pq.ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is closed")
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)
        await _wait_for_socket(pgconn.socket, writing=has_unsent)
        pgconn.consume_input()


async def _wait_for_socket(descriptor: int, *, writing: bool) -> None:
    """Until there is something to read, or, while not all is sent, room to write. TimeoutError after PATIENCE."""
    loop = asyncio.get_running_loop()
    socket_ready = loop.create_future()

    def on_ready() -> None:
        if not socket_ready.done():
            socket_ready.set_result(None)

    def on_timeout() -> None:
        if not socket_ready.done():
            socket_ready.set_exception(TimeoutError())

    loop.add_reader(descriptor, on_ready)
    if writing:
        loop.add_writer(descriptor, on_ready)
    timer = loop.call_later(RESPONSE_SECONDS, on_timeout)
    try:
        await socket_ready
    finally:
        timer.cancel()
        loop.remove_reader(descriptor)
        if writing:
            loop.remove_writer(descriptor)


def _load_rows(transformer: AdaptTransformer, result: PGresult) -> list[Row]:
    if result.ntuples == 0:
        return []
    transformer.set_pgresult(result)
    rows: list[Row] = transformer.load_rows(0, result.ntuples, tuple)
    return rows


def _encode_params(bound: BoundStatement) -> list[bytes | None]:
    values = [None if value is None else str(value).encode() for value in bound.positional_params()]
    if any(value is not None and b"\0" in value for value in values):
        # libpq would end the text there without a word.
        raise ContentError("22021", "text cannot hold U+0000")
    return values


def classify_error(result: PGresult) -> StoreError:
    """Sorts by SQLSTATE class; a failure without one is the connection itself. The text is for logs, so no value of a
    row may be in it: DETAIL and CONTEXT, which quote them, are not read, and of a data exception, which quotes them in
    its first line, what stands before the quotation is all."""
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    if sqlstate is None:
        return TransientError("08006", "the connection to the database was lost")
    code = sqlstate.decode()
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    if code.startswith(_CONTENT):
        return ContentError(code, message.partition('"')[0] if code.startswith(_DATA) else message)
    if code.startswith(_TRANSIENT):
        return TransientError(code, message)
    return StoreError(code, message)
