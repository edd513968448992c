"""Agent liveness: which requests count as a sign of life, waiting claims, and the feedback of heartbeats."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import Abort, Cancel, Claim, Pause, Progress, Warn
from quarterdeck.domain.tasks.model.heartbeat_types import HeartbeatWarning, ReportedTasks, TaskFeedback
from quarterdeck.domain.tasks.model.rows import ClaimedTask, State, Task
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.heartbeat_feedback import LOST_AFTER_MS
from quarterdeck.engine.long_poll import Watcher, wait_for_work
from quarterdeck.engine.wakeups import Wakeups
from tests.support.agents import AgentHarness
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.outcomes import problem_code
from tests.support.runtime import RuntimeHarness
from tests.support.structs import build_struct
from tests.support.tasks import TaskHarness


@pytest.fixture
async def agent_harness(runtime: RuntimeHarness) -> AgentHarness:
    harness = AgentHarness(runtime)
    await harness.register(max_concurrent_tasks=10)
    return harness


@pytest.fixture
async def task_harness(agent_harness: AgentHarness) -> TaskHarness:
    return TaskHarness(agent_harness.runtime)


async def claim_tasks(harness: TaskHarness, count: int) -> list[Task]:
    await harness.create_many([harness.create_command(f"t{n}") for n in range(count)])
    return [leased.task for leased in await harness.claim(limit=count)]


def progress_command(harness: TaskHarness, task: Task) -> Progress:
    return Progress(
        zone_id=ZONE,
        caller=harness.caller,
        id=task.id,
        attempt_token=task.attempt_token,
        percent=1,
        step=None,
        checkpoint=None,
    )


# -- signs of life -----------------------------------------------------------------------------------------------


async def test_changes_by_others_to_its_tasks_are_no_sign_of_life_of_an_agent(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    first, second, third, *others = await claim_tasks(task_harness, 6)
    agent_harness.make_silent(seconds=100)
    before = (await agent_harness.read()).last_seen_at
    await task_harness.submit(Cancel(zone_id=ZONE, caller=task_harness.caller, id=first.id, reason="r"))
    await task_harness.submit(Pause(zone_id=ZONE, caller=task_harness.caller, id=second.id))
    token = third.attempt_token
    await task_harness.submit(Abort(zone_id=ZONE, id=third.id, attempt_token=token, reason="timeout", jitter=0.0))
    await task_harness.release(others[0])
    after = await agent_harness.read()
    assert (after.held, after.last_seen_at) == (2, before)
    agent_harness.make_silent(seconds=100)
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR
    assert (await task_harness.read(others[1].id)).task.reason == "agent_stale"


async def test_stale_threshold_of_a_launched_agent_starts_with_its_first_task(agent_harness: AgentHarness) -> None:
    await agent_harness.register(launcher="local")
    agent_harness.make_silent()
    await agent_harness.adjust_held({(ZONE, "a"): 1})
    assert (await agent_harness.refresh_status()).status is AgentState.IDLE
    agent_harness.make_silent()
    await agent_harness.adjust_held({(ZONE, "a"): 1})
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR, "a further task is not a sign of life"


async def test_claims_and_reports_with_a_valid_token_are_signs_of_life(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    first, second, third = await claim_tasks(task_harness, 3)
    for request in (
        task_harness.submit(progress_command(task_harness, first)),
        task_harness.complete(first),
        task_harness.fail(second),
        task_harness.claim(),
    ):
        agent_harness.make_silent(seconds=100)
        before = (await agent_harness.read()).last_seen_at
        await request
        assert (await agent_harness.read()).last_seen_at >= before + 100_000
    agent_harness.make_silent(seconds=100)
    before = (await agent_harness.read()).last_seen_at
    assert await problem_code(task_harness.complete(third, token="older")) == "stale_attempt"
    assert (await agent_harness.read()).last_seen_at == before


async def test_claim_revives_a_stale_agent_and_returns_a_task(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR
    await task_harness.create("t")
    [leased] = await task_harness.claim()
    assert leased.task.id == "t"
    agent = await agent_harness.read()
    assert (agent.status, agent.status_reason, agent.held) == (AgentState.IDLE, None, 1)
    assert agent.look_at == agent.last_seen_at + 180_000
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


# -- waiting claims ----------------------------------------------------------------------------------------------


async def test_waiting_claim_keeps_its_agent_live(agent_harness: AgentHarness, task_harness: TaskHarness) -> None:
    check, claim = await _start_waiting_claim(task_harness)
    assert await check([ZONE]) == 30.0, "no refresh is due yet"
    agent_harness.make_silent(seconds=100)
    before = (await agent_harness.read()).last_seen_at

    async def is_refreshed() -> bool:
        return (await agent_harness.read()).last_seen_at >= before + 100_000

    await _check_claims(task_harness)
    await eventually(is_refreshed, "the waiting claim refreshes its agent")
    await _wait_for_waiting_claim(task_harness)
    assert (await agent_harness.refresh_status()).status is AgentState.IDLE
    await task_harness.create("t")
    assert [leased.task.id for leased in await claim] == ["t"]


async def test_stale_agent_with_a_waiting_claim_is_revived(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    _, claim = await _start_waiting_claim(task_harness)
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR
    # A new task is assigned to the waiting claim in the same commit: waiting is a sign of life.
    await task_harness.create("t")
    assert [leased.task.id for leased in await claim] == ["t"]
    assert (await agent_harness.read()).status is AgentState.IDLE
    _, claim = await _start_waiting_claim(task_harness)
    agent_harness.make_silent()
    await agent_harness.refresh_status()
    await _check_claims(task_harness)

    async def is_revived() -> bool:
        return (await agent_harness.read()).status is AgentState.IDLE

    await eventually(is_revived, "the waiting agent is revived")
    claim.cancel()


async def test_watcher_refreshes_waiting_agents_within_a_short_stale_threshold(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    await agent_harness.register(stale_threshold_seconds=1)
    watcher = Watcher[Claim, str, ClaimedTask](
        Wakeups(),
        task_harness.runtime.task_claim_polls,
        ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0),
        30.0,
    )
    watcher.start()
    _, claim = await _start_waiting_claim(task_harness)
    seen = (await agent_harness.read()).last_seen_at

    async def is_refreshed() -> bool:
        assert (await agent_harness.refresh_status()).status is AgentState.IDLE
        return (await agent_harness.read()).last_seen_at > seen + 1_000

    await eventually(is_refreshed, "the waiting claim outlasts the stale threshold")
    claim.cancel()
    await watcher.stop()


async def _start_waiting_claim(harness: TaskHarness) -> tuple[ClaimWakeups, asyncio.Task[tuple[ClaimedTask, ...]]]:
    polls = harness.runtime.task_claim_polls
    claim = asyncio.create_task(
        wait_for_work(harness.claim_command(claim_id=None), ZONE, harness.submit_claim, polls, 30.0)
    )
    await _wait_for_waiting_claim(harness)
    return ClaimWakeups(harness.runtime.engine, polls, 30.0), claim


async def _wait_for_waiting_claim(harness: TaskHarness) -> None:
    async def is_waiting() -> bool:
        return len(harness.runtime.task_claim_polls) == 1

    await eventually(is_waiting, "a claim is waiting")


async def _check_claims(harness: TaskHarness) -> None:
    """Run the watcher's check once, without state from earlier checks."""
    await ClaimWakeups(harness.runtime.engine, harness.runtime.task_claim_polls, 30.0)([ZONE])


