"""`qd db backup`: a consistent copy of a SQLite database, taken while its server is running.

SQLite's online backup reads the pages of one snapshot and does not block writers. The copy gets its final name only
after it is complete, synced and has passed SQLite's own check, so an interrupted backup leaves no file under that name.
Existing files are not overwritten. For PostgreSQL, the command refuses and refers to pg_dump.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.maintenance.snapshot import open_read_only
from quarterdeck.store.interface import StoreError
from quarterdeck.store.migrate import sqlite_path

POSTGRESQL_HINT = (
    "Back up PostgreSQL with pg_dump --format=custom --file=FILE URL, as the owner of the tables or a superuser, so "
    "that row-level security hides no rows. See docs/backup.md for the steps."
)


class BackupResult(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    position: int
    """The last position of the event log in the copy."""
    anchor: str | None
    """The newest seal in the copy, to be stored on another machine."""

    def text(self) -> str:
        seal_text = f", newest seal {self.anchor}" if self.anchor else ""
        return f"{self.file}: {self.bytes:,} bytes, log position {self.position}{seal_text}"


def create_backup(url: str, file: Path) -> BackupResult:
    """Copy the database to `file`. On failure, raises an error with a message for the operator and leaves no file."""
    source = sqlite_path(url)
    if source is None:
        raise Invalid("use_pg_dump", POSTGRESQL_HINT)
    if not source.is_file():
        raise StoreError("missing", f"There is no database at {source}.")
    if file.exists():
        raise _file_exists(file)
    with _temporary_file(file) as temporary:
        position, anchor = _copy_database(source, temporary)
        _publish(temporary, file)
    return BackupResult(str(file), file.stat().st_size, position, anchor)


@contextlib.contextmanager
def _temporary_file(file: Path) -> Iterator[Path]:
    """An empty temporary file in the same directory. It is deleted when the context ends."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _copy_database(source: Path, temporary: Path) -> tuple[int, str | None]:
    try:
        with (
            contextlib.closing(open_read_only(source)) as original,
            contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as target,
        ):
            original.backup(target)
            # Without WAL the copy is a single file. A server that opens it turns WAL on again.
            target.execute("pragma journal_mode = delete")
            return _inspect_copy(target)
    except sqlite3.Error as error:
        raise StoreError("sqlite", f"The copy failed: {error}.") from error


def _inspect_copy(connection: sqlite3.Connection) -> tuple[int, str | None]:
    [[check_result]] = connection.execute("pragma quick_check(1)").fetchall()
    if check_result != "ok":
        raise StoreError("sqlite", f"The copy failed SQLite's own check: {check_result}.")
    [[position]] = connection.execute("select pos from log_head").fetchall()
    newest_seal = connection.execute("select number || ':' || hash from seals order by number desc limit 1").fetchone()
    return int(position), str(newest_seal[0]) if newest_seal else None


def _publish(temporary: Path, file: Path) -> None:
    """Link the file to its final name. Unlike a rename, a link fails if another process has created that name."""
    _sync(temporary)
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise _file_exists(file) from None
    _sync(file.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_exists(file: Path) -> Conflict:
    return Conflict("file_exists", f"{file} already exists. Choose another name: a backup overwrites nothing.")
