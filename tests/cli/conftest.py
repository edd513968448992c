"""Fixtures of the CLI tests.

`qd` uses the HTTP API only, so most tests run on SQLite. One test per noun runs on both engines (`ON_BOTH`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_support import Qd, run_qd
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone


@pytest.fixture(params=["sqlite"])
def server(server: ServerProcess) -> ServerProcess:
    return server


@pytest.fixture
def zone_qd(zone: FreshZone) -> Qd:
    """`qd` on a shared server, in its own zone."""
    return Qd(zone.server.launch.data, QD_ZONE=zone.id)


@pytest.fixture
def fresh_qd(tmp_path: Path) -> Iterator[Qd]:
    """`qd` with its own data directory and no server."""
    with run_qd(tmp_path / "data") as program:
        yield program