# -- heartbeat feedback ------------------------------------------------------------------------------------------


def feedback_of(harness: TaskHarness) -> tasks.HeartbeatFeedback:
    return harness.runtime.tasks.heartbeat_feedback


async def build_feedback(
    harness: TaskHarness, *task_ids: str, is_complete: bool = False, holds_tasks: bool = True
) -> TaskFeedback:
    return await feedback_of(harness).build_feedback(
        ReportedTasks(
            zone_id=ZONE,
            agent_id="a",
            caller=admin(),
            task_ids=task_ids,
            is_complete=is_complete,
            holds_tasks=holds_tasks,
        )
    )


def assign_earlier(harness: TaskHarness, task: Task, ms: int) -> None:
    harness.runtime.database.execute("update agent_tasks set assigned_at = assigned_at - ? where id = ?", ms, task.id)


async def test_task_missing_from_a_complete_report_is_aborted_after_a_minute(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    kept, fresh, lost = await claim_tasks(task_harness, 3)
    for task in (kept, lost):
        assign_earlier(task_harness, task, LOST_AFTER_MS + 1_000)
    assign_earlier(task_harness, fresh, LOST_AFTER_MS - 10_000)
    # Without is_complete, a task that is not listed is not lost.
    await build_feedback(task_harness, kept.id)
    assert task_harness.read_held() == 3
    assert await build_feedback(task_harness, kept.id, is_complete=True) == TaskFeedback()
    assert [(await task_harness.read(task.id)).task.status for task in (kept, fresh)] == [State.RUNNING] * 2
    aborted = (await task_harness.read(lost.id)).task
    assert (aborted.status, aborted.reason, aborted.retry_count) == (State.ABORTED, "lost_by_agent", 1)
    assert await problem_code(task_harness.complete(lost)) == "stale_attempt"
    assert task_harness.read_held() == 2
    # If the agent still reports the task, it must cancel it. Any agent can claim it after the backoff.
    assert (await build_feedback(task_harness, lost.id)).cancel == (lost.id,)
    await task_harness.make_available(lost.id)
    [reclaimed] = await task_harness.claim()
    assert (reclaimed.task.id, reclaimed.task.attempt) == (lost.id, 2)


async def test_complete_report_does_not_abort_a_task_claimed_by_another_agent(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    [lost] = await claim_tasks(task_harness, 1)
    assign_earlier(task_harness, lost, LOST_AFTER_MS + 1_000)
    await task_harness.release(lost)
    await agent_harness.register("b")
    [taken] = await task_harness.claim("b")
    await build_feedback(task_harness, is_complete=True)
    assert (await task_harness.read(taken.task.id)).task.status is State.RUNNING


async def test_feedback_warns_of_every_overdue_task_until_it_reports_progress(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    first, second = await claim_tasks(task_harness, 2)
    for task in (first, second):
        task_harness.runtime.database.execute(
            "update agent_tasks set overdue_at = 1, progress_at = 1 where id = ?", task.id
        )
        await task_harness.submit(Warn(zone_id=ZONE, id=task.id))
    for feedback in (
        await build_feedback(task_harness),
        await build_feedback(task_harness, first.id),
        await build_feedback(task_harness, first.id, second.id),
    ):
        assert [(warning.code, warning.task_id) for warning in feedback.warnings] == [
            ("task_overdue", first.id),
            ("task_overdue", second.id),
        ]
        assert (feedback.cancel, feedback.pause) == ((), ())
    task_harness.runtime.database.execute("update agent_tasks set warned_at = warned_at - 1000 where id = ?", first.id)
    await task_harness.submit(progress_command(task_harness, first))
    assert [warning.task_id for warning in (await build_feedback(task_harness)).warnings] == [second.id]
    assert (await build_feedback(task_harness, first.id, holds_tasks=False)).warnings == ()


# -- reported progress -------------------------------------------------------------------------------------------


def progress_report(task: Task, **fields: object) -> Progress:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "caller": admin(),
        "id": task.id,
        "attempt_token": task.attempt_token,
        "percent": 50,
        "step": None,
        "checkpoint": None,
    }
    return build_struct(Progress, **(defaults | fields))


async def report_progress(harness: TaskHarness, report: Progress, agent_id: str = "a") -> HeartbeatWarning | None:
    """Check a report and save it, as a heartbeat does."""
    task = await feedback_of(harness).check_progress(report, admin())
    return await feedback_of(harness).save_progress(report, task, agent_id)


async def test_heartbeat_without_progress_does_not_change_the_task(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    [task] = await claim_tasks(task_harness, 1)
    before = (await task_harness.read(task.id)).task
    assert await report_progress(task_harness, progress_report(task, percent=None)) is None
    assert (await task_harness.read(task.id)).task == before
    feedback, report = feedback_of(task_harness), progress_report(task)
    checked = await feedback.check_progress(report, admin())
    assert (await task_harness.read(task.id)).task == before, "checking a report changes nothing"
    assert await feedback.save_progress(report, checked, "a") is None
    assert (await task_harness.read(task.id)).task.progress_percent == 50


async def test_heartbeat_warns_when_its_attempt_ended_meanwhile(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    [task] = await claim_tasks(task_harness, 1)
    feedback, report = feedback_of(task_harness), progress_report(task)
    checked = await feedback.check_progress(report, admin())
    await task_harness.submit(Cancel(zone_id=ZONE, caller=task_harness.caller, id=task.id, reason="obsolete"))
    warning = await feedback.save_progress(report, checked, "a")
    assert warning is not None
    assert (warning.code, warning.task_id) == ("stale_attempt", task.id)
    assert "canceled (obsolete)" in warning.detail
    assert await report_progress(task_harness, report) == warning


async def test_heartbeat_cannot_report_progress_of_another_agents_task(
    agent_harness: AgentHarness, task_harness: TaskHarness
) -> None:
    [task] = await claim_tasks(task_harness, 1)
    before = (await task_harness.read(task.id)).task
    check_progress = feedback_of(task_harness).check_progress
    assert await problem_code(check_progress(progress_report(task, attempt_token="older"), admin())) == "stale_attempt"
    warning = await report_progress(task_harness, progress_report(task), agent_id="b")
    assert warning is not None and warning.code == "stale_attempt"
    assert await problem_code(check_progress(progress_report(task, id="missing"), admin())) == "task_not_found"
    assert (await task_harness.read(task.id)).task == before
