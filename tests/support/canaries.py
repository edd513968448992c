"""Secrets that are planted to be looked for: each is like nothing else, and where it sings it is known which it was."""

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

    def __call__(self, place: str) -> str:
        """A new one, remembered by where it was planted. Of letters, so that nothing escapes it on its way."""
        value = f"canary{secrets.token_hex(12)}"
        self.values[place] = value
        return value

    def find_in(self, content: bytes | str) -> list[str]:
        """Those that sing in these bytes, as they are or as others write them down."""
        raw = content.encode() if isinstance(content, str) else content
        return [place for place, value in self.values.items() if any(encoding in raw for encoding in encodings(value))]


def encodings(value: str) -> list[bytes]:
    raw = value.encode()
    # At each of the three places in a group of base64 at which it may begin, without what its neighbours change.
    encoded = [base64.b64encode(b"\0" * shift + raw)[4:-4] for shift in range(3)]
    return [raw, raw.hex().encode(), raw.upper(), *encoded]


def table_rows(url: str) -> Iterator[tuple[str, str]]:
    """Every table of a database, and all that stands in it."""
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
    """Every file of a data directory: the database, what waits in its log, and all beside it."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes()


def dump_redis(redis: DirectRedis) -> str:
    """Every key and what it holds, whatever its kind."""
    client = redis.client
    content = []
    for key in client.scan_iter("*"):
        content += [key, client.dump(key), client.type(key)]
    return repr(content)
