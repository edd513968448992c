"""Health of coordination: cached checks, bounded waits, and the reported status."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.domain.coordination.background import health_checks
from quarterdeck.domain.coordination.background.health_checks import CONNECTED, REACHABLE, HealthCheck, HealthReporter
from quarterdeck.domain.coordination.background.metrics import CoordinatorMetrics
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.wakeups import Wakeups
from tests.domain.test_recovery_patterns import FailingWork
from tests.support.runtime import RuntimeHarness


class Dependency:
    """A dependency with a health probe that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_down = False
        self.hangs = False

    async def __call__(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise OSError("unavailable")


async def test_health_check_caches_the_probe_result() -> None:
    dependency = Dependency()
    check = HealthCheck(dependency, CONNECTED)
    assert [await check.status() for _ in range(50)] == ["connected"] * 50
    assert dependency.calls == 1


async def test_failing_or_hanging_probe_is_reported_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "PROBE_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(health_checks, "FRESH_SECONDS", 0.0)
    dependency = Dependency()
    check = HealthCheck(dependency, REACHABLE)
    assert await check.status() == "reachable"
    dependency.is_down = True
    assert await check.status() == "unreachable"
    dependency.is_down, dependency.hangs = False, True
    statuses = await asyncio.gather(*(check.status() for _ in range(20)))
    assert {*statuses} == {"unreachable"}
    assert dependency.calls == 3, "a probe that hangs is not called again before it returns"
    await check.close()


async def test_health_is_unhealthy_without_coordinator_and_degraded_without_gateway(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_checks, "FRESH_SECONDS", 0.0)
    work, gateway = FailingWork(), Dependency()
    leader_loop = LeaderLoop("coordinator", runtime.cross_zone_engine, Wakeups(), 60_000, work)
    reporter = HealthReporter(
        leader_loop,
        CoordinatorMetrics(),
        HealthCheck(runtime.store.ping, CONNECTED),
        None,
        HealthCheck(gateway, REACHABLE),
    )
    work.database_is_down = False
    leader_loop.start()
    try:
        view = await reporter.build_view()
        assert (view.status, view.database, view.valkey, view.gateway) == (
            "healthy", "connected", "not_configured", "reachable"
        )  # fmt: skip
        gateway.is_down = True
        assert (await reporter.build_view()).status == "degraded"
        leader_loop.error = "the database is unavailable"
        assert ((await reporter.build_view()).status, (await reporter.build_view()).coordinator.active) == (
            "unhealthy",
            False,
        )
    finally:
        await leader_loop.stop()
        await reporter.stop()
    assert (await reporter.build_view()).status == "unhealthy", "a stopped leader loop is unhealthy"


def test_metrics_count_final_failures_and_exhausted_retries() -> None:
    metrics = CoordinatorMetrics()
    data = ('{"final":false}', '{"final":true}', '{"final":true,"exhausted":true}')
    metrics.record_events([NewEvent("task.failed", "z", "t", "server", data=text) for text in data])
    metrics.record_events([NewEvent("task.completed", "z", "t", "server", data="{}")])
    assert (metrics.tasks_failed, metrics.retries_exhausted) == (2, 1)
