"""An empty database, which is migrated once per process and copied for each test."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from functools import cache
from pathlib import Path

from quarterdeck.store.migrate import upgrade

DATABASE_FILE = "quarterdeck.db"


def create_database(data: Path) -> None:
    """Write an empty, migrated database into a data directory."""
    (data / DATABASE_FILE).write_bytes(_empty_database())


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        file = Path(directory) / DATABASE_FILE
        upgrade(f"sqlite:///{file}")
        with contextlib.closing(sqlite3.connect(file)) as connection:
            # Move everything from the WAL into the database file.
            connection.execute("pragma wal_checkpoint(truncate)")
        return file.read_bytes()
