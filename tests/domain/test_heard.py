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
from tests.support.agency import Agency
from tests.support.asking import ZONE, admin
from tests.support.eventually import eventually
from tests.support.keel import Keel
from tests.support.making import struct_of
from tests.support.sealing import NEW, safe_of
from tests.support.working import Working as Work


@pytest.fixture
async def agency(keel: Keel) -> Agency:
    made = Agency(keel)
    await made.register(max_concurrent_tasks=10)
    return made


@pytest.fixture
async def work(agency: Agency) -> Work:
    return Work(agency.keel)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def held(work: Work, number: int) -> list[Task]:
    await work.make_many([work.asking(f"t{n}") for n in range(number)])
    return [leased.task for leased in await work.claim(most=number)]


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


async def test_an_agent_that_is_silent_stays_so_whatever_others_do_with_its_tasks(agency: Agency, work: Work) -> None:
    first, second, third, *others = await held(work, 6)
    agency.silent(seconds=100)
    before = (await agency.show()).last_seen_at
    await work.moved(Cancel(zone_id=ZONE, caller=work.caller, id=first.id, reason="r"))
    await work.moved(Pause(zone_id=ZONE, caller=work.caller, id=second.id))
    token = third.attempt_token
    await work.moved(Abort(zone_id=ZONE, id=third.id, attempt_token=token, reason="timeout", jitter=0.0))
    await work.release(others[0])
    after = await agency.show()
    assert (after.held, after.last_seen_at) == (2, before)
    agency.silent(seconds=100)
    assert (await agency.look()).status is AgentState.ERROR
    assert (await work.show(others[1].id)).task.reason == "agent_stale"


async def test_the_silence_of_one_that_is_launched_counts_from_the_first_task_it_is_given(agency: Agency) -> None:
    await agency.register(launcher="local")
    agency.silent()
    await agency.hold({(ZONE, "a"): 1})
    assert (await agency.look()).status is AgentState.IDLE
    agency.silent()
    await agency.hold({(ZONE, "a"): 1})
    assert (await agency.look()).status is AgentState.ERROR, "another task is no sign of life"


async def test_what_is_said_under_a_token_is_a_sign_of_life(agency: Agency, work: Work) -> None:
    first, second, third = await held(work, 3)
    for speaks in (work.moved(said(work, first)), work.complete(first), work.fail(second), work.claim()):
        agency.silent(seconds=100)
        before = (await agency.show()).last_seen_at
        await speaks
        assert (await agency.show()).last_seen_at >= before + 100_000
    agency.silent(seconds=100)
    before = (await agency.show()).last_seen_at
    assert await refused(work.complete(third, token="older")) == "stale_attempt"
    assert (await agency.show()).last_seen_at == before


async def test_a_claim_has_an_agent_back_that_was_lost_and_gives_it_work(agency: Agency, work: Work) -> None:
    agency.silent()
    assert (await agency.look()).status is AgentState.ERROR
    await work.make("t")
    [leased] = await work.claim()
    assert leased.task.id == "t"
    back = await agency.show()
    assert (back.status, back.status_reason, back.held) == (AgentState.IDLE, None, 1)
    assert back.look_at == back.last_seen_at + 180_000
    assert await agency.told() == ["agent.registered", "agent.stale", "agent.revived"]


# -- while it waits ----------------------------------------------------------------------------------------------


async def test_while_it_waits_for_work_an_agent_is_heard_of(agency: Agency, work: Work) -> None:
    look, waiting = await _waits(work)
    assert await look([ZONE]) == 30.0, "it need not speak for a while"
    agency.silent(seconds=100)
    before = (await agency.show()).last_seen_at

    async def is_heard() -> bool:
        return (await agency.show()).last_seen_at >= before + 100_000

    await _look(work)
    await eventually(is_heard, "an agent that waits is heard of")
    await _is_waiting(work)
    assert (await agency.look()).status is AgentState.IDLE
    await work.make("t")
    assert [leased.task.id for leased in await waiting] == ["t"]


async def test_one_that_was_lost_while_it_waits_is_back_before_it_is_given_anything(agency: Agency, work: Work) -> None:
    _, waiting = await _waits(work)
    agency.silent()
    assert (await agency.look()).status is AgentState.ERROR
    # What is made now is handed to it in the same commit; whoever waits is there.
    await work.make("t")
    assert [leased.task.id for leased in await waiting] == ["t"]
    assert (await agency.show()).status is AgentState.IDLE
    _, waiting = await _waits(work)
    agency.silent()
    await agency.look()
    await _look(work)

    async def is_back() -> bool:
        return (await agency.show()).status is AgentState.IDLE

    await eventually(is_back, "an agent that waits is back")
    waiting.cancel()


async def test_the_lookout_comes_in_time_for_whoever_may_not_be_silent_for_long(agency: Agency, work: Work) -> None:
    await agency.register(stale_threshold_seconds=1)
    lookout = Watcher[Claim, str, ClaimedTask](
        Wakeups(), work.keel.task_waiters, ClaimWakeups(work.keel.engine, work.keel.task_waiters, 30.0), 30.0
    )
    lookout.start()
    _, waiting = await _waits(work)
    seen = (await agency.show()).last_seen_at

    async def is_heard_again() -> bool:
        assert (await agency.look()).status is AgentState.IDLE
        return (await agency.show()).last_seen_at > seen + 1_000

    await eventually(is_heard_again, "it is heard of for longer than it may be silent")
    waiting.cancel()
    await lookout.stop()


async def _waits(work: Work) -> tuple[ClaimWakeups, asyncio.Task[tuple[ClaimedTask, ...]]]:
    waiters = work.keel.task_waiters
    waiting = asyncio.create_task(wait_for_work(work.claiming(claim_id=None), ZONE, work.submit_claim, waiters, 30.0))
    await _is_waiting(work)
    return ClaimWakeups(work.keel.engine, waiters, 30.0), waiting


