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
from tests.support.builders import ZONE, caller
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness


@pytest.fixture
async def task_harness(runtime: RuntimeHarness) -> TaskHarness:
    made = TaskHarness(runtime)
    await made.register_agent()
    return made


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def test_of_many_who_make_with_one_key_one_makes_and_the_others_are_shown_it(task_harness: TaskHarness) -> None:
    done = await asyncio.gather(
        *(task_harness.submit_create(task_harness.create_command(idempotency_key="same")) for _ in range(50))
    )
    assert sum(each.created for each in done) == 1
    assert len({each.task.id for each in done}) == 1
    assert (
        await refused(
            task_harness.submit_create(task_harness.create_command(idempotency_key="same", request_digest="other"))
        )
        == "idempotency_key_conflict"
    )


async def test_what_is_made_is_given_out_done_and_kept(task_harness: TaskHarness) -> None:
    made = await task_harness.create(priority=7)
    [leased] = await task_harness.claim()
    assert leased.task.id == made.id
    assert leased.content is not None
    assert leased.content.title == "title"
    assert leased.lease_expires_at > leased.task.updated_at
    done = await task_harness.complete(leased.task, output='{"a":1}')
    assert done.status is State.COMPLETED
    whole = await task_harness.read(made.id)
    assert (whole.task, whole.content.output_result) == (done, '{"a":1}')
    types = [event.type for event in await task_harness.runtime.read_log() if event.subject == made.id]
    assert types == ["task.created", "task.started", "task.completed"]
    assert task_harness.read_held() == 0


@pytest.mark.parametrize("attempts", [1, 2])
async def test_what_is_stored_of_a_step_is_what_was_decided(task_harness: TaskHarness, attempts: int) -> None:
    """Most steps are written by statements that tell only what such a step changes: they must tell all of it."""
    made = await task_harness.create(estimated_duration_minutes=5, timeout_seconds=60)
    for _ in range(attempts - 1):
        [before] = await task_harness.claim(claim_id="before")
        token = before.task.attempt_token
        half = Progress(zone_id=ZONE, id=made.id, attempt_token=token, percent=50, step="half", checkpoint=None)
        await task_harness.submit(half)
        await task_harness.fail(before.task)
        await task_harness.make_available(made.id)
    [leased] = await task_harness.claim(claim_id="this")
    assert (await task_harness.read(made.id)).task == leased.task
    done = await task_harness.complete(leased.task)
    assert (await task_harness.read(made.id)).task == done


