"""One round trip to PostgreSQL for any number of statements, in libpq's pipeline mode.

psycopg's own pipeline uses the socket after every statement: a batch of twelve woke the event loop forty times, and
each time waits until the loop has served other sockets. Here all statements are queued, sent with one sync, and read
when the results have arrived. psycopg still opens the connections, wraps libpq, and converts values to Python.
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
"""A connection is closed if it gets no response for this long: longer than any timeout of PostgreSQL."""
UNPREPARED = frozenset({"begin", "commit", "rollback"})
"""Too cheap to prepare, and easier to recognize on the wire."""
_DATA = "22"
_CONTENT = (_DATA, "23")
_READ_ONLY = "25006"
_TRANSIENT = ("08", "25P03", _READ_ONLY, "40", "53", "55", "57", "58")


class Connection(AsyncConnection[TupleRow]):
    """A connection that tracks which statements it has prepared."""

    prepared: set[str]


async def round_trip(
    connection: Connection, statements: Sequence[BoundStatement], result_count: int
) -> list[list[Row]]:
    """Send all statements at once and return the rows of the last `result_count`. Raises a classified `StoreError`."""
    pgconn = connection.pgconn
    # Before anything is sent: an invalid value must not cost the connection.
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
        # Canceled while results are still arriving: this connection cannot be reused.
        await connection.close()
        raise
    query_results = []
    for prepared, result in zip(expected, results, strict=True):
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            store_error = classify_error(result)
            if store_error.code == _READ_ONLY:
                # This node was demoted: the next connection must find the writable one.
                await connection.close()
            raise store_error
        if prepared is None:
            query_results.append(result)
        else:
            # One by one: statements prepared before a failure stay prepared, also after a rollback.
            connection.prepared.add(prepared)
    transformer = Transformer(connection)
    return (
        [_load_rows(transformer, result) for result in query_results[len(query_results) - result_count :]]
        if result_count
        else []
    )


def _send(connection: Connection, encoded: Sequence[tuple[Statement, list[bytes | None]]]) -> list[str | None]:
    """Queue everything and one sync. Per expected result: the name it prepares, or None if it is a query's."""
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
    """The results up to the sync. Waits for the socket only when libpq has no more buffered."""
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
    """Wait until the socket is readable, or writable if not all is sent. TimeoutError after `RESPONSE_SECONDS`."""
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
        # libpq would silently cut the text there.
        raise ContentError("22021", "text must not contain U+0000")
    return values


def classify_error(result: PGresult) -> StoreError:
    """Classify by SQLSTATE class. A failure without one is a failure of the connection.

    The text is for logs, so it must not contain values of a row. DETAIL and CONTEXT quote values and are not read. A
    data exception (class 22) quotes them in its message, so only the part before the quotation is kept.
    """
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
