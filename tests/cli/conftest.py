"""Fixtures of the command line: it asks over HTTP and prints what is answered, so that the engine behind the server is
nothing to it. One test of each noun runs on both all the same (`ON_BOTH`): what is printed comes from there."""

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
    """`qd` beside a server that others use too, in a zone of its own."""
    return Qd(zone.server.launch.data, QD_ZONE=zone.id)
