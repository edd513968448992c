"""Who is heard of, by whose word: claims, what is said under tokens, and what a heartbeat must know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.heartbeat_port import ReportedProgress, ReportedTasks, TaskFeedback
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import Abort, Cancel, Claim, Pause, Progress, Warn
from quarterdeck.domain.tasks.model.rows import ClaimedTask, State, Task
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.heartbeat_feedback import LOST_AFTER_MS
from quarterdeck.engine.long_poll import Watcher, wait_for_work
from quarterdeck.engine.wakeups import Wakeups
from tests.support.agents import AgentHarness
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness
from tests.support.secret_rotation import NEW_KEY, cipher_of
from tests.support.structs import build_struct
from tests.support.tasks import TaskHarness as Work


@pytest.fixture
async def agent_harness(runtime: RuntimeHarness) -> AgentHarness:
    made = AgentHarness(runtime)
    await made.register(max_concurrent_tasks=10)
    return made


@pytest.fixture
async def task_harness(agent_harness: AgentHarness) -> Work:
    return Work(agent_harness.runtime)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def held(work: Work, number: int) -> list[Task]:
    await work.create_many([work.create_command(f"t{n}") for n in range(number)])
    return [leased.task for leased in await work.claim(limit=number)]


def said(work: Work, task: Task) -> Progress:
    return Progress(
        zone_id=ZONE,
        caller=work.caller,
        id=task.id,
        attempt_token=task.attempt_token,
        percent=1,
        step=None,
        checkpoint=None,
    )


# -- by whose word -----------------------------------------------------------------------------------------------


async def test_an_agent_that_is_silent_stays_so_whatever_others_do_with_its_tasks(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    first, second, third, *others = await held(task_harness, 6)
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


async def test_the_silence_of_one_that_is_launched_counts_from_the_first_task_it_is_given(
    agent_harness: AgentHarness,
) -> None:
    await agent_harness.register(launcher="local")
    agent_harness.make_silent()
    await agent_harness.adjust_held({(ZONE, "a"): 1})
    assert (await agent_harness.refresh_status()).status is AgentState.IDLE
    agent_harness.make_silent()
    await agent_harness.adjust_held({(ZONE, "a"): 1})
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR, "another task is no sign of life"


async def test_what_is_said_under_a_token_is_a_sign_of_life(agent_harness: AgentHarness, task_harness: Work) -> None:
    first, second, third = await held(task_harness, 3)
    for speaks in (
        task_harness.submit(said(task_harness, first)),
        task_harness.complete(first),
        task_harness.fail(second),
        task_harness.claim(),
    ):
        agent_harness.make_silent(seconds=100)
        before = (await agent_harness.read()).last_seen_at
        await speaks
        assert (await agent_harness.read()).last_seen_at >= before + 100_000
    agent_harness.make_silent(seconds=100)
    before = (await agent_harness.read()).last_seen_at
    assert await refused(task_harness.complete(third, token="older")) == "stale_attempt"
    assert (await agent_harness.read()).last_seen_at == before


async def test_a_claim_has_an_agent_back_that_was_lost_and_gives_it_work(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR
    await task_harness.create("t")
    [leased] = await task_harness.claim()
    assert leased.task.id == "t"
    back = await agent_harness.read()
    assert (back.status, back.status_reason, back.held) == (AgentState.IDLE, None, 1)
    assert back.look_at == back.last_seen_at + 180_000
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


# -- while it waits ----------------------------------------------------------------------------------------------


async def test_while_it_waits_for_work_an_agent_is_heard_of(agent_harness: AgentHarness, task_harness: Work) -> None:
    look, waiting = await _waits(task_harness)
    assert await look([ZONE]) == 30.0, "it need not speak for a while"
    agent_harness.make_silent(seconds=100)
    before = (await agent_harness.read()).last_seen_at

    async def is_heard() -> bool:
        return (await agent_harness.read()).last_seen_at >= before + 100_000

    await _look(task_harness)
    await eventually(is_heard, "an agent that waits is heard of")
    await _is_waiting(task_harness)
    assert (await agent_harness.refresh_status()).status is AgentState.IDLE
    await task_harness.create("t")
    assert [leased.task.id for leased in await waiting] == ["t"]


async def test_one_that_was_lost_while_it_waits_is_back_before_it_is_given_anything(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    _, waiting = await _waits(task_harness)
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is AgentState.ERROR
    # What is made now is handed to it in the same commit; whoever waits is there.
    await task_harness.create("t")
    assert [leased.task.id for leased in await waiting] == ["t"]
    assert (await agent_harness.read()).status is AgentState.IDLE
    _, waiting = await _waits(task_harness)
    agent_harness.make_silent()
    await agent_harness.refresh_status()
    await _look(task_harness)

    async def is_back() -> bool:
        return (await agent_harness.read()).status is AgentState.IDLE

    await eventually(is_back, "an agent that waits is back")
    waiting.cancel()


async def test_the_lookout_comes_in_time_for_whoever_may_not_be_silent_for_long(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    await agent_harness.register(stale_threshold_seconds=1)
    lookout = Watcher[Claim, str, ClaimedTask](
        Wakeups(),
        task_harness.runtime.task_claim_polls,
        ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0),
        30.0,
    )
    lookout.start()
    _, waiting = await _waits(task_harness)
    seen = (await agent_harness.read()).last_seen_at

    async def is_heard_again() -> bool:
        assert (await agent_harness.refresh_status()).status is AgentState.IDLE
        return (await agent_harness.read()).last_seen_at > seen + 1_000

    await eventually(is_heard_again, "it is heard of for longer than it may be silent")
    waiting.cancel()
    await lookout.stop()


async def _waits(work: Work) -> tuple[ClaimWakeups, asyncio.Task[tuple[ClaimedTask, ...]]]:
    waiters = work.runtime.task_claim_polls
    waiting = asyncio.create_task(
        wait_for_work(work.claim_command(claim_id=None), ZONE, work.submit_claim, waiters, 30.0)
    )
    await _is_waiting(work)
    return ClaimWakeups(work.runtime.engine, waiters, 30.0), waiting


async def _is_waiting(work: Work) -> None:
    async def waits() -> bool:
        return len(work.runtime.task_claim_polls) == 1

    await eventually(waits, "a claim waits")


async def _look(work: Work) -> None:
    """A look of one who has not looked yet."""
    await ClaimWakeups(work.runtime.engine, work.runtime.task_claim_polls, 30.0)([ZONE])


# -- what it must know -------------------------------------------------------------------------------------------


def teller(work: Work) -> tasks.HeartbeatFeedback:
    return tasks.HeartbeatFeedback(work.runtime.engine, work.runtime.task_lane.submit, cipher_of(NEW_KEY))


async def tells(work: Work, *named: str, is_all: bool = False, holds: bool = True) -> TaskFeedback:
    return await teller(work).build_feedback(
        ReportedTasks(zone_id=ZONE, agent_id="a", caller=admin(), task_ids=named, is_complete=is_all, holds_tasks=holds)
    )


def given_longer_ago(work: Work, task: Task, ms: int) -> None:
    work.runtime.database.execute("update agent_tasks set assigned_at = assigned_at - ? where id = ?", ms, task.id)


async def test_what_an_agent_does_not_name_among_all_it_has_is_lost_after_a_minute(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    kept, fresh, lost = await held(task_harness, 3)
    for each in (kept, lost):
        given_longer_ago(task_harness, each, LOST_AFTER_MS + 1_000)
    given_longer_ago(task_harness, fresh, LOST_AFTER_MS - 10_000)
    # One that does not say that it names all has lost nothing.
    await tells(task_harness, kept.id)
    assert task_harness.read_held() == 3
    assert await tells(task_harness, kept.id, is_all=True) == TaskFeedback()
    assert [(await task_harness.read(each.id)).task.status for each in (kept, fresh)] == [State.RUNNING] * 2
    gone = (await task_harness.read(lost.id)).task
    assert (gone.status, gone.reason, gone.retry_count) == (State.ABORTED, "lost_by_agent", 1)
    assert await refused(task_harness.complete(lost)) == "stale_attempt"
    assert task_harness.read_held() == 2
    # Named, it is not its own any more; it comes back by its backoff, to whoever asks.
    assert (await tells(task_harness, lost.id)).cancel == (lost.id,)
    await task_harness.make_available(lost.id)
    [again] = await task_harness.claim()
    assert (again.task.id, again.task.attempt) == (lost.id, 2)


async def test_another_that_has_taken_what_was_lost_does_not_lose_it_by_that(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    [lost] = await held(task_harness, 1)
    given_longer_ago(task_harness, lost, LOST_AFTER_MS + 1_000)
    await task_harness.release(lost)
    await agent_harness.register("b")
    [taken] = await task_harness.claim("b")
    await tells(task_harness, is_all=True)
    assert (await task_harness.read(taken.task.id)).task.status is State.RUNNING


async def test_an_agent_is_warned_of_all_it_has_until_it_reports_progress(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    first, second = await held(task_harness, 2)
    for each in (first, second):
        task_harness.runtime.database.execute(
            "update agent_tasks set overdue_at = 1, progress_at = 1 where id = ?", each.id
        )
        await task_harness.submit(Warn(zone_id=ZONE, id=each.id))
    for told in (
        await tells(task_harness),
        await tells(task_harness, first.id),
        await tells(task_harness, first.id, second.id),
    ):
        assert [(each.code, each.task_id) for each in told.warnings] == [
            ("task_overdue", first.id),
            ("task_overdue", second.id),
        ]
        assert (told.cancel, told.pause) == ((), ())
    task_harness.runtime.database.execute("update agent_tasks set warned_at = warned_at - 1000 where id = ?", first.id)
    await task_harness.submit(said(task_harness, first))
    assert [each.task_id for each in (await tells(task_harness)).warnings] == [second.id]
    assert (await tells(task_harness, first.id, holds=False)).warnings == ()


# -- what it says ------------------------------------------------------------------------------------------------


def reported(task: Task, **changed: object) -> ReportedProgress:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "agent_id": "a",
        "caller": admin(),
        "task_id": task.id,
        "attempt_token": task.attempt_token,
        "progress_percent": 50,
        "current_step": None,
        "checkpoint_data": None,
    }
    return build_struct(ReportedProgress, **(plain | changed))


async def test_that_an_agent_is_there_is_no_progress_of_its_task(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    [task] = await held(task_harness, 1)
    before = (await task_harness.read(task.id)).task
    keep = await teller(task_harness).check_report(reported(task, progress_percent=None))
    assert await keep() is None
    assert (await task_harness.read(task.id)).task == before
    keep = await teller(task_harness).check_report(reported(task))
    assert (await task_harness.read(task.id)).task == before, "looked at, it has changed nothing"
    assert await keep() is None
    assert (await task_harness.read(task.id)).task.progress_percent == 50


async def test_an_attempt_that_ends_while_its_agent_is_heard_of_is_told_in_the_answer(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    [task] = await held(task_harness, 1)
    keep = await teller(task_harness).check_report(reported(task))
    await task_harness.submit(Cancel(zone_id=ZONE, caller=task_harness.caller, id=task.id, reason="not wanted"))
    warned = await keep()
    assert warned is not None
    assert (warned.code, warned.task_id) == ("stale_attempt", task.id)
    assert "canceled (not wanted)" in warned.detail
    late = await (await teller(task_harness).check_report(reported(task)))()
    assert late == warned


async def test_whoever_beats_for_one_agent_does_not_speak_of_the_tasks_of_another(
    agent_harness: AgentHarness, task_harness: Work
) -> None:
    [task] = await held(task_harness, 1)
    before = (await task_harness.read(task.id)).task
    assert await refused(teller(task_harness).check_report(reported(task, attempt_token="older"))) == "stale_attempt"
    unkept = await (await teller(task_harness).check_report(reported(task, agent_id="b")))()
    assert unkept is not None and unkept.code == "stale_attempt"
    assert await refused(teller(task_harness).check_report(reported(task, task_id="nothing"))) == "task_not_found"
    assert (await task_harness.read(task.id)).task == before