async def test_each_task_is_given_to_one_of_many_who_claim_at_once(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("b")
    made = await task_harness.create_many([task_harness.create_command() for _ in range(100)])
    claims = await asyncio.gather(*(task_harness.claim("ab"[n % 2], 7) for n in range(30)))
    given = Counter(leased.task.id for claim in claims for leased in claim)
    assert given == Counter(task.id for task in made)
    tokens = {leased.task.attempt_token for claim in claims for leased in claim}
    assert len(tokens) == 100
    assert task_harness.read_held("a") + task_harness.read_held("b") == 100


async def test_an_agent_holds_no_more_than_it_may_whoever_claims_for_it(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("small", slots=3)
    await task_harness.create_many([task_harness.create_command() for _ in range(20)])
    claims = await asyncio.gather(*(task_harness.claim("small", 5) for _ in range(8)))
    assert sum(len(claim) for claim in claims) == 3
    assert task_harness.read_held("small") == 3


async def test_the_lowest_turns_go_first_over_all_classes_that_suit(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("able", "python", "rust")
    made = [
        await task_harness.create(required=required, priority=priority)
        for priority in (3, 9, 6)
        for required in ((), ("python",), ("python", "rust"), ("go",))
    ]
    able = [task for task in made if task.class_id != made[3].class_id]
    wanted = sorted(able, key=lambda task: (task.rank, task.id))
    given = [leased.task.id for leased in await task_harness.claim("able", 5)]
    given += [leased.task.id for leased in await task_harness.claim("able", 50)]
    assert given == [task.id for task in wanted]


async def test_the_same_claim_id_gives_the_same_tasks_again(task_harness: TaskHarness) -> None:
    await task_harness.create_many([task_harness.create_command() for _ in range(4)])
    first = await task_harness.claim("a", 2, claim_id="c")
    again = await task_harness.claim("a", 2, claim_id="c")
    assert {each.task.id for each in first} == {each.task.id for each in again}
    assert [each.content for each in first] == [each.content for each in again]
    assert len(await task_harness.claim("a", 9, claim_id="other")) == 2


async def test_a_late_word_about_an_older_attempt_changes_nothing(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [first] = await task_harness.claim()
    await task_harness.submit(
        Abort(zone_id=ZONE, id=first.task.id, attempt_token=first.task.attempt_token, reason="timeout", jitter=0.0)
    )
    await task_harness.make_available(first.task.id)
    [second] = await task_harness.claim()
    assert (second.task.id, second.task.attempt) == (first.task.id, 2)
    assert await refused(task_harness.complete(first.task)) == "stale_attempt"
    assert (await task_harness.complete(second.task)).status is State.COMPLETED


async def test_a_task_that_reached_nobody_costs_no_attempt(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [leased] = await task_harness.claim()
    back = await task_harness.release(leased.task)
    assert (back.attempt, back.retry_count, task_harness.read_held()) == (0, 0, 0)
    [again] = await task_harness.claim()
    assert again.task.attempt == 1


async def test_what_an_agent_holds_comes_back_when_it_is_terminated(task_harness: TaskHarness) -> None:
    made = await task_harness.create_many([task_harness.create_command() for _ in range(5)])
    leases = await task_harness.claim("a", 5)
    await task_harness.terminate_agent()
    rows = [(await task_harness.read(task.id)).task for task in made]
    assert {(row.status, row.waits_for, row.reason) for row in rows} == {
        (State.ABORTED, WaitsFor.TIME, "agent_terminated")
    }
    assert await refused(task_harness.complete(leases[0].task)) == "stale_attempt"
    assert await refused(task_harness.claim()) == "agent_terminated"
    assert task_harness.read_held() == 0


async def test_an_agent_that_ends_gracefully_finishes_and_takes_no_more(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [leased] = await task_harness.claim()
    await task_harness.terminate_agent(graceful=True)
    assert await refused(task_harness.claim()) == "agent_draining"
    assert (await task_harness.complete(leased.task)).status is State.COMPLETED
    assert await refused(task_harness.claim()) == "agent_terminated"


async def test_dependents_begin_when_all_they_wait_for_is_done(task_harness: TaskHarness) -> None:
    first, second = await task_harness.create(), await task_harness.create()
    both = await task_harness.create(depends_on=(first.id, second.id))
    one = await task_harness.create(depends_on=(first.id,))
    given = {leased.task.id: leased.task for leased in await task_harness.claim("a", 10)}
    assert set(given) == {first.id, second.id}
    await task_harness.complete(given[first.id])
    [leased] = await task_harness.claim("a", 10)
    assert (leased.task.id, leased.depends_on) == (one.id, (first.id,))
    await task_harness.complete(given[second.id])
    [leased] = await task_harness.claim("a", 10)
    assert leased.task.id == both.id
    assert (await task_harness.read(first.id)).blocks == tuple(sorted((one.id, both.id)))


async def test_a_final_failure_reaches_all_that_depend_on_it_in_bounded_passes(task_harness: TaskHarness) -> None:
    head = await task_harness.create("head", max_retries=0)
    await task_harness.create_many([task_harness.create_command(f"d{n}", depends_on=("head",)) for n in range(30)])
    tail = await task_harness.create(depends_on=("d7",))
    [leased] = await task_harness.claim()
    assert (await task_harness.fail(leased.task)).dependents_pending == 1
    assert (await task_harness.unblock_dependents(head.id)).dependents_pending == 0
    assert (await task_harness.read("d29")).task.reason == "dependency_failed"
    assert (await task_harness.read(tail.id)).task.status is State.PENDING
    await task_harness.unblock_dependents("d7")
    after = await task_harness.read(tail.id)
    assert (after.task.status, after.content.last_error) == (
        State.FAILED,
        "It depends on 'd7', which has failed or was canceled.",
    )


async def test_a_cycle_is_refused_and_named_and_nothing_is_changed(task_harness: TaskHarness) -> None:
    await task_harness.create("t1")
    for n in range(2, 6):
        await task_harness.create(f"t{n}", depends_on=(f"t{n - 1}",))
    ask = Patch(zone_id=ZONE, caller=task_harness.caller, id="t1", depends_on=("t5",))
    with pytest.raises(Problem) as refusal:
        await task_harness.submit(ask)
    assert refusal.value.code == "dependency_cycle"
    assert refusal.value.members["cycle"] == ["t1", "t5", "t4", "t3", "t2", "t1"]
    assert (await task_harness.read("t1")).depends_on == ()


async def test_dependencies_that_are_changed_are_those_that_count(task_harness: TaskHarness) -> None:
    first, second = await task_harness.create("first"), await task_harness.create("second")
    await task_harness.create("t", depends_on=("first",))
    await task_harness.submit(Patch(zone_id=ZONE, caller=task_harness.caller, id="t", depends_on=("second",)))
    given = {leased.task.id: leased.task for leased in await task_harness.claim("a", 10)}
    await task_harness.complete(given[first.id])
    assert await task_harness.claim("a", 10) == ()
    await task_harness.complete(given[second.id])
    assert [leased.task.id for leased in await task_harness.claim("a", 10)] == ["t"]
    whole = await task_harness.read("t")
    assert (whole.depends_on, (await task_harness.read("first")).blocks) == (("second",), ())


async def test_a_canceled_task_that_is_retried_by_hand_begins_anew(task_harness: TaskHarness) -> None:
    made = await task_harness.create()
    await task_harness.submit(Cancel(zone_id=ZONE, caller=task_harness.caller, id=made.id, reason="no more"))
    assert await task_harness.claim() == ()
    await task_harness.submit(Retry(zone_id=ZONE, caller=task_harness.caller, id=made.id))
    [leased] = await task_harness.claim()
    assert (leased.task.id, leased.task.reason) == (made.id, None)


async def test_what_is_made_is_handed_to_a_claim_that_waits_in_the_same_commit(task_harness: TaskHarness) -> None:
    waiting = asyncio.create_task(_wait(task_harness, seconds=30))
    await _waiting(task_harness, 1)
    made = await task_harness.create()
    [leased] = await waiting
    assert (leased.task.id, leased.task.status) == (made.id, State.PENDING) or leased.task.status is State.RUNNING
    assert leased.content is not None
    assert (await task_harness.read(made.id)).task.status is State.RUNNING


async def test_of_those_who_wait_it_is_one_who_can_do_it(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("able", "rust")
    unable = asyncio.create_task(_wait(task_harness, "a", 30))
    await _waiting(task_harness, 1)
    able = asyncio.create_task(_wait(task_harness, "able", 30))
    await _waiting(task_harness, 2)
    made = await task_harness.create(required=("rust",))
    [leased] = await able
    assert leased.task.id == made.id
    assert not unable.done()
    unable.cancel()


async def test_what_became_ready_elsewhere_is_found_by_the_lookout(task_harness: TaskHarness) -> None:
    wakes = Wakeups(None)
    lookout = _lookout(task_harness, wakes)
    lookout.start()
    head = await task_harness.create()
    tail = await task_harness.create(depends_on=(head.id,))
    [leased] = await task_harness.claim()
    waiting = asyncio.create_task(_wait(task_harness, seconds=30))
    await _waiting(task_harness, 1)
    await task_harness.complete(leased.task)
    wakes.notify()
    [second] = await waiting
    assert second.task.id == tail.id
    await lookout.stop()


async def test_one_whose_agent_is_full_waits_and_is_served_when_a_place_is_free(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("small", slots=1)
    wakes = Wakeups(None)
    lookout = _lookout(task_harness, wakes)
    lookout.start()
    await task_harness.create_many([task_harness.create_command() for _ in range(2)])
    [leased] = await task_harness.claim("small")
    waiting = asyncio.create_task(_wait(task_harness, "small", 30))
    await _waiting(task_harness, 1)
    await task_harness.complete(leased.task)
    wakes.notify()
    assert len(await waiting) == 1
    await lookout.stop()


@pytest.mark.parametrize("graceful", [False, True])
async def test_whoever_waits_is_told_when_its_agent_was_ended_elsewhere(
    task_harness: TaskHarness, graceful: bool
) -> None:
    await task_harness.register_agent("b")
    await task_harness.create()
    await task_harness.claim("a")
    ended, other = (asyncio.create_task(_wait(task_harness, name, 30)) for name in "ab")
    await _waiting(task_harness, 2)
    look = ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0)
    assert await look([ZONE]) == 30.0
    await task_harness.terminate_agent("a", graceful=graceful)
    # So soon after the last look it only says when to come again; somebody else, who has not looked, finds it.
    assert await look([ZONE]) <= AGENT_CHECK_SECONDS
    await ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0)([ZONE])
    assert await refused(ended) == ("agent_draining" if graceful else "agent_terminated")
    assert (other.done(), len(task_harness.runtime.task_claim_polls)) == (False, 1)
    other.cancel()


async def test_a_member_of_another_zone_finds_nothing_here(task_harness: TaskHarness) -> None:
    made = await task_harness.create()
    stranger = caller("app", zone_id="elsewhere")
    ask = Cancel(zone_id=ZONE, caller=stranger, id=made.id, reason="r")
    assert await refused(task_harness.submit(ask)) in {"workspace_not_found", "zone_not_found"}


async def _wait(work: TaskHarness, agent: str = "a", seconds: float = 5.0) -> tuple[ClaimedTask, ...]:
    return await wait_for_work(
        work.claim_command(agent), ZONE, work.submit_claim, work.runtime.task_claim_polls, seconds
    )


async def _waiting(work: TaskHarness, number: int) -> None:
    async def wait() -> bool:
        return len(work.runtime.task_claim_polls) == number

    await eventually(wait, f"{number} claims wait")


def _lookout(work: TaskHarness, wakes: Wakeups) -> Watcher[Claim, str, ClaimedTask]:
    """One that looks only when it is woken."""
    waiters = work.runtime.task_claim_polls
    return Watcher(wakes, waiters, ClaimWakeups(work.runtime.engine, waiters, 30.0), 30.0)
