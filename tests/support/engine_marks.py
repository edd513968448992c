"""Marks for HTTP tests that run on other engines than the rest of their file."""

from __future__ import annotations

import pytest

ON_SQLITE = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
"""For requests that never reach the database: they behave the same on both engines."""
ON_BOTH = pytest.mark.parametrize("server", ["sqlite", "postgresql"], indirect=True)
STARTED_ON_SQLITE = pytest.mark.parametrize("engine_url", ["sqlite"], indirect=True)
"""The same for tests that start their own server, which takes longer than the test itself."""
