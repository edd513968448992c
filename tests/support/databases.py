"""Fresh databases at low cost: the schema is migrated once into a template, and every test gets a copy."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from quarterdeck.store.migrate import upgrade


class PostgresDatabases:
    """Databases on one PostgreSQL: the run's own, or the one at QD_TEST_POSTGRES_URL."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url
        # The process id is part of the name: two runs may share one server.
        self._prefix = f"qd_test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._template: str | None = None
        self._created: set[str] = set()

    def create_migrated(self) -> str:
        """Create a migrated database without rows. Return its URL."""
        if self._template is None:
            template_url = self.create_blank()
            upgrade(template_url)
            self._template = _database_name(template_url)
        return self._create(self._template)

    def create_blank(self) -> str:
        """Create a database without a schema, for tests of migrations. Return its URL."""
        return self._create("template0")

    def drop(self, url: str) -> None:
        """Drop a database and its open connections: a failed test may have left a server running."""
        self._execute_admin("drop database if exists {} with (force)", _database_name(url))
        self._created.discard(_database_name(url))

    def close(self) -> None:
        for name in sorted(self._created):
            self._execute_admin("drop database if exists {} with (force)", name)

    def url(self, database: str) -> str:
        return urlsplit(self._admin_url)._replace(path=f"/{database}").geturl()

    def _create(self, template: str) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        self._execute_admin("create database {} template {}", name, template)
        self._created.add(name)
        return self.url(name)

    def _execute_admin(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._admin_url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*(sql.Identifier(name) for name in names)))


class SqliteDatabases:
    """Database files. The template is checkpointed, so that it is a single file."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"

    def create_migrated(self, directory: Path) -> str:
        """Create a migrated database in this directory. Return its URL."""
        if not self._template.exists():
            upgrade(self.blank_url(self._template))
            with contextlib.closing(sqlite3.connect(self._template)) as connection:
                connection.execute("pragma wal_checkpoint(truncate)")
        file = directory / "quarterdeck.db"
        shutil.copyfile(self._template, file)
        return self.blank_url(file)

    def blank_url(self, file: Path) -> str:
        """Return the URL of a file. It need not exist."""
        return f"sqlite:///{file}"


def _database_name(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
