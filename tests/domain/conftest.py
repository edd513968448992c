"""Fixtures of the rooms: a keel on each engine, with one zone in which nothing is narrow; services on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.keel import Keel, keel_on
from tests.support.serving import OTHER, Serving


@pytest.fixture
async def keel(engine_url: str) -> AsyncIterator[Keel]:
    async with keel_on(engine_url) as laid:
        await laid.zone()
        yield laid


@pytest.fixture
async def serving(keel: Keel) -> AsyncIterator[Serving]:
    await keel.zone(OTHER)
    made = Serving(keel.store)
    yield made
    await made.lanes.drain()
