"""How coordination says that it fares: asked by anybody, bounded, and never hanging."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.domain.coordination import health
from quarterdeck.domain.coordination.health import CONNECTED, REACHABLE, HealthCheck, HealthReporter
from quarterdeck.domain.coordination.metrics import CoordinatorMetrics
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.wakeups import Wakeups
from tests.domain.test_recovery_patterns import Failing
from tests.support.runtime import RuntimeHarness


class Other:
    """Somebody that is asked; counts how often."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self.hangs = False

    async def __call__(self) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_away:
            raise OSError("away")


async def test_others_are_asked_now_and_then_however_often_somebody_asks() -> None:
    other = Other()
    check = HealthCheck(other, CONNECTED)
    assert [await check.status() for _ in range(50)] == ["connected"] * 50
    assert other.asked == 1


async def test_one_that_is_away_or_does_not_answer_is_said_to_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    other = Other()
    check = HealthCheck(other, REACHABLE)
    assert await check.status() == "reachable"
    other.is_away = True
    assert await check.status() == "unreachable"
    other.is_away, other.hangs = False, True
    answers = await asyncio.gather(*(check.status() for _ in range(20)))
    assert {*answers} == {"unreachable"}
    assert other.asked == 3, "one that does not answer is not asked again before it has"
    await check.close()


async def test_it_is_unhealthy_while_the_coordinator_cannot_go_on_and_degraded_without_its_gateway(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    work, gateway = Failing(), Other()
    duty = LeaderLoop("coordinator", runtime.cross_zone_engine, Wakeups(), 60_000, work)
    told = HealthReporter(
        duty, CoordinatorMetrics(), HealthCheck(runtime.store.ping, CONNECTED), None, HealthCheck(gateway, REACHABLE)
    )
    work.is_away = False
    duty.start()
    try:
        view = await told.build_view()
        assert (view.status, view.database, view.valkey, view.gateway) == (
            "healthy", "connected", "not_configured", "reachable"
        )  # fmt: skip
        gateway.is_away = True
        assert (await told.build_view()).status == "degraded"
        duty.error = "the database is away"
        assert ((await told.build_view()).status, (await told.build_view()).coordinator.active) == ("unhealthy", False)
    finally:
        await duty.stop()
        await told.stop()
    assert (await told.build_view()).status == "unhealthy", "one that does not run does not coordinate"


def test_failures_are_counted_by_what_they_mean() -> None:
    figures = CoordinatorMetrics()
    data = ('{"final":false}', '{"final":true}', '{"final":true,"exhausted":true}')
    figures.record_events([NewEvent("task.failed", "z", "t", "server", data=each) for each in data])
    figures.record_events([NewEvent("task.completed", "z", "t", "server", data="{}")])
    assert (figures.tasks_failed, figures.retries_exhausted) == (2, 1)
