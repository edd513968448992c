"""`quarterdeck.testing`: a test server with a manual clock and no background work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from quarterdeck import testing
from quarterdeck.sdk import Attempt, TaskWorker
from quarterdeck.sdk.errors import NotFound
from quarterdeck.testing import Server


@pytest.fixture
async def qd() -> AsyncIterator[Server]:
    async with testing.server() as server:
        yield server


async def test_clock_moves_only_when_advanced(qd: Server) -> None:
    first = await qd.tasks.create("a", "any")
    second = await qd.tasks.create("b", "any")
    assert first.created_at == second.created_at
    before = qd.clock.now
    assert qd.clock.advance(hours=1, minutes=5) - before == timedelta(minutes=65)
    third = await qd.tasks.create("c", "any")
    assert third.created_at - first.created_at == timedelta(minutes=65)
    with pytest.raises(ValueError, match="cannot go back"):
        qd.clock.advance(seconds=-1)


async def test_settle_applies_time_outs_backoffs_and_stale_agents(qd: Server) -> None:
    await qd.agents.register("dev-1", stale_threshold_seconds=180, max_concurrent_tasks=2)
    later = await qd.tasks.create("later", "any", run_at=qd.clock.now + timedelta(days=1))
    short = await qd.tasks.create("short", "any", timeout_seconds=60, retry_backoff_seconds=30)
    [lease] = await qd.tasks.claim("dev-1", "c", most=2)
    assert lease.id == short.id
    qd.clock.advance(seconds=61)
    assert (await qd.tasks.get(short.id)).status == "RUNNING"  # no sweep runs before settle()
    await qd.settle()
    assert (await qd.tasks.get(short.id)).status == "ABORTED"
    qd.clock.advance(minutes=5)
    await qd.settle()
    assert (await qd.tasks.get(short.id)).status == "PENDING"
    assert (await qd.agents.get("dev-1")).status_reason == "stale"
    qd.clock.advance(days=1)
    await qd.settle()
    await qd.agents.heartbeat("dev-1")
    assert (await qd.agents.get("dev-1")).status == "IDLE"
    leases = await qd.tasks.claim("dev-1", "d", most=5)
    assert {each.id for each in leases} == {short.id, later.id}


async def test_sessions_expire_by_the_test_clock(qd: Server) -> None:
    session = await qd.sessions.spawn("planner", ttl_seconds=60)
    qd.clock.advance(minutes=2)
    await qd.settle()
    assert (await qd.sessions.get(session.id)).termination_reason == "ttl_expired"


async def test_failed_task_fails_its_dependent_chain(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task("any")
    async def fails(task: Attempt) -> None:
        raise ValueError("no")

    last = (await qd.tasks.create("first", "any", max_retries=0)).id
    chain = [last]
    for n in range(10):
        last = (await qd.tasks.create(f"after {n}", "any", depends_on=[last])).id
        chain.append(last)
    assert await qd.drain(worker) == 1
    ended = await qd.tasks.wait(chain, timeout=10)
    assert {task.status for task in ended} == {"FAILED"}
    assert {task.reason for task in ended[1:]} == {"dependency_failed"}


async def test_servers_are_isolated(qd: Server) -> None:
    task = await qd.tasks.create("task-1", "any")
    async with testing.server({"task_overdue_minutes": "5"}) as other:
        with pytest.raises(NotFound):
            await other.tasks.get(task.id)
