"""Fixtures of the command line on both engines."""

from __future__ import annotations

import pytest

from tests.cli.cli_support import Qd
from tests.support.zone import FreshZone


@pytest.fixture
def here(zone: FreshZone) -> Qd:
    """`qd` beside a server that others use too, in a zone of its own; the test runs once on each engine."""
    return Qd(zone.server.launch.data, QD_ZONE=zone.id)
