"""Canaries: unique secrets that a test plants. A canary that is found somewhere identifies where it was planted."""

from __future__ import annotations

import base64
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
from psycopg import sql

from quarterdeck.store.migrate import sqlite_path
from tests.support.redis import DirectRedis


class Canaries:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def __call__(self, location: str) -> str:
        """Return a new canary and store where it is planted. Letters and digits only: no encoder escapes them."""
        value = f"canary{secrets.token_hex(12)}"
        self.values[location] = value
        return value

    def find_in(self, content: bytes | str) -> list[str]:
        """Return the locations of the canaries that these bytes contain, plain or encoded."""
        raw = content.encode() if isinstance(content, str) else content
        return [
            location for location, value in self.values.items() if any(encoding in raw for encoding in encodings(value))
        ]


def encodings(value: str) -> list[bytes]:
    raw = value.encode()
    # Base64 at each of the three offsets in a group, without the characters that depend on neighbouring bytes.
    encoded = [base64.b64encode(b"\0" * shift + raw)[4:-4] for shift in range(3)]
    return [raw, raw.hex().encode(), raw.upper(), *encoded]


def table_rows(url: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of every table of a database."""
    if path := sqlite_path(url):
        with closing(sqlite3.connect(path)) as sqlite:
            for (name,) in sqlite.execute("select name from sqlite_master where type = 'table'").fetchall():
                yield name, str(sqlite.execute(f'select * from "{name}"').fetchall())
        return
    with psycopg.connect(url) as connection:
        names = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        for (name,) in names:
            found = connection.execute(sql.SQL("select t::text from {} t").format(sql.Identifier(name)))
            yield name, str(found.fetchall())


def data_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of every file of a data directory, also of the database and its WAL."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes()


def dump_redis(redis: DirectRedis) -> str:
    """Return every key with its serialized value and its type."""
    client = redis.client
    content = []
    for key in client.scan_iter("*"):
        content += [key, client.dump(key), client.type(key)]
    return repr(content)
