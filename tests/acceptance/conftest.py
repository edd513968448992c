"""Fixtures: one server on SQLite, several replicas on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.replicas import add_replicas
from tests.support.server import ServerProcess, Servers


@pytest.fixture(scope="module")
def postgres_replicas(
    postgres_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServerProcess]]:
    servers = Servers(tmp_path_factory.mktemp("replicas"))
    try:
        yield asyncio.run(add_replicas(postgres_server, servers, 2))
    finally:
        servers.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def replicas(request: pytest.FixtureRequest) -> list[ServerProcess]:
    """The servers on one database: one on SQLite, three on PostgreSQL."""
    if request.param == "sqlite":
        return [request.getfixturevalue("sqlite_server")]
    all_replicas: list[ServerProcess] = request.getfixturevalue("postgres_replicas")
    return all_replicas
