"""Fixtures of store and engine: a runtime on each engine, with one zone whose limits are never reached."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quarterdeck.engine.settings import SinkSettings
from tests.support.redis import DirectRedis
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.sink import NewSink, SinkHarness
from tests.support.structs import build_struct


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        yield runtime


@pytest.fixture
async def new_sink(runtime: RuntimeHarness, redis: DirectRedis) -> AsyncIterator[NewSink]:
    """Creates harnesses of one sink, each like a separate process."""
    harnesses: list[SinkHarness] = []

    def new(url: str = redis.url, **settings: object) -> SinkHarness:
        harnesses.append(SinkHarness(runtime, url, build_struct(SinkSettings, **settings)))
        return harnesses[-1]

    await new().sink.register()
    yield new
    for harness in harnesses:
        await harness.close()
