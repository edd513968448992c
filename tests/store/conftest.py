"""Fixtures of store and engine: a runtime on each engine, with one zone whose limits are never reached."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.runtime import RuntimeHarness, open_runtime


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        yield runtime