async def _is_waiting(work: Work) -> None:
    async def waits() -> bool:
        return len(work.keel.task_waiters) == 1

    await eventually(waits, "a claim waits")


async def _look(work: Work) -> None:
    """A look of one who has not looked yet."""
    await ClaimWakeups(work.keel.engine, work.keel.task_waiters, 30.0)([ZONE])


# -- what it must know -------------------------------------------------------------------------------------------


def teller(work: Work) -> tasks.HeartbeatFeedback:
    return tasks.HeartbeatFeedback(work.keel.engine, work.keel.tasks.submit, safe_of(NEW))


async def tells(work: Work, *named: str, is_all: bool = False, holds: bool = True) -> TaskFeedback:
    return await teller(work).build_feedback(
        ReportedTasks(zone_id=ZONE, agent_id="a", caller=admin(), task_ids=named, is_complete=is_all, holds_tasks=holds)
    )


def given_longer_ago(work: Work, task: Task, ms: int) -> None:
    work.keel.side.run("update agent_tasks set assigned_at = assigned_at - ? where id = ?", ms, task.id)


async def test_what_an_agent_does_not_name_among_all_it_has_is_lost_after_a_minute(agency: Agency, work: Work) -> None:
    kept, fresh, lost = await held(work, 3)
    for each in (kept, lost):
        given_longer_ago(work, each, LOST_AFTER_MS + 1_000)
    given_longer_ago(work, fresh, LOST_AFTER_MS - 10_000)
    # One that does not say that it names all has lost nothing.
    await tells(work, kept.id)
    assert work.held() == 3
    assert await tells(work, kept.id, is_all=True) == TaskFeedback()
    assert [(await work.show(each.id)).task.status for each in (kept, fresh)] == [State.RUNNING] * 2
    gone = (await work.show(lost.id)).task
    assert (gone.status, gone.reason, gone.retry_count) == (State.ABORTED, "lost_by_agent", 1)
    assert await refused(work.complete(lost)) == "stale_attempt"
    assert work.held() == 2
    # Named, it is not its own any more; it comes back by its backoff, to whoever asks.
    assert (await tells(work, lost.id)).cancel == (lost.id,)
    await work.due(lost.id)
    [again] = await work.claim()
    assert (again.task.id, again.task.attempt) == (lost.id, 2)


async def test_another_that_has_taken_what_was_lost_does_not_lose_it_by_that(agency: Agency, work: Work) -> None:
    [lost] = await held(work, 1)
    given_longer_ago(work, lost, LOST_AFTER_MS + 1_000)
    await work.release(lost)
    await agency.register("b")
    [taken] = await work.claim("b")
    await tells(work, is_all=True)
    assert (await work.show(taken.task.id)).task.status is State.RUNNING


async def test_an_agent_is_warned_of_all_it_has_until_it_reports_progress(agency: Agency, work: Work) -> None:
    first, second = await held(work, 2)
    for each in (first, second):
        work.keel.side.run("update agent_tasks set overdue_at = 1, progress_at = 1 where id = ?", each.id)
        await work.moved(Warn(zone_id=ZONE, id=each.id))
    for told in (await tells(work), await tells(work, first.id), await tells(work, first.id, second.id)):
        assert [(each.code, each.task_id) for each in told.warnings] == [
            ("task_overdue", first.id),
            ("task_overdue", second.id),
        ]
        assert (told.cancel, told.pause) == ((), ())
    work.keel.side.run("update agent_tasks set warned_at = warned_at - 1000 where id = ?", first.id)
    await work.moved(said(work, first))
    assert [each.task_id for each in (await tells(work)).warnings] == [second.id]
    assert (await tells(work, first.id, holds=False)).warnings == ()


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
    return struct_of(ReportedProgress, **(plain | changed))


async def test_that_an_agent_is_there_is_no_progress_of_its_task(agency: Agency, work: Work) -> None:
    [task] = await held(work, 1)
    before = (await work.show(task.id)).task
    keep = await teller(work).check_report(reported(task, progress_percent=None))
    assert await keep() is None
    assert (await work.show(task.id)).task == before
    keep = await teller(work).check_report(reported(task))
    assert (await work.show(task.id)).task == before, "looked at, it has changed nothing"
    assert await keep() is None
    assert (await work.show(task.id)).task.progress_percent == 50


async def test_an_attempt_that_ends_while_its_agent_is_heard_of_is_told_in_the_answer(
    agency: Agency, work: Work
) -> None:
    [task] = await held(work, 1)
    keep = await teller(work).check_report(reported(task))
    await work.moved(Cancel(zone_id=ZONE, caller=work.caller, id=task.id, reason="not wanted"))
    warned = await keep()
    assert warned is not None
    assert (warned.code, warned.task_id) == ("stale_attempt", task.id)
    assert "canceled (not wanted)" in warned.detail
    late = await (await teller(work).check_report(reported(task)))()
    assert late == warned


async def test_whoever_beats_for_one_agent_does_not_speak_of_the_tasks_of_another(agency: Agency, work: Work) -> None:
    [task] = await held(work, 1)
    before = (await work.show(task.id)).task
    assert await refused(teller(work).check_report(reported(task, attempt_token="older"))) == "stale_attempt"
    unkept = await (await teller(work).check_report(reported(task, agent_id="b")))()
    assert unkept is not None and unkept.code == "stale_attempt"
    assert await refused(teller(work).check_report(reported(task, task_id="nothing"))) == "task_not_found"
    assert (await work.show(task.id)).task == before
