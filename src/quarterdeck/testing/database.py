"""A database that is ready: migrated once in a process, and written out for each test."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from functools import cache
from pathlib import Path

from quarterdeck.store.migrate import upgrade

FILE = "quarterdeck.db"


def lay(data: Path) -> None:
    """Puts one into a data directory."""
    (data / FILE).write_bytes(_blank())


@cache
def _blank() -> bytes:
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as directory:
        file = Path(directory) / FILE
        upgrade(f"sqlite:///{file}")
        with contextlib.closing(sqlite3.connect(file)) as connection:
            # So that one file is all of it.
            connection.execute("pragma wal_checkpoint(truncate)")
        return file.read_bytes()
