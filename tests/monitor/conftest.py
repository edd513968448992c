"""Fixtures of the monitor: `qd` in a zone of its own on a server that others use too, and a tmux of its own. It is
the same over either engine: what it does is seen in panes, and what it says is a few routes."""

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
