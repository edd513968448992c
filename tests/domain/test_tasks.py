"""Tasks on both engines: made once per key, given to one, waited for, and never lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Abort, Cancel, Claim, Patch, Progress, Retry
from quarterdeck.domain.tasks.model.rows import ClaimedTask, State, WaitsFor
from quarterdeck.domain.tasks.operations.claim_wakeups import AGENT_CHECK_SECONDS, ClaimWakeups
from quarterdeck.engine.long_poll import Watcher, wait_for_work
from quarterdeck.engine.wakeups import Wakeups
from tests.support.asking import ZONE, caller
from tests.support.eventually import eventually
from tests.support.keel import Keel
from tests.support.working import Working


@pytest.fixture
async def work(keel: Keel) -> Working:
    made = Working(keel)
    await made.agent()
    return made


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def test_of_many_who_make_with_one_key_one_makes_and_the_others_are_shown_it(work: Working) -> None:
    done = await asyncio.gather(*(work.creation(work.asking(idempotency_key="same")) for _ in range(50)))
    assert sum(each.created for each in done) == 1
    assert len({each.task.id for each in done}) == 1
    assert (
        await refused(work.creation(work.asking(idempotency_key="same", request_digest="other")))
        == "idempotency_key_conflict"
    )


async def test_what_is_made_is_given_out_done_and_kept(work: Working) -> None:
    made = await work.make(priority=7)
    [leased] = await work.claim()
    assert leased.task.id == made.id
    assert leased.content is not None
    assert leased.content.title == "title"
    assert leased.lease_expires_at > leased.task.updated_at
    done = await work.complete(leased.task, output='{"a":1}')
    assert done.status is State.COMPLETED
    whole = await work.show(made.id)
    assert (whole.task, whole.content.output_result) == (done, '{"a":1}')
    types = [event.type for event in await work.keel.log() if event.subject == made.id]
    assert types == ["task.created", "task.started", "task.completed"]
    assert work.held() == 0


@pytest.mark.parametrize("attempts", [1, 2])
async def test_what_is_stored_of_a_step_is_what_was_decided(work: Working, attempts: int) -> None:
    """Most steps are written by statements that tell only what such a step changes: they must tell all of it."""
    made = await work.make(estimated_duration_minutes=5, timeout_seconds=60)
    for _ in range(attempts - 1):
        [before] = await work.claim(claim_id="before")
        token = before.task.attempt_token
        half = Progress(zone_id=ZONE, id=made.id, attempt_token=token, percent=50, step="half", checkpoint=None)
        await work.moved(half)
        await work.fail(before.task)
        await work.due(made.id)
    [leased] = await work.claim(claim_id="this")
    assert (await work.show(made.id)).task == leased.task
    done = await work.complete(leased.task)
    assert (await work.show(made.id)).task == done


async def test_each_task_is_given_to_one_of_many_who_claim_at_once(work: Working) -> None:
    await work.agent("b")
    made = await work.make_many([work.asking() for _ in range(100)])
    claims = await asyncio.gather(*(work.claim("ab"[n % 2], 7) for n in range(30)))
    given = Counter(leased.task.id for claim in claims for leased in claim)
    assert given == Counter(task.id for task in made)
    tokens = {leased.task.attempt_token for claim in claims for leased in claim}
    assert len(tokens) == 100
    assert work.held("a") + work.held("b") == 100


async def test_an_agent_holds_no_more_than_it_may_whoever_claims_for_it(work: Working) -> None:
    await work.agent("small", slots=3)
    await work.make_many([work.asking() for _ in range(20)])
    claims = await asyncio.gather(*(work.claim("small", 5) for _ in range(8)))
    assert sum(len(claim) for claim in claims) == 3
    assert work.held("small") == 3


async def test_the_lowest_turns_go_first_over_all_classes_that_suit(work: Working) -> None:
    await work.agent("able", "python", "rust")
    made = [
        await work.make(required=required, priority=priority)
        for priority in (3, 9, 6)
        for required in ((), ("python",), ("python", "rust"), ("go",))
    ]
    able = [task for task in made if task.class_id != made[3].class_id]
    wanted = sorted(able, key=lambda task: (task.rank, task.id))
    given = [leased.task.id for leased in await work.claim("able", 5)]
    given += [leased.task.id for leased in await work.claim("able", 50)]
    assert given == [task.id for task in wanted]


async def test_the_same_claim_id_gives_the_same_tasks_again(work: Working) -> None:
    await work.make_many([work.asking() for _ in range(4)])
    first = await work.claim("a", 2, claim_id="c")
    again = await work.claim("a", 2, claim_id="c")
    assert {each.task.id for each in first} == {each.task.id for each in again}
    assert [each.content for each in first] == [each.content for each in again]
    assert len(await work.claim("a", 9, claim_id="other")) == 2


async def test_a_late_word_about_an_older_attempt_changes_nothing(work: Working) -> None:
    await work.make()
    [first] = await work.claim()
    await work.moved(
        Abort(zone_id=ZONE, id=first.task.id, attempt_token=first.task.attempt_token, reason="timeout", jitter=0.0)
    )
    await work.due(first.task.id)
    [second] = await work.claim()
    assert (second.task.id, second.task.attempt) == (first.task.id, 2)
    assert await refused(work.complete(first.task)) == "stale_attempt"
    assert (await work.complete(second.task)).status is State.COMPLETED


async def test_a_task_that_reached_nobody_costs_no_attempt(work: Working) -> None:
    await work.make()
    [leased] = await work.claim()
    back = await work.release(leased.task)
    assert (back.attempt, back.retry_count, work.held()) == (0, 0, 0)
    [again] = await work.claim()
    assert again.task.attempt == 1


async def test_what_an_agent_holds_comes_back_when_it_is_terminated(work: Working) -> None:
    made = await work.make_many([work.asking() for _ in range(5)])
    leases = await work.claim("a", 5)
    await work.terminate()
    rows = [(await work.show(task.id)).task for task in made]
    assert {(row.status, row.waits_for, row.reason) for row in rows} == {
        (State.ABORTED, WaitsFor.TIME, "agent_terminated")
    }
    assert await refused(work.complete(leases[0].task)) == "stale_attempt"
    assert await refused(work.claim()) == "agent_terminated"
    assert work.held() == 0


async def test_an_agent_that_ends_gracefully_finishes_and_takes_no_more(work: Working) -> None:
    await work.make()
    [leased] = await work.claim()
    await work.terminate(graceful=True)
    assert await refused(work.claim()) == "agent_draining"
    assert (await work.complete(leased.task)).status is State.COMPLETED
    assert await refused(work.claim()) == "agent_terminated"


async def test_dependents_begin_when_all_they_wait_for_is_done(work: Working) -> None:
    first, second = await work.make(), await work.make()
    both = await work.make(depends_on=(first.id, second.id))
    one = await work.make(depends_on=(first.id,))
    given = {leased.task.id: leased.task for leased in await work.claim("a", 10)}
    assert set(given) == {first.id, second.id}
    await work.complete(given[first.id])
    [leased] = await work.claim("a", 10)
    assert (leased.task.id, leased.depends_on) == (one.id, (first.id,))
    await work.complete(given[second.id])
    [leased] = await work.claim("a", 10)
    assert leased.task.id == both.id
    assert (await work.show(first.id)).blocks == tuple(sorted((one.id, both.id)))


async def test_a_final_failure_reaches_all_that_depend_on_it_in_bounded_passes(work: Working) -> None:
    head = await work.make("head", max_retries=0)
    await work.make_many([work.asking(f"d{n}", depends_on=("head",)) for n in range(30)])
    tail = await work.make(depends_on=("d7",))
    [leased] = await work.claim()
    assert (await work.fail(leased.task)).dependents_pending == 1
    assert (await work.spread(head.id)).dependents_pending == 0
    assert (await work.show("d29")).task.reason == "dependency_failed"
    assert (await work.show(tail.id)).task.status is State.PENDING
    await work.spread("d7")
    after = await work.show(tail.id)
    assert (after.task.status, after.content.last_error) == (
        State.FAILED,
        "It depends on 'd7', which has failed or was canceled.",
    )


async def test_a_cycle_is_refused_and_named_and_nothing_is_changed(work: Working) -> None:
    await work.make("t1")
    for n in range(2, 6):
        await work.make(f"t{n}", depends_on=(f"t{n - 1}",))
    ask = Patch(zone_id=ZONE, caller=work.caller, id="t1", depends_on=("t5",))
    with pytest.raises(Problem) as refusal:
        await work.moved(ask)
    assert refusal.value.code == "dependency_cycle"
    assert refusal.value.members["cycle"] == ["t1", "t5", "t4", "t3", "t2", "t1"]
    assert (await work.show("t1")).depends_on == ()


async def test_dependencies_that_are_changed_are_those_that_count(work: Working) -> None:
    first, second = await work.make("first"), await work.make("second")
    await work.make("t", depends_on=("first",))
    await work.moved(Patch(zone_id=ZONE, caller=work.caller, id="t", depends_on=("second",)))
    given = {leased.task.id: leased.task for leased in await work.claim("a", 10)}
    await work.complete(given[first.id])
    assert await work.claim("a", 10) == ()
    await work.complete(given[second.id])
    assert [leased.task.id for leased in await work.claim("a", 10)] == ["t"]
    whole = await work.show("t")
    assert (whole.depends_on, (await work.show("first")).blocks) == (("second",), ())


async def test_a_canceled_task_that_is_retried_by_hand_begins_anew(work: Working) -> None:
    made = await work.make()
    await work.moved(Cancel(zone_id=ZONE, caller=work.caller, id=made.id, reason="no more"))
    assert await work.claim() == ()
    await work.moved(Retry(zone_id=ZONE, caller=work.caller, id=made.id))
    [leased] = await work.claim()
    assert (leased.task.id, leased.task.reason) == (made.id, None)


async def test_what_is_made_is_handed_to_a_claim_that_waits_in_the_same_commit(work: Working) -> None:
    waiting = asyncio.create_task(_wait(work, seconds=30))
    await _waiting(work, 1)
    made = await work.make()
    [leased] = await waiting
    assert (leased.task.id, leased.task.status) == (made.id, State.PENDING) or leased.task.status is State.RUNNING
    assert leased.content is not None
    assert (await work.show(made.id)).task.status is State.RUNNING


async def test_of_those_who_wait_it_is_one_who_can_do_it(work: Working) -> None:
    await work.agent("able", "rust")
    unable = asyncio.create_task(_wait(work, "a", 30))
    await _waiting(work, 1)
    able = asyncio.create_task(_wait(work, "able", 30))
    await _waiting(work, 2)
    made = await work.make(required=("rust",))
    [leased] = await able
    assert leased.task.id == made.id
    assert not unable.done()
    unable.cancel()


async def test_what_became_ready_elsewhere_is_found_by_the_lookout(work: Working) -> None:
    wakes = Wakeups(None)
    lookout = _lookout(work, wakes)
    lookout.start()
    head = await work.make()
    tail = await work.make(depends_on=(head.id,))
    [leased] = await work.claim()
    waiting = asyncio.create_task(_wait(work, seconds=30))
    await _waiting(work, 1)
    await work.complete(leased.task)
    wakes.notify()
    [second] = await waiting
    assert second.task.id == tail.id
    await lookout.stop()


async def test_one_whose_agent_is_full_waits_and_is_served_when_a_place_is_free(work: Working) -> None:
    await work.agent("small", slots=1)
    wakes = Wakeups(None)
    lookout = _lookout(work, wakes)
    lookout.start()
    await work.make_many([work.asking() for _ in range(2)])
    [leased] = await work.claim("small")
    waiting = asyncio.create_task(_wait(work, "small", 30))
    await _waiting(work, 1)
    await work.complete(leased.task)
    wakes.notify()
    assert len(await waiting) == 1
    await lookout.stop()


@pytest.mark.parametrize("graceful", [False, True])
async def test_whoever_waits_is_told_when_its_agent_was_ended_elsewhere(work: Working, graceful: bool) -> None:
    await work.agent("b")
    await work.make()
    await work.claim("a")
    ended, other = (asyncio.create_task(_wait(work, name, 30)) for name in "ab")
    await _waiting(work, 2)
    look = ClaimWakeups(work.keel.engine, work.keel.task_waiters, 30.0)
    assert await look([ZONE]) == 30.0
    await work.terminate("a", graceful=graceful)
    # So soon after the last look it only says when to come again; somebody else, who has not looked, finds it.
    assert await look([ZONE]) <= AGENT_CHECK_SECONDS
    await ClaimWakeups(work.keel.engine, work.keel.task_waiters, 30.0)([ZONE])
    assert await refused(ended) == ("agent_draining" if graceful else "agent_terminated")
    assert (other.done(), len(work.keel.task_waiters)) == (False, 1)
    other.cancel()


async def test_a_member_of_another_zone_finds_nothing_here(work: Working) -> None:
    made = await work.make()
    stranger = caller("app", zone_id="elsewhere")
    ask = Cancel(zone_id=ZONE, caller=stranger, id=made.id, reason="r")
    assert await refused(work.moved(ask)) in {"workspace_not_found", "zone_not_found"}


async def _wait(work: Working, agent: str = "a", seconds: float = 5.0) -> tuple[ClaimedTask, ...]:
    return await wait_for_work(work.claiming(agent), ZONE, work.submit_claim, work.keel.task_waiters, seconds)


async def _waiting(work: Working, number: int) -> None:
    async def wait() -> bool:
        return len(work.keel.task_waiters) == number

    await eventually(wait, f"{number} claims wait")


def _lookout(work: Working, wakes: Wakeups) -> Watcher[Claim, str, ClaimedTask]:
    """One that looks only when it is woken."""
    waiters = work.keel.task_waiters
    return Watcher(wakes, waiters, ClaimWakeups(work.keel.engine, waiters, 30.0), 30.0)
