"""Creates, upgrades and checks the schema. Both engines have the same sequence of Alembic revisions.

`upgrade` imports Alembic and SQLAlchemy, so it runs in a separate process: `python -m quarterdeck db upgrade`. `qd up`
starts that process if a SQLite file needs an upgrade; for PostgreSQL, only with `--migrate`. The checks import neither
library.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quarterdeck.store.interface import StoreError, TransientError
from quarterdeck.store.postgres_roles import SERVER, role_denied_message

VERSIONS = Path(__file__).parent / "migrations" / "versions"
MIGRATION_LOCK = 0x71756172746572
"""The number of the advisory lock that an upgrade of PostgreSQL holds: "quarter" in ASCII."""
COMPATIBLE_REVISIONS: tuple[str, ...] = ()
"""Revisions of the previous release that this release can serve until the database is upgraded."""


def revisions() -> list[str]:
    """All revisions of this release, oldest first, from the file names."""
    return sorted(path.name.split("_")[0] for path in VERSIONS.glob("[0-9]*.py"))


def schema_mismatch(current: str | None) -> str | None:
    """Why this release cannot serve a schema at this revision, and how to fix that. None if it can."""
    all_revisions = revisions()
    if current == all_revisions[-1] or current in COMPATIBLE_REVISIONS:
        return None
    if current is None:
        return "The database has no schema yet. Run `qd db upgrade` (or `qd up --migrate`)."
    if current in all_revisions:
        return (
            f"The database is at revision {current}, behind this release ({all_revisions[-1]}). "
            "Run `qd db upgrade` (or `qd up --migrate`)."
        )
    return (
        f"The database is at revision {current}, which is ahead of this release ({all_revisions[-1]}). "
        "Run a release that has this revision, or restore a backup made before the upgrade."
    )


def current_revision(url: str) -> str | None:
    """The revision of a database, or None if it has no schema. Does not import Alembic."""
    if path := sqlite_path(url):
        if not path.exists():
            return None
        try:
            return _sqlite_revision(path)
        except sqlite3.Error as error:
            raise StoreError("sqlite", f"{path} cannot be opened as a SQLite database: {error}.") from error
    return _postgres_revision(url)


def _sqlite_revision(path: Path) -> str | None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if not connection.execute("select 1 from sqlite_master where name = 'alembic_version'").fetchone():
            return None
        row = connection.execute("select version_num from alembic_version").fetchone()
        return str(row[0]) if row else None


def _postgres_revision(url: str) -> str | None:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("driver", "PostgreSQL needs an extra: pip install 'quarterdeck[postgres]'.") from error
    try:
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
            version_table = connection.execute("select to_regclass('alembic_version')").fetchone()
            if not version_table or version_table[0] is None:
                return None
            try:
                # The login may have no privilege except to act as the server role.
                connection.execute(
                    "select set_config('role', %s, false) where not has_table_privilege('alembic_version', 'select')",
                    [SERVER],
                )
            except psycopg.errors.InsufficientPrivilege as error:
                raise StoreError("role", role_denied_message(connection.info.user, SERVER)) from error
            row = connection.execute("select version_num from alembic_version").fetchone()
            return str(row[0]) if row else None
    except psycopg.Error as error:
        raise TransientError("08001", f"the database cannot be reached: {error}") from error


def sqlite_path(url: str) -> Path | None:
    """The file of a `sqlite:///path` URL (four slashes for an absolute path), or None for a PostgreSQL URL. Raises
    `StoreError` for any other URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return Path(unquote(parts.path[1:]))
    if parts.scheme in ("postgresql", "postgres"):
        return None
    # Show only the scheme, because a malformed URL may contain a password.
    masked_url = f"{parts.scheme}:…" if parts.scheme else "the database's URL"
    raise StoreError("url", f"{masked_url} is neither sqlite:///FILE nor postgresql://HOST/DATABASE.")


def upgrade(url: str, target: str = "head") -> str:
    """Upgrade a database to a revision and return its new revision. A lock serializes concurrent upgrades."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import Connection

    with _locked_connection(url) as connection:
        assert isinstance(connection, Connection)
        raise_if_ahead(current_revision(url))
        config = Config()
        config.set_main_option("script_location", str(VERSIONS.parent))
        config.attributes["connection"] = connection
        command.upgrade(config, target)
    new_revision = current_revision(url)
    if new_revision is None:
        raise StoreError("migration", "the upgrade wrote no revision")
    return new_revision


def initialize(url: str) -> tuple[str | None, str]:
    """Create the schema or upgrade it to head. Return the revisions before and after.

    A missing SQLite file is created. A database at head is left unchanged. `StoreError` is raised for a database that
    is ahead of this release, and for one with tables but no revision: it belongs to another program or is an incomplete
    copy.
    """
    before = current_revision(url)
    raise_if_ahead(before)
    if before is None and _has_tables(url):
        raise StoreError(
            "migration",
            "The database has tables but no revision: it belongs to another program or is an incomplete copy. Nothing "
            "was changed: use an empty database, restore a backup, or run `qd db upgrade` to add the schema to the "
            "existing tables.",
        )
    return before, upgrade(url) if before != revisions()[-1] else before


def _has_tables(url: str) -> bool:
    path = sqlite_path(url)
    if path:
        if not path.exists():
            return False
        with contextlib.closing(sqlite3.connect(path)) as connection:
            tables = connection.execute(
                "select 1 from sqlite_master where type = 'table' and name not like 'sqlite_%'"
                " and name <> 'alembic_version'"
            )
            return tables.fetchone() is not None
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
            # Tables that belong to an extension do not count.
            row = connection.execute(
                "select exists (select from pg_catalog.pg_class c"
                " join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
                " where n.nspname = any (current_schemas(false))"
                " and c.relkind in ('r', 'p') and c.relname <> 'alembic_version'"
                " and not exists (select from pg_catalog.pg_depend d where d.objid = c.oid and d.deptype = 'e'))"
            ).fetchone()
    except psycopg.Error as error:
        raise TransientError("08001", f"the database cannot be reached: {error}") from error
    return bool(row and row[0])


def raise_if_ahead(current: str | None) -> None:
    """Raise `StoreError` for a revision that this release does not have, because it cannot downgrade."""
    if current is not None and current not in revisions():
        raise StoreError("migration", schema_mismatch(current) or "")


@contextlib.contextmanager
def _locked_connection(url: str) -> Iterator[object]:
    """A connection in a transaction that holds the migration lock."""
    import sqlalchemy

    path = sqlite_path(url)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

        def connect() -> sqlite3.Connection:
            # With the driver's autocommit, BEGIN IMMEDIATE below encloses all statements, including DDL.
            return sqlite3.connect(path, isolation_level=None, timeout=30)

        engine = sqlalchemy.create_engine("sqlite://", creator=connect, poolclass=sqlalchemy.NullPool)
        lock_sql = "begin immediate"
    else:
        import psycopg

        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=sqlalchemy.NullPool
        )
        lock_sql = f"select pg_advisory_xact_lock({MIGRATION_LOCK})"
    with engine.begin() as connection:
        if path:
            connection.exec_driver_sql("pragma journal_mode = wal")
        connection.exec_driver_sql(lock_sql)
        yield connection
