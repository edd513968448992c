"""Tasks on both engines: idempotency keys, claims, dependencies, long polls, and no lost task."""

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
    harness = TaskHarness(runtime)
    await harness.register_agent()
    return harness


async def error_code(request: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await request
    return refusal.value.code


async def test_concurrent_creates_with_one_key_create_one_task(task_harness: TaskHarness) -> None:
    results = await asyncio.gather(
        *(task_harness.submit_create(task_harness.create_command(idempotency_key="same")) for _ in range(50))
    )
    assert sum(result.created for result in results) == 1
    assert len({result.task.id for result in results}) == 1
    assert (
        await error_code(
            task_harness.submit_create(task_harness.create_command(idempotency_key="same", request_digest="other"))
        )
        == "idempotency_key_conflict"
    )


async def test_task_is_created_claimed_completed_and_stored(task_harness: TaskHarness) -> None:
    task = await task_harness.create(priority=7)
    [leased] = await task_harness.claim()
    assert leased.task.id == task.id
    assert leased.content is not None
    assert leased.content.title == "title"
    assert leased.lease_expires_at > leased.task.updated_at
    done = await task_harness.complete(leased.task, output='{"a":1}')
    assert done.status is State.COMPLETED
    full_task = await task_harness.read(task.id)
    assert (full_task.task, full_task.content.output_result) == (done, '{"a":1}')
    types = [event.type for event in await task_harness.runtime.read_log() if event.subject == task.id]
    assert types == ["task.created", "task.started", "task.completed"]
    assert task_harness.read_held() == 0


@pytest.mark.parametrize("attempts", [1, 2])
async def test_stored_row_equals_the_decided_row_after_each_transition(
    task_harness: TaskHarness, attempts: int
) -> None:
    # Most transitions have their own update statement. It must write every column that the transition changes.
    task = await task_harness.create(estimated_duration_minutes=5, timeout_seconds=60)
    for _ in range(attempts - 1):
        [before] = await task_harness.claim(claim_id="before")
        token = before.task.attempt_token
        progress = Progress(zone_id=ZONE, id=task.id, attempt_token=token, percent=50, step="half", checkpoint=None)
        await task_harness.submit(progress)
        await task_harness.fail(before.task)
        await task_harness.make_available(task.id)
    [leased] = await task_harness.claim(claim_id="this")
    assert (await task_harness.read(task.id)).task == leased.task
    done = await task_harness.complete(leased.task)
    assert (await task_harness.read(task.id)).task == done


async def test_concurrent_claims_return_every_task_exactly_once(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("b")
    tasks = await task_harness.create_many([task_harness.create_command() for _ in range(100)])
    claims = await asyncio.gather(*(task_harness.claim("ab"[n % 2], 7) for n in range(30)))
    claimed = Counter(leased.task.id for claim in claims for leased in claim)
    assert claimed == Counter(task.id for task in tasks)
    tokens = {leased.task.attempt_token for claim in claims for leased in claim}
    assert len(tokens) == 100
    assert task_harness.read_held("a") + task_harness.read_held("b") == 100


async def test_concurrent_claims_respect_the_slots_of_the_agent(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("small", slots=3)
    await task_harness.create_many([task_harness.create_command() for _ in range(20)])
    claims = await asyncio.gather(*(task_harness.claim("small", 5) for _ in range(8)))
    assert sum(len(claim) for claim in claims) == 3
    assert task_harness.read_held("small") == 3


async def test_claim_returns_the_lowest_ranks_over_all_suitable_task_classes(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("able", "python", "rust")
    tasks = [
        await task_harness.create(required=required, priority=priority)
        for priority in (3, 9, 6)
        for required in ((), ("python",), ("python", "rust"), ("go",))
    ]
    suitable = [task for task in tasks if task.class_id != tasks[3].class_id]
    expected = sorted(suitable, key=lambda task: (task.rank, task.id))
    claimed = [leased.task.id for leased in await task_harness.claim("able", 5)]
    claimed += [leased.task.id for leased in await task_harness.claim("able", 50)]
    assert claimed == [task.id for task in expected]


async def test_repeated_claim_id_returns_the_same_tasks(task_harness: TaskHarness) -> None:
    await task_harness.create_many([task_harness.create_command() for _ in range(4)])
    first = await task_harness.claim("a", 2, claim_id="c")
    repeated = await task_harness.claim("a", 2, claim_id="c")
    assert {leased.task.id for leased in first} == {leased.task.id for leased in repeated}
    assert [leased.content for leased in first] == [leased.content for leased in repeated]
    assert len(await task_harness.claim("a", 9, claim_id="other")) == 2


async def test_late_report_of_an_older_attempt_changes_nothing(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [first] = await task_harness.claim()
    await task_harness.submit(
        Abort(zone_id=ZONE, id=first.task.id, attempt_token=first.task.attempt_token, reason="timeout", jitter=0.0)
    )
    await task_harness.make_available(first.task.id)
    [second] = await task_harness.claim()
    assert (second.task.id, second.task.attempt) == (first.task.id, 2)
    assert await error_code(task_harness.complete(first.task)) == "stale_attempt"
    assert (await task_harness.complete(second.task)).status is State.COMPLETED


async def test_released_task_costs_no_attempt(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [leased] = await task_harness.claim()
    released = await task_harness.release(leased.task)
    assert (released.attempt, released.retry_count, task_harness.read_held()) == (0, 0, 0)
    [second] = await task_harness.claim()
    assert second.task.attempt == 1


async def test_attempts_of_a_terminated_agent_are_aborted(task_harness: TaskHarness) -> None:
    tasks = await task_harness.create_many([task_harness.create_command() for _ in range(5)])
    leases = await task_harness.claim("a", 5)
    await task_harness.terminate_agent()
    rows = [(await task_harness.read(task.id)).task for task in tasks]
    assert {(row.status, row.waits_for, row.reason) for row in rows} == {
        (State.ABORTED, WaitsFor.TIME, "agent_terminated")
    }
    assert await error_code(task_harness.complete(leases[0].task)) == "stale_attempt"
    assert await error_code(task_harness.claim()) == "agent_terminated"
    assert task_harness.read_held() == 0


async def test_draining_agent_finishes_its_task_and_claims_no_more(task_harness: TaskHarness) -> None:
    await task_harness.create()
    [leased] = await task_harness.claim()
    await task_harness.terminate_agent(graceful=True)
    assert await error_code(task_harness.claim()) == "agent_draining"
    assert (await task_harness.complete(leased.task)).status is State.COMPLETED
    assert await error_code(task_harness.claim()) == "agent_terminated"


async def test_dependents_are_ready_when_all_dependencies_are_completed(task_harness: TaskHarness) -> None:
    first, second = await task_harness.create(), await task_harness.create()
    both = await task_harness.create(depends_on=(first.id, second.id))
    one = await task_harness.create(depends_on=(first.id,))
    claimed = {leased.task.id: leased.task for leased in await task_harness.claim("a", 10)}
    assert set(claimed) == {first.id, second.id}
    await task_harness.complete(claimed[first.id])
    [leased] = await task_harness.claim("a", 10)
    assert (leased.task.id, leased.depends_on) == (one.id, (first.id,))
    await task_harness.complete(claimed[second.id])
    [leased] = await task_harness.claim("a", 10)
    assert leased.task.id == both.id
    assert (await task_harness.read(first.id)).blocks == tuple(sorted((one.id, both.id)))


async def test_final_failure_spreads_to_all_dependents_in_bounded_passes(task_harness: TaskHarness) -> None:
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


async def test_dependency_cycle_is_refused_and_named_and_changes_nothing(task_harness: TaskHarness) -> None:
    await task_harness.create("t1")
    for n in range(2, 6):
        await task_harness.create(f"t{n}", depends_on=(f"t{n - 1}",))
    command = Patch(zone_id=ZONE, caller=task_harness.caller, id="t1", depends_on=("t5",))
    with pytest.raises(Problem) as refusal:
        await task_harness.submit(command)
    assert refusal.value.code == "dependency_cycle"
    assert refusal.value.members["cycle"] == ["t1", "t5", "t4", "t3", "t2", "t1"]
    assert (await task_harness.read("t1")).depends_on == ()


async def test_patched_dependencies_replace_the_old_ones(task_harness: TaskHarness) -> None:
    first, second = await task_harness.create("first"), await task_harness.create("second")
    await task_harness.create("t", depends_on=("first",))
    await task_harness.submit(Patch(zone_id=ZONE, caller=task_harness.caller, id="t", depends_on=("second",)))
    claimed = {leased.task.id: leased.task for leased in await task_harness.claim("a", 10)}
    await task_harness.complete(claimed[first.id])
    assert await task_harness.claim("a", 10) == ()
    await task_harness.complete(claimed[second.id])
    assert [leased.task.id for leased in await task_harness.claim("a", 10)] == ["t"]
    full_task = await task_harness.read("t")
    assert (full_task.depends_on, (await task_harness.read("first")).blocks) == (("second",), ())


async def test_canceled_task_can_be_retried(task_harness: TaskHarness) -> None:
    task = await task_harness.create()
    await task_harness.submit(Cancel(zone_id=ZONE, caller=task_harness.caller, id=task.id, reason="not needed"))
    assert await task_harness.claim() == ()
    await task_harness.submit(Retry(zone_id=ZONE, caller=task_harness.caller, id=task.id))
    [leased] = await task_harness.claim()
    assert (leased.task.id, leased.task.reason) == (task.id, None)


async def test_new_task_is_delivered_to_a_waiting_claim_in_the_same_commit(task_harness: TaskHarness) -> None:
    waiting = asyncio.create_task(_claim_and_wait(task_harness, seconds=30))
    await _wait_for_polls(task_harness, 1)
    task = await task_harness.create()
    [leased] = await waiting
    assert (leased.task.id, leased.task.status) == (task.id, State.PENDING) or leased.task.status is State.RUNNING
    assert leased.content is not None
    assert (await task_harness.read(task.id)).task.status is State.RUNNING


async def test_new_task_is_delivered_to_a_waiting_claim_of_a_capable_agent(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("able", "rust")
    unable = asyncio.create_task(_claim_and_wait(task_harness, "a", 30))
    await _wait_for_polls(task_harness, 1)
    able = asyncio.create_task(_claim_and_wait(task_harness, "able", 30))
    await _wait_for_polls(task_harness, 2)
    task = await task_harness.create(required=("rust",))
    [leased] = await able
    assert leased.task.id == task.id
    assert not unable.done()
    unable.cancel()


async def test_watcher_delivers_a_task_that_became_ready_after_a_wakeup(task_harness: TaskHarness) -> None:
    wakeups = Wakeups(None)
    watcher = _new_watcher(task_harness, wakeups)
    watcher.start()
    head = await task_harness.create()
    tail = await task_harness.create(depends_on=(head.id,))
    [leased] = await task_harness.claim()
    waiting = asyncio.create_task(_claim_and_wait(task_harness, seconds=30))
    await _wait_for_polls(task_harness, 1)
    await task_harness.complete(leased.task)
    wakeups.notify()
    [second] = await waiting
    assert second.task.id == tail.id
    await watcher.stop()


async def test_claim_of_a_full_agent_waits_until_a_slot_is_free(task_harness: TaskHarness) -> None:
    await task_harness.register_agent("small", slots=1)
    wakeups = Wakeups(None)
    watcher = _new_watcher(task_harness, wakeups)
    watcher.start()
    await task_harness.create_many([task_harness.create_command() for _ in range(2)])
    [leased] = await task_harness.claim("small")
    waiting = asyncio.create_task(_claim_and_wait(task_harness, "small", 30))
    await _wait_for_polls(task_harness, 1)
    await task_harness.complete(leased.task)
    wakeups.notify()
    assert len(await waiting) == 1
    await watcher.stop()


@pytest.mark.parametrize("graceful", [False, True])
async def test_waiting_claim_fails_after_its_agent_is_terminated(task_harness: TaskHarness, graceful: bool) -> None:
    await task_harness.register_agent("b")
    await task_harness.create()
    await task_harness.claim("a")
    ended, other = (asyncio.create_task(_claim_and_wait(task_harness, name, 30)) for name in "ab")
    await _wait_for_polls(task_harness, 2)
    claim_wakeups = ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0)
    assert await claim_wakeups([ZONE]) == 30.0
    await task_harness.terminate_agent("a", graceful=graceful)
    # It checks agents at most once per AGENT_CHECK_SECONDS. Another instance, which has not checked yet, finds it.
    assert await claim_wakeups([ZONE]) <= AGENT_CHECK_SECONDS
    await ClaimWakeups(task_harness.runtime.engine, task_harness.runtime.task_claim_polls, 30.0)([ZONE])
    assert await error_code(ended) == ("agent_draining" if graceful else "agent_terminated")
    assert (other.done(), len(task_harness.runtime.task_claim_polls)) == (False, 1)
    other.cancel()


async def test_caller_of_another_zone_finds_no_task(task_harness: TaskHarness) -> None:
    task = await task_harness.create()
    foreign_caller = caller("app", zone_id="other-zone")
    command = Cancel(zone_id=ZONE, caller=foreign_caller, id=task.id, reason="r")
    assert await error_code(task_harness.submit(command)) in {"workspace_not_found", "zone_not_found"}


async def _claim_and_wait(task_harness: TaskHarness, agent: str = "a", seconds: float = 5.0) -> tuple[ClaimedTask, ...]:
    return await wait_for_work(
        task_harness.claim_command(agent),
        ZONE,
        task_harness.submit_claim,
        task_harness.runtime.task_claim_polls,
        seconds,
    )


async def _wait_for_polls(task_harness: TaskHarness, number: int) -> None:
    async def are_waiting() -> bool:
        return len(task_harness.runtime.task_claim_polls) == number

    await eventually(are_waiting, f"{number} claims are waiting")


def _new_watcher(task_harness: TaskHarness, wakeups: Wakeups) -> Watcher[Claim, str, ClaimedTask]:
    """A watcher that checks only when it is woken."""
    polls = task_harness.runtime.task_claim_polls
    return Watcher(wakeups, polls, ClaimWakeups(task_harness.runtime.engine, polls, 30.0), 30.0)
