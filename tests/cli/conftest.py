"""Fixtures of the CLI tests.

`qd` uses the HTTP API only, so most tests run on SQLite. One test per noun runs on both engines (`ON_BOTH`)."""

from __future__ import annotations

import pytest

from tests.cli.cli_support import Qd
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone


@pytest.fixture(params=["sqlite"])
def server(server: ServerProcess) -> ServerProcess:
    return server


@pytest.fixture
def zone_qd(zone: FreshZone) -> Qd:
    """`qd` on a shared server, in its own zone."""
    return Qd(zone.server.launch.data, QD_ZONE=zone.id)
