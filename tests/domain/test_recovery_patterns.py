"""The six recovery patterns of the design, by name, on both engines."""

from __future__ import annotations

import logging

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.retry import Policy
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.coordination.background import coordinator as coordinators
from quarterdeck.domain.coordination.component import ALARM_SECONDS, RETRY
from quarterdeck.domain.tasks.model.commands import Assign, Progress, RecordLaunch
from quarterdeck.domain.tasks.model.rows import State, Task
from quarterdeck.domain.tasks.operations import load
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError
from tests.support.builders import ZONE
from tests.support.coordinator import CoordinatorHarness
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness, open_runtime

BACKOFF = 300


@pytest.fixture
async def coordinator_harness(runtime: RuntimeHarness) -> CoordinatorHarness:
    return CoordinatorHarness(runtime)


async def completion_refusal(harness: CoordinatorHarness, task: Task) -> str:
    """Return the error code when the holder of this attempt completes it."""
    with pytest.raises(Problem) as refusal:
        await harness.task_harness.complete(task)
    return refusal.value.code


def progress_command(task: Task, checkpoint: str) -> Progress:
    return Progress(
        zone_id=ZONE, id=task.id, attempt_token=task.attempt_token, percent=40, step="half", checkpoint=checkpoint
    )


# -- pattern 1


