"""Fixtures for domain tests: a runtime on each engine with one zone and generous limits, and components on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.agents import AgentHarness
from tests.support.delegations import DelegationHarness
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.services import OTHER_ZONE, ServiceHarness
from tests.support.webhooks import WebhookHarness, open_webhook_harness


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        yield runtime


@pytest.fixture
async def service_harness(runtime: RuntimeHarness) -> AsyncIterator[ServiceHarness]:
    await runtime.put_zone(OTHER_ZONE)
    harness = ServiceHarness(runtime)
    yield harness
    await harness.lanes.drain()


@pytest.fixture
def agent_harness(runtime: RuntimeHarness) -> AgentHarness:
    return AgentHarness(runtime)


@pytest.fixture
def delegation_harness(runtime: RuntimeHarness) -> DelegationHarness:
    return DelegationHarness(runtime)


@pytest.fixture
async def webhook_harness(engine_url: str) -> AsyncIterator[WebhookHarness]:
    async with open_webhook_harness(engine_url) as harness:
        yield harness
