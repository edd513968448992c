"""Fixtures of every test. They stop and remove what they started when the test, or the run, ends.

| fixture        | gives                                                                                   |
|----------------|-----------------------------------------------------------------------------------------|
| `engine_url`   | URL of a fresh, migrated database; the test runs once on each engine                      |
| `blank_url`    | the same without a schema                                                                 |
| `sqlite_url`   | URL of a fresh, migrated SQLite file                                                      |
| `postgres_url` | URL of a fresh, migrated PostgreSQL database                                              |
| `postgres`     | the `PostgresDatabases` of the run: more fresh databases; never stop its server           |
| `own_postgres` | a `PostgresServer` for this test alone, to stop, restart or kill                          |
| `redis`        | a `DirectRedis`: an empty Redis; never stop its server                                    |
| `own_redis`    | a `RedisServer` for this test alone, to stop, restart, kill or freeze                     |
| `launch`       | a `Launch`: how to start a server on `engine_url`; the test runs once on each engine       |
| `servers`      | a `Servers`: starts real server processes; their logs are shown when the test fails       |
| `server`       | a server that all tests of the run share; the test runs once on each engine               |
| `zone`         | a `FreshZone` on `server` for this test alone: what most tests over HTTP need             |
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.child_processes import interrupt_on_sigterm, stop_ignoring_sigint, tail
from tests.support.databases import PostgresDatabases, SqliteDatabases
from tests.support.http_endpoint import HttpEndpoint, run_endpoint
from tests.support.postgres import PostgresServer, run_postgres
from tests.support.redis import DirectRedis, RedisServer, run_redis
from tests.support.server import Launch, ServerProcess, Servers, launch_on
from tests.support.zone import FreshZone, create_zone


def pytest_configure() -> None:
    interrupt_on_sigterm()
    stop_ignoring_sigint()


LONGEST_FIRST = ("tests/chaos/test_session_plane.py", "tests/chaos/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: started last, they would run alone at the end and prolong a parallel run."""

    def priority(item: pytest.Item) -> int:
        return next((n for n, prefix in enumerate(LONGEST_FIRST) if item.nodeid.startswith(prefix)), len(LONGEST_FIRST))

    items.sort(key=priority)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = getattr(item, "funcargs", {})
    servers, server = used.get("servers"), used.get("server")
    if report.when == "call" and report.failed and isinstance(servers, Servers):
        report.sections.append(("logs of the servers", servers.logs()))
    if report.when == "call" and report.failed and isinstance(server, ServerProcess):
        report.sections.append(("log of the shared server", tail(server.log)))
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresDatabases]:
    configured_url = os.environ.get("QD_TEST_POSTGRES_URL")
    if configured_url:
        databases = PostgresDatabases(configured_url)
        yield databases
        databases.close()
        return
    with run_postgres(in_memory=True) as server:
        yield PostgresDatabases(server.url())


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    configured_url = os.environ.get("QD_TEST_REDIS_URL")
    if configured_url:
        # Tests empty their Redis database, so each worker gets its own: the number in the URL plus the worker's.
        parts = urlsplit(configured_url)
        number = int(parts.path.lstrip("/") or 0) + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        yield parts._replace(path=f"/{number}").geturl()
        return
    with run_redis() as server:
        yield server.url


@pytest.fixture
def redis(redis_url: str) -> Iterator[DirectRedis]:
    direct = DirectRedis(redis_url)
    direct.wipe()
    yield direct
    direct.close()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with run_redis() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_databases(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabases:
    return SqliteDatabases(tmp_path_factory.mktemp("template"))


@pytest.fixture
def postgres_url(postgres: PostgresDatabases) -> Iterator[str]:
    url = postgres.create_migrated()
    yield url
    postgres.drop(url)


@pytest.fixture
def sqlite_url(sqlite_databases: SqliteDatabases, tmp_path: Path) -> str:
    return sqlite_databases.create_migrated(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_url(request: pytest.FixtureRequest) -> str:
    # Requested by name, so that a run of only the SQLite tests does not start PostgreSQL.
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def blank_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'quarterdeck.db'}"
        return
    databases: PostgresDatabases = request.getfixturevalue("postgres")
    url = databases.create_blank()
    yield url
    databases.drop(url)


@pytest.fixture
def launch(engine_url: str, tmp_path: Path) -> Launch:
    return launch_on(engine_url, tmp_path)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    running = Servers(tmp_path)
    yield running
    running.close()


@pytest.fixture(scope="session")
def sqlite_server(
    tmp_path_factory: pytest.TempPathFactory, sqlite_databases: SqliteDatabases
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("shared-sqlite")
    yield from _start_shared_server(launch_on(sqlite_databases.create_migrated(directory), directory), directory)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresDatabases) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("shared-postgresql")
    url = postgres.create_migrated()
    yield from _start_shared_server(launch_on(url, directory), directory)
    postgres.drop(url)


def _start_shared_server(launch: Launch, directory: Path) -> Iterator[ServerProcess]:
    running = Servers(directory)
    try:
        # No sweep interferes. Tests of sweeps start their own server.
        yield asyncio.run(running.start(launch.with_environment(QD_TTL_SWEEP_INTERVAL_MS="86400000")))
    finally:
        running.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    shared = request.getfixturevalue("sqlite_server" if request.param == "sqlite" else "postgres_server")
    assert isinstance(shared, ServerProcess)
    assert shared.is_running, f"a test before this one ended the shared server; its log ends:\n{tail(shared.log)}"
    return shared


@pytest.fixture
async def zone(server: ServerProcess) -> FreshZone:
    return await create_zone(server)


@pytest.fixture
async def receiver() -> AsyncIterator[HttpEndpoint]:
    """An HTTP endpoint that records requests."""
    async with run_endpoint() as endpoint:
        yield endpoint
