"""Fixtures of the SDK: it asks over HTTP, so that the engine behind the server is nothing to it. What it asks for is
tested on both by those who answer; a server inside a program is tested on both here (`test_embedded.py`)."""

from __future__ import annotations

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(params=["sqlite"])
def server(server: ServerProcess) -> ServerProcess:
    return server
