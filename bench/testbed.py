"""The environment of the measurements: a private PostgreSQL and Redis, new databases, zones, and servers.

All files are in one temporary directory. On exit the processes are stopped by their process id and the directory is
deleted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg

from bench.meter import WatchedProcesses
from bench.plan import Plan
from bench.server_process import run_server
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.databases import PostgresDatabases
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer

SECRET_KEYS = f"bench:{base64.b64encode(bytes(32)).decode()}\n"
SERVER_PROGRAM = ("quarterdeck", "up")


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    url: str
    pid: int
    data_dir: Path
    database: str | None
    """The URL of the PostgreSQL database. None: SQLite in the data directory."""
    postgres_pid: int | None
    token: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname and parts.port
        return parts.hostname, parts.port

    @property
    def engine(self) -> str:
        return "PostgreSQL" if self.database else "SQLite"

    @property
    def watched_processes(self) -> WatchedProcesses:
        return WatchedProcesses(self.pid, self.postgres_pid)

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30)

    def create_zones(self, name: str, count: int) -> list[str]:
        """Create zones with every limit at its maximum."""
        zone_ids = [f"{name}-{i}" for i in range(count)]
        with self.client() as client:
            for zone in zone_ids:
                client.put(f"/zones/{zone}", json={"quotas": CEILINGS}).raise_for_status()
        return zone_ids


class Testbed:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._resources = contextlib.ExitStack()
        self._directory = Path(tempfile.mkdtemp(prefix="quarterdeck-bench-"))
        self._resources.callback(shutil.rmtree, self._directory, ignore_errors=True)

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def new_directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._directory))

    # -- PostgreSQL ----------------------------------------------------------------------------------------------

    @cached_property
    def postgres(self) -> PostgresServer:
        server = PostgresServer()
        self._resources.callback(server.close)
        server.start()
        return server

    @property
    def uses_postgres(self) -> bool:
        """Whether PostgreSQL was started. It is started on first use only."""
        return "postgres" in self.__dict__

    @cached_property
    def _databases(self) -> PostgresDatabases:
        return PostgresDatabases(self.postgres.url())

    @contextlib.contextmanager
    def new_database(self) -> Iterator[str]:
        """The URL of a new, migrated database."""
        url = self._databases.create_migrated()
        try:
            yield url
        finally:
            self._databases.drop(url)

    @contextlib.contextmanager
    def new_empty_database(self) -> Iterator[str]:
        """The URL of a new database without tables."""
        url = self._databases.create_blank()
        try:
            yield url
        finally:
            self._databases.drop(url)

    def postgres_version(self) -> str:
        with psycopg.connect(self.postgres.url()) as connection:
            row = connection.execute("show server_version").fetchone()
            return str(row[0]) if row else "unknown"

    def flush_to_disk(self) -> None:
        """Write back dirty pages of earlier runs, so that they do not slow down the next one."""
        if self.uses_postgres:
            with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
                connection.execute("checkpoint")
        os.sync()

    # -- Redis ---------------------------------------------------------------------------------------------------

    @cached_property
    def redis(self) -> RedisServer:
        server = RedisServer()
        self._resources.callback(server.close)
        server.start()
        return server

    @property
    def uses_redis(self) -> bool:
        return "redis" in self.__dict__

    def redis_version(self) -> str:
        info: Mapping[str, object] = self.redis.direct.client.info("server")
        return str(info["redis_version"])

    # -- servers -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def start_server(
        self,
        database: str | None = None,
        program: Sequence[str] = SERVER_PROGRAM,
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[Target]:
        """Start a server as a user does, and wait until it is ready. Without `database` it uses SQLite."""
        data = self.new_directory()
        # The same keys for all servers: several may use one database, at the same time or one after the other.
        secret_keys = data / "secret-keys"
        secret_keys.write_text(SECRET_KEYS)
        secret_keys.chmod(0o600)
        command = [sys.executable, "-m", *program, "--data", str(data), "--port", "0"]
        command += ["--database", database] if database else []
        with run_server(command, data, variables) as server:
            token = (data / "admin-token").read_text().strip()
            yield Target(server.url, server.pid, data, database, self.postgres.pid if database else None, token)

    @contextlib.contextmanager
    def start_fresh_server(self, engine: str) -> Iterator[Target]:
        """A server on a new database of its own."""
        if engine == "SQLite":
            with self.start_server() as target:
                yield target
        else:
            with self.new_database() as database, self.start_server(database) as target:
                yield target
