"""Fixtures of the promises that hold through any number of replicas."""

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
    started = Servers(tmp_path_factory.mktemp("replicas"))
    try:
        yield asyncio.run(add_replicas(postgres_server, started, 2))
    finally:
        started.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def replicas(request: pytest.FixtureRequest) -> list[ServerProcess]:
    """As many servers on one database as the engine can have: one on SQLite, three on PostgreSQL."""
    if request.param == "sqlite":
        return [request.getfixturevalue("sqlite_server")]
    found: list[ServerProcess] = request.getfixturevalue("postgres_replicas")
    return found
