"""A read-only snapshot of a database, read in pages.

A SQLite file is opened read-only and read in one transaction. In WAL mode a reader does not block writers, so a server
may have the file open. PostgreSQL is read in one REPEATABLE READ, READ ONLY transaction through server-side cursors.
Rows are fetched in pages, so even a large table needs little memory.

The maintenance tools must see all rows. If PostgreSQL's row-level security applies to the login, the connection
switches to the role `quarterdeck_sweep`, which can read every zone. A login without that role is refused: a check that
sees only some of the rows would report gaps that do not exist.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from quarterdeck.core.clock import system_now
from quarterdeck.maintenance.queries import Q
from quarterdeck.store.interface import Row, StoreError, TransientError
from quarterdeck.store.migrate import schema_mismatch, sqlite_path
from quarterdeck.store.sql import BoundStatement

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

PAGE_ROWS = 2_000


class Snapshot(Protocol):
    def pages(self, query: BoundStatement) -> Iterator[Sequence[Row]]:
        """The rows of a statement, page by page."""


def first_row(snapshot: Snapshot, query: BoundStatement) -> Row | None:
    return next((page[0] for page in snapshot.pages(query)), None)


def iter_rows(snapshot: Snapshot, query: BoundStatement) -> Iterator[Row]:
    return itertools.chain.from_iterable(snapshot.pages(query))


@contextlib.contextmanager
def open_snapshot(url: str) -> Iterator[Snapshot]:
    """Raises StoreError, with a message for the operator, if the database or some of its rows cannot be read."""
    path = sqlite_path(url)
    with _open_sqlite(path) if path else _open_postgres(url) as snapshot:
        _check_schema(snapshot)
        yield snapshot


def _check_schema(snapshot: Snapshot) -> None:
    try:
        revision_row = first_row(snapshot, Q.schema_revision())
    except sqlite3.OperationalError:  # no such table; for PostgreSQL see `_open_postgres`
        revision_row = None
    if message := schema_mismatch(str(revision_row[0]) if revision_row else None):
        raise StoreError("schema", message)


# -- SQLite -------------------------------------------------------------------------------------------------------


class _SqliteSnapshot:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def pages(self, query: BoundStatement) -> Iterator[Sequence[Row]]:
        rows_yielded = 0
        try:
            for page in self._read_pages(query):
                yield page
                rows_yielded += len(page)
            return
        except sqlite3.OperationalError as error:
            if "UTF-8" not in str(error):
                raise
        # A string in the database is not valid UTF-8, so no server wrote it. The check must report the row instead of
        # failing, so the statement runs again and returns such strings as bytes, which is slower.
        self._connection.text_factory = _text_or_bytes
        remaining_rows = itertools.islice(itertools.chain.from_iterable(self._read_pages(query)), rows_yielded, None)
        while page := list(itertools.islice(remaining_rows, PAGE_ROWS)):
            yield page

    def _read_pages(self, query: BoundStatement) -> Iterator[Sequence[Row]]:
        cursor = self._connection.execute(query.statement.sqlite, query.named_params())
        while page := cursor.fetchmany(PAGE_ROWS):
            yield page


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


@contextlib.contextmanager
def _open_sqlite(path: Path) -> Iterator[Snapshot]:
    if not path.is_file():
        raise StoreError("missing", f"There is no database at {path}.")
    with contextlib.closing(open_read_only(path)) as connection:
        connection.create_function("now_ms", 0, system_now)
        try:
            connection.execute("begin")
            yield _SqliteSnapshot(connection)
        except sqlite3.Error as error:
            raise StoreError("sqlite", f"{path} cannot be read as a SQLite database: {error}.") from error


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a SQLite file read-only. If the disk is read-only and there is no WAL file, open the file as immutable."""
    uri = f"file:{quote(str(path.absolute()))}"
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, isolation_level=None, timeout=10)
    try:
        connection.execute("select 1 from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        wal_file = path.with_name(f"{path.name}-wal")
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or wal_file.exists():
            raise StoreError("sqlite", f"{path} cannot be read as a SQLite database: {error}.") from error
        connection = sqlite3.connect(f"{uri}?immutable=1", uri=True, isolation_level=None)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError("sqlite", f"{path} cannot be read as a SQLite database: {error}.") from error
    return connection


# -- PostgreSQL ---------------------------------------------------------------------------------------------------


class _PostgresSnapshot:
    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
        self._connection = connection
        self._cursor_numbers = itertools.count(1)

    def pages(self, query: BoundStatement) -> Iterator[Sequence[Row]]:
        import psycopg

        cursor_name = f"{query.statement.name}_{next(self._cursor_numbers)}"
        with psycopg.RawServerCursor(self._connection, cursor_name) as cursor:
            cursor.execute(query.statement.postgresql.encode(), query.positional_params() or None)
            while page := cursor.fetchmany(PAGE_ROWS):
                yield page


@contextlib.contextmanager
def _open_postgres(url: str) -> Iterator[Snapshot]:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("driver", "The PostgreSQL driver is missing: pip install 'quarterdeck[postgres]'") from error
    try:
        with psycopg.connect(url, connect_timeout=5, autocommit=True, application_name="quarterdeck") as connection:
            _use_sweep_role(connection)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with connection.transaction():
                yield _PostgresSnapshot(connection)
    except psycopg.OperationalError as error:
        raise TransientError("08001", f"the database cannot be read: {error}") from error
    except psycopg.errors.UndefinedTable as error:
        raise StoreError("schema", schema_mismatch(None) or "") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError("role", f"This login may not read the database: {error.diag.message_primary}.") from error


_ROW_SECURITY_ACTIVE = """
select exists (
    select from pg_class c
    where c.relkind in ('r', 'p') and row_security_active(c.oid)
      and c.relnamespace = (select z.relnamespace from pg_class z where z.oid = to_regclass('zones')))
"""


def _use_sweep_role(connection: psycopg.Connection[TupleRow]) -> None:
    import psycopg

    from quarterdeck.store.postgres_roles import SWEEP

    row_security = connection.execute(_ROW_SECURITY_ACTIVE).fetchone()
    if not row_security or not row_security[0]:
        return  # The login owns the tables or bypasses row-level security.
    try:
        connection.execute(f"set role {SWEEP}".encode())
    except psycopg.Error as error:
        login = psycopg.sql.quote(connection.info.user)
        raise StoreError(
            "role",
            "Row-level security hides some rows from this login. Ask an administrator to run: "
            f"GRANT {SWEEP} TO {login};",
        ) from error
