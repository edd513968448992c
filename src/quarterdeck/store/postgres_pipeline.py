"""One round trip to PostgreSQL for any number of statements, in libpq's pipeline mode.

psycopg's own pipeline uses the socket after every statement: a batch of twelve statements waited for the event loop
forty times, and each time the loop served other sockets first. Here all statements are queued and sent with one sync,
and the results are read as they arrive. psycopg still opens the connections, wraps libpq, and converts the values.
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

RESPONSE_TIMEOUT_SECONDS = 7.0
"""A connection is closed if nothing arrives for this long. The value is larger than `statement_timeout`."""
UNPREPARED_NAMES = frozenset({"begin", "commit", "rollback"})
"""Statements that are not prepared: they are cheap to parse, and easier to recognize in network traffic."""
# SQLSTATEs, or their classes, which are the first two characters.
_DATA_EXCEPTION = "22"
_CONTENT_SQLSTATES = (_DATA_EXCEPTION, "23")
_READ_ONLY = "25006"
_TRANSIENT_SQLSTATES = ("08", "25P03", _READ_ONLY, "40", "53", "55", "57", "58")


class Connection(AsyncConnection[TupleRow]):
    """A connection that tracks the names of the statements it has prepared."""

    prepared_names: set[str]


async def round_trip(
    connection: Connection, statements: Sequence[BoundStatement], result_count: int
) -> list[list[Row]]:
    """Send all statements at once and return the rows of the last `result_count`. Raises a classified `StoreError`."""
    pgconn = connection.pgconn
    # Encode before anything is sent, so that an invalid value does not cost the connection.
    encoded = [(bound.statement, _encode_params(bound)) for bound in statements]
    try:
        if pgconn.pipeline_status == pq.PipelineStatus.OFF:
            pgconn.enter_pipeline_mode()
        new_names = _send(connection, encoded)
        results = await _receive(pgconn)
    except (psycopg.Error, OSError, TimeoutError) as error:
        await connection.close()
        raise TransientError("08006", "the connection to the database was lost") from error
    except BaseException:
        # Canceled while results are still arriving: this connection cannot be reused.
        await connection.close()
        raise
    query_results = []
    for new_name, result in zip(new_names, results, strict=True):
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            store_error = classify_error(result)
            if store_error.code == _READ_ONLY:
                # This node was demoted: a new connection must find the writable node.
                await connection.close()
            raise store_error
        if new_name is None:
            query_results.append(result)
        else:
            # Add each name as its result is read: statements prepared before a failure stay prepared after a rollback.
            connection.prepared_names.add(new_name)
    transformer = Transformer(connection)
    return (
        [_load_rows(transformer, result) for result in query_results[len(query_results) - result_count :]]
        if result_count
        else []
    )


def _send(connection: Connection, encoded: Sequence[tuple[Statement, list[bytes | None]]]) -> list[str | None]:
    """Queue all statements and one sync. Return an item per expected result: a statement's name for the result of
    preparing it, or None for the result of running a statement."""
    pgconn = connection.pgconn
    new_names: list[str | None] = []
    for statement, params in encoded:
        name = statement.name
        if name in UNPREPARED_NAMES or statement.planned_each_time:
            pgconn.send_query_params(statement.postgresql.encode(), params or None)
        else:
            if name not in connection.prepared_names and name not in new_names:
                pgconn.send_prepare(name.encode(), statement.postgresql.encode())
                new_names.append(name)
            pgconn.send_query_prepared(name.encode(), params)
        new_names.append(None)
    pgconn.pipeline_sync()
    return new_names


async def _receive(pgconn: PGconn) -> list[PGresult]:
    """The results up to the sync. Waits for the socket only when libpq has no buffered result left."""
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
        await _wait_for_socket(pgconn.socket, has_unsent=has_unsent)
        pgconn.consume_input()


async def _wait_for_socket(descriptor: int, *, has_unsent: bool) -> None:
    """Wait until the socket is readable or, if data is still unsent, writable. Raises TimeoutError after
    `RESPONSE_TIMEOUT_SECONDS`."""
    loop = asyncio.get_running_loop()
    socket_ready = loop.create_future()

    def on_ready() -> None:
        if not socket_ready.done():
            socket_ready.set_result(None)

    def on_timeout() -> None:
        if not socket_ready.done():
            socket_ready.set_exception(TimeoutError())

    loop.add_reader(descriptor, on_ready)
    if has_unsent:
        loop.add_writer(descriptor, on_ready)
    timer = loop.call_later(RESPONSE_TIMEOUT_SECONDS, on_timeout)
    try:
        await socket_ready
    finally:
        timer.cancel()
        loop.remove_reader(descriptor)
        if has_unsent:
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
        # libpq would silently cut the text at the null byte.
        raise ContentError("22021", "text must not contain U+0000")
    return values


def classify_error(result: PGresult) -> StoreError:
    """Classify an error by its SQLSTATE. An error without one is a failure of the connection.

    The text is for logs, so it must not contain values of a row. DETAIL and CONTEXT quote values and are not used. The
    message of a data exception (class 22) quotes them, too, so only the part before the quotation is kept.
    """
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    if sqlstate is None:
        return TransientError("08006", "the connection to the database was lost")
    code = sqlstate.decode()
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    if code.startswith(_CONTENT_SQLSTATES):
        return ContentError(code, message.partition('"')[0] if code.startswith(_DATA_EXCEPTION) else message)
    if code.startswith(_TRANSIENT_SQLSTATES):
        return TransientError(code, message)
    return StoreError(code, message)