async def test_pattern_1_agent_failure_recovery(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.register_agent("a", slots=1)
    await coordinator_harness.task_harness.create("t", retry_backoff_seconds=BACKOFF)
    [leased] = await coordinator_harness.task_harness.claim("a")
    await coordinator_harness.task_harness.submit(progress_command(leased.task, '{"page":7}'))
    assert await coordinator_harness.run_until_idle() is not None
    assert (await coordinator_harness.read_task("t")).status is State.RUNNING, (
        "an agent with a recent heartbeat keeps its attempts"
    )

    coordinator_harness.agent_harness.make_silent("a")
    next_seconds = await coordinator_harness.run_until_idle()
    assert (await coordinator_harness.agent_harness.read("a")).status is AgentState.ERROR
    aborted = await coordinator_harness.read_task("t")
    assert (aborted.status, aborted.reason, aborted.retry_count) == (State.ABORTED, "agent_stale", 1)
    assert BACKOFF * 500 <= aborted.available_at - aborted.updated_at <= BACKOFF * 1000
    assert next_seconds is not None
    assert next_seconds <= BACKOFF, "the next cycle runs when the backoff ends, without a wake-up"

    coordinator_harness.expire_columns("t", "available_at")
    await coordinator_harness.run_until_idle()
    assert (await coordinator_harness.read_task("t")).status is State.PENDING
    await coordinator_harness.task_harness.register_agent("b")
    [second] = await coordinator_harness.task_harness.claim("b")
    assert second.task.attempt == 2
    assert second.content is not None
    assert second.content.checkpoint_data == '{"page":7}', "the second attempt continues from the checkpoint"
    assert await completion_refusal(coordinator_harness, leased.task) == "stale_attempt"
    assert (await coordinator_harness.task_harness.complete(second.task)).status is State.COMPLETED


async def test_late_heartbeat_revives_the_agent_but_not_its_old_attempt_token(
    coordinator_harness: CoordinatorHarness,
) -> None:
    await coordinator_harness.task_harness.register_agent("a", slots=1)
    await coordinator_harness.task_harness.create("t")
    [leased] = await coordinator_harness.task_harness.claim("a")
    coordinator_harness.agent_harness.make_silent("a")
    await coordinator_harness.run_until_idle()
    await coordinator_harness.agent_harness.heartbeat("a")
    assert (await coordinator_harness.agent_harness.read("a")).status is AgentState.IDLE
    assert await completion_refusal(coordinator_harness, leased.task) == "stale_attempt"
    [second] = await coordinator_harness.task_harness.claim("a")
    assert second.task.attempt == 2


# -- pattern 2


async def test_pattern_2_gateway_restart_recovery(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "AGENT_LIMIT", 5)
    agent_ids = [f"a{number:02}" for number in range(12)]
    for name in agent_ids:
        await coordinator_harness.task_harness.register_agent(name, slots=1)
        await coordinator_harness.task_harness.create(f"task-{name}", retry_backoff_seconds=BACKOFF)
    held = [leased.task for name in agent_ids for leased in await coordinator_harness.task_harness.claim(name)]
    await coordinator_harness.task_harness.submit(progress_command(held[0], '{"page":1}'))
    coordinator_harness.runtime.database.execute("update agent_pulses set last_seen_at = 1")
    coordinator_harness.runtime.database.execute("update agents set look_at = 1")
    await coordinator_harness.run_cycle()
    lost = coordinator_harness.runtime.database.count("agents", "status = 'ERROR'")
    assert lost == 5, "one cycle handles at most AGENT_LIMIT agents"
    await coordinator_harness.run_until_idle()
    rows = [await coordinator_harness.read_task(task.id) for task in held]
    assert {row.status for row in rows} == {State.ABORTED}
    assert coordinator_harness.runtime.database.count("agents", "status = 'ERROR'") == len(agent_ids)
    delays = [row.available_at - row.updated_at for row in rows]
    assert len({*delays}) > 5, "jitter spreads the retries"
    assert (await coordinator_harness.task_harness.read(held[0].id)).content.checkpoint_data == '{"page":1}'


# -- pattern 3


async def test_pattern_3_task_dependency_deadlock(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.create("a")
    await coordinator_harness.task_harness.create("b", depends_on=("a",))
    await coordinator_harness.task_harness.create("after", depends_on=("b",))
    await coordinator_harness.task_harness.create("apart", depends_on=("a",), on_dependency_failure="run")
    # No request can create a cycle, so write it to the database: `a` waits for `b`, which waits for `a`.
    coordinator_harness.runtime.database.execute("insert into task_dependencies values (?, 'a', 'b', 0)", ZONE)
    coordinator_harness.runtime.database.execute(
        "update agent_tasks set waits = 2, unmet = 1, depends = 1 where id = 'a'"
    )
    await coordinator_harness.run_until_idle()
    rows = {name: await coordinator_harness.read_task(name) for name in ("a", "b", "after", "apart")}
    assert {name: (row.status, row.reason) for name, row in rows.items()} == {
        "a": (State.FAILED, "dependency_cycle"),
        "b": (State.FAILED, "dependency_cycle"),
        "after": (State.FAILED, "dependency_failed"),
        "apart": (State.PENDING, None),
    }
    [event] = [e for e in await coordinator_harness.runtime.read_log() if e.type == "task.failed" and e.subject == "a"]
    assert '"cycle":["a","b","a"]' in event.data


# -- pattern 4


class FailingWork:
    """Work that fails while the database is unavailable."""

    def __init__(self) -> None:
        self.database_is_down = True

    async def is_due(self) -> bool:
        if self.database_is_down:
            raise TransientError("08006", "the database is unavailable")
        return False

    async def run_cycle(self, fence: Fence) -> float | None:
        raise AssertionError("no cycle was due")

    async def on_stop(self, fence: Fence | None) -> None: ...


async def test_pattern_4_database_failure(runtime: RuntimeHarness, caplog: pytest.LogCaptureFixture) -> None:
    work = FailingWork()
    leader_loop = LeaderLoop(
        "coordinator",
        runtime.cross_zone_engine,
        Wakeups(),
        LoopTiming(30_000, retry=RETRY, alarm_seconds=ALARM_SECONDS),
        work,
    )
    assert [await leader_loop._try_cycle() for _ in range(5)] == [
        (5.0, False), (10.0, False), (20.0, False), (40.0, False), (40.0, False)
    ]  # fmt: skip
    assert leader_loop.error is not None, "the loop reports that it is unhealthy"
    assert leader_loop.failing_since is not None
    assert not [line for line in caplog.records if line.levelno == logging.CRITICAL]
    leader_loop.failing_since -= ALARM_SECONDS
    for _ in range(3):
        await leader_loop._try_cycle()
    assert len([line for line in caplog.records if line.levelno == logging.CRITICAL]) == 1
    work.database_is_down = False
    assert await leader_loop._try_cycle() == (30.0, True)
    assert not leader_loop.error, "the loop recovers by itself"


async def test_first_wakeup_after_an_outage_ends_a_long_pause(runtime: RuntimeHarness) -> None:
    work, wakeups = FailingWork(), Wakeups()
    retry = Policy(max_attempts=0, base_ms=10, multiplier=10_000.0, cap_ms=100_000, jitter_ratio=0.0)
    leader_loop = LeaderLoop(
        "coordinator",
        runtime.cross_zone_engine,
        wakeups,
        LoopTiming(30_000, retry=retry, wakes_while_failing=True),
        work,
    )
    leader_loop.start()

    async def has_failed_twice() -> bool:
        return leader_loop._failures >= 2

    async def has_recovered() -> bool:
        return leader_loop.error is None

    try:
        await eventually(has_failed_twice, "it has failed twice and pauses for 100 seconds")
        work.database_is_down = False
        wakeups.notify()
        await eventually(has_recovered, "it has recovered")
    finally:
        await leader_loop.stop()


# -- pattern 5


async def test_pattern_5_split_brain_prevention(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.register_agent("a", slots=1)
    await coordinator_harness.task_harness.register_agent("b", slots=1)
    await coordinator_harness.task_harness.create("t")
    frozen = await coordinator_harness.acquire_fence()
    other = CoordinatorHarness(coordinator_harness.runtime)
    assert await other.lease.acquire() is None, "only one coordinator holds the lease"
    # The lease of the first expires, and the other takes over.
    coordinator_harness.runtime.database.execute("update leases set expires_at = 0")
    newer = await other.lease.acquire()
    assert newer is not None
    assert newer.term == frozen.term + 1

    def assign(fence: Fence, agent: str, token: str) -> Assign:
        leader_term = (fence.name, fence.term)
        return Assign(zone_id=ZONE, id="t", leader_term=leader_term, agent_id=agent, attempt_token=token)

    with pytest.raises(LeaseLost):
        await coordinator_harness.runtime.submit_task(assign(frozen, "a", "old"))
    assert (await coordinator_harness.read_task("t")).status is State.PENDING, "an expired term assigns nothing"
    assigned = await other.task_harness.submit(assign(newer, "b", "new"))
    assert (assigned.agent_id, assigned.attempt_token) == ("b", "new")
    with pytest.raises(Problem):
        await coordinator_harness.runtime.submit_task(assign(newer, "a", "second"))
    assert (await coordinator_harness.read_task("t")).agent_id == "b", "a task has one holder"


async def test_newer_assignment_wins_after_a_restored_backup(
    coordinator_harness: CoordinatorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await coordinator_harness.task_harness.register_agent("a", slots=1)
    await coordinator_harness.task_harness.register_agent("b", slots=1)
    await coordinator_harness.task_harness.create("t")
    [older] = await coordinator_harness.task_harness.claim("a")
    # As in a backup taken before that claim.
    coordinator_harness.runtime.database.execute(
        "update agent_tasks set status = 'PENDING', agent_id = null, attempt = 0, attempt_token = null where id = 't'"
    )
    [newer] = await coordinator_harness.task_harness.claim("b")
    assert newer.task.attempt == older.task.attempt
    assert await completion_refusal(coordinator_harness, older.task) == "stale_attempt"
    row = await coordinator_harness.read_task("t")
    assert (row.status, row.agent_id) == (State.RUNNING, "b"), "the older attempt changes nothing"
    assert "another attempt holds" in caplog.text, "the conflict is logged"
    assert (await coordinator_harness.task_harness.complete(newer.task)).status is State.COMPLETED


# -- pattern 6


async def test_pattern_6_stale_task_timeout(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.register_agent("a")
    await coordinator_harness.task_harness.create("t", priority=5, estimated_duration_minutes=1)
    [leased] = await coordinator_harness.task_harness.claim("a")
    await coordinator_harness.run_until_idle()
    assert "task.warned" not in await coordinator_harness.event_types("t")
    coordinator_harness.expire_columns("t", "overdue_at")
    await coordinator_harness.run_until_idle()
    assert (await coordinator_harness.event_types("t"))[-1] == "task.warned"
    assert (await coordinator_harness.read_task("t")).status is State.RUNNING, "the first overdue check only warns"
    coordinator_harness.expire_columns("t", "overdue_at")
    await coordinator_harness.run_until_idle()
    hung = await coordinator_harness.read_task("t")
    assert (hung.status, hung.reason) == (State.PENDING, None)
    assert hung.priority == 6, "the retry has one priority more"
    assert hung.retry_count == 1
    assert (await coordinator_harness.event_types("t"))[-2:] == ["task.aborted", "task.requeued"]
    assert await completion_refusal(coordinator_harness, leased.task) == "stale_attempt"


async def test_attempt_with_progress_after_its_warning_keeps_running(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.register_agent("a")
    await coordinator_harness.task_harness.create("t", estimated_duration_minutes=1)
    [leased] = await coordinator_harness.task_harness.claim("a")
    coordinator_harness.expire_columns("t", "overdue_at")
    await coordinator_harness.run_until_idle()
    await coordinator_harness.task_harness.submit(progress_command(leased.task, "{}"))
    next_seconds = await coordinator_harness.run_until_idle()
    assert next_seconds is not None
    assert next_seconds > 60, "the next check is due when the time without progress would end"
    assert (await coordinator_harness.read_task("t")).status is State.RUNNING


# -- several patterns


async def test_timed_out_attempt_is_aborted_and_requeued(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.task_harness.register_agent("a")
    await coordinator_harness.task_harness.create("t", timeout_seconds=60)
    await coordinator_harness.task_harness.claim("a")
    assert await coordinator_harness.run_until_idle() == pytest.approx(60, abs=5), (
        "the next cycle is due at the timeout"
    )
    coordinator_harness.expire_columns("t", "timeout_at")
    await coordinator_harness.run_until_idle()
    assert (await coordinator_harness.event_types("t"))[-2:] == ["task.aborted", "task.requeued"]


async def test_assignment_without_a_launch_is_aborted(coordinator_harness: CoordinatorHarness) -> None:
    # The launcher died in between. The late report of a launcher that resumes after the timeout is refused too.
    await coordinator_harness.task_harness.register_agent("a")
    await coordinator_harness.task_harness.create("t", retry_backoff_seconds=BACKOFF)
    fence = await coordinator_harness.acquire_fence()
    command = Assign(
        zone_id=ZONE,
        id="t",
        leader_term=(fence.name, fence.term),
        agent_id="a",
        attempt_token="k",
        launch_timeout_ms=60_000,
    )
    await coordinator_harness.task_harness.submit(command)
    assert await coordinator_harness.run_until_idle() == pytest.approx(60, abs=5)
    coordinator_harness.expire_columns("t", "timeout_at")
    await coordinator_harness.run_until_idle()
    row = await coordinator_harness.read_task("t")
    assert (row.status, row.reason) == (State.ABORTED, "launch_lost")
    late = RecordLaunch(zone_id=ZONE, id="t", attempt_token="k", session_key="late-session")
    with pytest.raises(Problem) as refusal:
        await coordinator_harness.runtime.submit_task(late)
    assert refusal.value.code == "stale_attempt"


async def test_backoff_survives_a_restart(engine_url: str) -> None:
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        before = CoordinatorHarness(runtime)
        await before.task_harness.register_agent("a")
        await before.task_harness.create("t", retry_backoff_seconds=BACKOFF)
        [leased] = await before.task_harness.claim("a")
        failed = await before.task_harness.fail(leased.task)
        await before.lease.release()
    async with open_runtime(engine_url) as runtime:
        after = CoordinatorHarness(runtime)
        next_seconds = await after.run_until_idle()
        assert next_seconds is not None
        assert 0 < next_seconds <= BACKOFF
        waiting = await after.read_task("t")
        assert waiting == failed, "the backoff is stored, not kept in memory"
        after.expire_columns("t", "available_at")
        await after.run_until_idle()
        assert (await after.read_task("t")).status is State.PENDING


async def test_failure_spreads_to_all_dependents_in_bounded_steps(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "DEPENDENTS_MAX", 20)
    await coordinator_harness.task_harness.create("root", max_retries=0)
    commands = [
        coordinator_harness.task_harness.create_command(f"d{number:04}", depends_on=("root",)) for number in range(50)
    ]
    await coordinator_harness.task_harness.create_many(commands)
    await coordinator_harness.task_harness.register_agent("a")
    [leased] = await coordinator_harness.task_harness.claim("a")
    await coordinator_harness.task_harness.fail(leased.task, retryable=False)
    await coordinator_harness.run_until_idle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "reason = 'dependency_failed'") == 50
    assert coordinator_harness.runtime.database.count("agent_tasks", "spreads = 1") == 0


async def test_idle_coordinator_takes_no_lease(coordinator_harness: CoordinatorHarness) -> None:
    assert await coordinator_harness.coordinator.is_due() is False
    await coordinator_harness.task_harness.register_agent("a")
    await coordinator_harness.task_harness.create("t")
    due = await coordinator_harness.coordinator.is_due()
    assert due is not False
    assert due > 60, "nothing is due until the agent could become stale"
