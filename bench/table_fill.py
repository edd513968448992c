"""Fills tables with sessions, events and counters while a server runs.

The server has already prepared its statements on nearly empty tables, as on its first day.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg

from bench.plan import BenchError
from bench.request_bodies import row_values
from bench.session_counts import SessionCounts, count_sessions
from bench.testbed import Target
from quarterdeck.core.clock import system_now
from quarterdeck.store.sql import BoundStatement, Statement, parse

CHUNK = 20_000
"""Even, so that half of each chunk is terminated; small enough that a server on SQLite can wait for the lock."""
_STATEMENTS = Path(__file__).parent / "scripts" / "fill.sql"
Write = Callable[[BoundStatement], None]


def fill_sessions(target: Target, zone: str, rows: int) -> None:
    """Insert sessions into a zone, half of them live."""
    statements = parse(_STATEMENTS.read_text(encoding="utf-8"))
    connection = _open_postgres(target) if target.database else _open_sqlite(target)
    with connection as (write, commit):
        for first in range(0, rows, CHUNK):
            _write_chunk(statements, write, zone, range(first, min(first + CHUNK, rows)))
            commit()
    ended = rows // 2
    if count_sessions(target, [zone]) != SessionCounts(rows, rows, rows - ended, rows - ended, ended):
        raise BenchError(f"{rows} sessions were inserted, but the zone holds {count_sessions(target, [zone])}.")
    if target.database:
        vacuum_analyze(target.database)


def _write_chunk(statements: Mapping[str, Statement], write: Write, zone: str, numbers: range) -> None:
    values = row_values(zone)
    ended = sum(1 for number in numbers if number % 2)
    row: dict[str, str | int] = {**values, "first": numbers[0], "last": numbers[-1]}
    row |= {"live": len(numbers) - ended, "ever": len(numbers)}
    for name, count in (
        ("fill_sessions", 0),
        ("fill_counts", 0),
        ("fill_trees", 0),
        ("fill_spawned", 0),
        ("fill_head", len(numbers)),
        ("fill_ended", 0),
        ("fill_head", ended),
    ):
        statement = statements[name]
        params = {**row, "count": count}
        write(statement(**{param: params[param] for param in statement.param_order}))


@contextlib.contextmanager
def _open_postgres(target: Target) -> Iterator[tuple[Write, Callable[[], None]]]:
    assert target.database is not None
    with psycopg.connect(target.database, cursor_factory=psycopg.RawCursor) as connection:

        def write(bound: BoundStatement) -> None:
            connection.execute(bound.statement.postgresql.encode(), bound.positional_params())

        yield write, connection.commit


@contextlib.contextmanager
def _open_sqlite(target: Target) -> Iterator[tuple[Write, Callable[[], None]]]:
    path = target.data_dir / "quarterdeck.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.create_function("now_ms", 0, system_now)

        def write(bound: BoundStatement) -> None:
            connection.execute(bound.statement.sqlite, bound.named_params())

        yield write, connection.commit


def vacuum_analyze(database: str) -> None:
    # Otherwise autovacuum starts within a minute, during a run.
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
