"""Fixtures of the monitor: `qd` in its own zone on a shared server, and its own tmux server.

The monitor uses panes and a few routes, so one database engine is enough.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.cli_support import Qd
from tests.support.server import ServerProcess
from tests.support.tmux import tmux_server
from tests.support.zone import create_zone

__all__ = ["tmux_server"]


@pytest.fixture
def zone_qd(sqlite_server: ServerProcess) -> Qd:
    zone = asyncio.run(create_zone(sqlite_server))
    return Qd(zone.server.launch.data, QD_ZONE=zone.id)
