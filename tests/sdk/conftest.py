"""Fixtures of the SDK tests.

The SDK uses the HTTP API only, so these tests run on SQLite. The embedded server runs on both engines
(`test_embedded.py`)."""

from __future__ import annotations

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(params=["sqlite"])
def server(server: ServerProcess) -> ServerProcess:
    return server
