"""Invocations on both engines: created once per key, one holder per attempt, canceled with their session."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Literal

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.domain.invocations.model import (
    Claim,
    Invocation,
    InvocationCommand,
    InvocationSettings,
    RetryPolicy,
    State,
)
from quarterdeck.domain.invocations.operations.batch import BatchRunner
from quarterdeck.domain.invocations.operations.long_poll import (
    ClaimPolls,
    ReadyPollWaker,
    new_claim_poll,
    wait_for_invocations,
)
from quarterdeck.domain.invocations.rules.decider import BatchDecider, InvocationBatchInput
from quarterdeck.domain.invocations.sweeps import DEADLINE, ORPHAN, RETENTION
from quarterdeck.domain.sessions.model import Terminate
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.wakeups import Wakeups
from tests.domain.test_invocations_long_poll import CLAIM, invocation_row
from tests.support.builders import ZONE, caller
from tests.support.eventually import eventually
from tests.support.invocations import InvocationHarness, register_service
from tests.support.outcomes import problem_code
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


def backdate(service: InvocationHarness, row: Invocation, column: str) -> None:
    service.runtime.database.execute(f"update agent_invocations set {column} = 1 where id = ?", row.id)


async def test_concurrent_calls_with_one_key_create_one_invocation(service: InvocationHarness) -> None:
    results = await asyncio.gather(*(service.enqueue("same") for _ in range(50)))
    assert sum(result.created for result in results) == 1
    assert len({result.invocation.id for result in results}) == 1


async def test_invocations_are_claimed_in_order_and_completion_is_stored(service: InvocationHarness) -> None:
    created = [await service.create() for _ in range(5)]
    claimed = await service.claim(3)
    assert [row.id for row in claimed] == [row.id for row in created[:3]]
    await service.complete(claimed[0])
    stored = await service.read(claimed[0])
    assert (stored.status, stored.result_json, stored.params_json) == (State.SUCCEEDED, '"r"', '{"a":1}')
    assert await service.event_types(claimed[0]) == ["created", "started", "succeeded"]


async def test_concurrent_claims_return_every_invocation_exactly_once(service: InvocationHarness) -> None:
    await asyncio.gather(*(service.create() for _ in range(60)))
    claims = await asyncio.gather(*(service.claim(7) for _ in range(12)))
    ids = [row.id for claimed in claims for row in claimed]
    assert len(ids) == len(set(ids)) == 60


async def test_claims_of_two_processes_return_every_invocation_exactly_once(
    service: InvocationHarness, engine_url: str
) -> None:
    if not engine_url.startswith("postgresql"):
        pytest.skip("SQLite has one process")
    await asyncio.gather(*(service.create() for _ in range(40)))
    async with open_runtime(engine_url) as other:
        other_service = InvocationHarness(other, service.service_id)
        claims = await asyncio.gather(*(harness.claim(3) for harness in (service, other_service) * 10))
    ids = [row.id for claimed in claims for row in claimed]
    assert len(ids) == len(set(ids)) == 40


async def test_invocation_is_delivered_to_a_waiting_claim_in_its_own_commit(service: InvocationHarness) -> None:
    poll = new_claim_poll(service.claim_command())
    assert await service.submit_claim(service.claim_command(poll=poll)) == ()
    assert len(service.runtime.claim_polls) == 1
    head = service.runtime.database.scalar("select pos from log_head")
    result = await service.enqueue()
    [delivered] = poll.take_delivered()
    assert delivered.id == result.invocation.id
    assert service.runtime.database.scalar("select pos from log_head") == int(str(head)) + 2
    [created, started] = service.runtime.database.execute("select at from events where subject = ?", delivered.id)
    assert created == started, "one transaction has one timestamp"
    assert len(service.runtime.claim_polls) == 0


async def test_undelivered_invocation_is_released_without_using_an_attempt(service: InvocationHarness) -> None:
    returned: list[Invocation] = []
    service.runtime.claim_polls.on_undelivered = returned.extend
    poll = new_claim_poll(service.claim_command())
    await service.submit_claim(service.claim_command(poll=poll))
    await service.create()
    service.runtime.claim_polls.remove(poll)
    [row] = returned
    released = await service.release(row)
    assert (released.status, released.attempts) == (State.PENDING, 0)


async def test_waiting_claim_of_an_ended_session_gets_no_invocation(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime)
    ended_service = InvocationHarness(runtime, service.service_id)
    ended_service.caller = caller("app", session_id=session.id)
    poll = new_claim_poll(ended_service.claim_command())
    assert await ended_service.submit_claim(ended_service.claim_command(poll=poll)) == ()
    await runtime.terminate(session)
    row = await service.create()
    assert poll.delivered == (), "the poll is completed without an invocation, so that the client retries"
    assert poll.take_delivered() == ()
    assert (await service.read(row)).status is State.PENDING


async def test_claim_repeated_with_its_id_returns_the_same_leases(service: InvocationHarness) -> None:
    await service.create()
    [first] = await service.claim(claim_id="c")
    [second] = await service.claim(claim_id="c")
    assert (second.id, second.attempts, second.attempt_token) == (first.id, 1, first.attempt_token)
    assert (await service.read(first)).lease_expires_at == second.lease_expires_at != first.lease_expires_at
    assert await service.claim(claim_id="d") == ()


async def test_completion_of_an_older_attempt_is_refused_and_changes_nothing(service: InvocationHarness) -> None:
    await service.create()
    [first] = await service.claim()
    backdate(service, first, "lease_expires_at")
    await service.check_overdue(first)
    [second] = await service.claim()
    assert second.attempts == 2
    assert await problem_code(service.complete(first)) == "stale_attempt"
    assert await problem_code(service.heartbeat(first)) == "stale_attempt"
    assert (await service.read(second)).status is State.RUNNING
    assert (await service.complete(second)).status is State.SUCCEEDED


async def test_invocation_is_dead_after_its_last_failed_attempt(service: InvocationHarness) -> None:
    row = await service.create()
    for _ in range(3):
        [claimed] = await service.claim()
        row = await service.complete(claimed, "failed")
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert await service.claim() == ()
    assert await service.event_types(row) == ["created"] + ["started", "retried"] * 2 + ["started", "dead"]


async def test_backoff_survives_a_restart(runtime: RuntimeHarness, engine_url: str) -> None:
    service = await register_service(runtime)
    await service.create(retry_policy=RetryPolicy(backoff_ms=200_000))
    [claimed] = await service.claim()
    row = await service.complete(claimed, "failed")
    assert row.available_at > row.updated_at + 199_000
    async with open_runtime(engine_url) as restarted:
        harness = InvocationHarness(restarted, service.service_id)
        assert await harness.claim() == ()
        runtime.database.execute("update agent_invocations set available_at = 1 where id = ?", row.id)
        assert [invocation.attempts for invocation in await harness.claim()] == [2]


@pytest.mark.parametrize(("column", "last"), [("deadline_at", State.TIMED_OUT), ("lease_expires_at", State.DEAD)])
async def test_sweep_ends_attempts_past_their_deadline_or_lease(
    service: InvocationHarness, column: str, last: State
) -> None:
    row = await service.create()
    sweeper = service.runtime.invocation_sweep_runner()
    for _ in range(3):
        [claimed] = await service.claim()
        backdate(service, claimed, column)
        assert await sweeper.run_now(DEADLINE) == 1
    assert (await service.read(row)).status is last
    assert await sweeper.run_now(DEADLINE) == 0


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "canceled"])
async def test_running_invocation_with_a_cancel_request_ends_as_canceled(
    service: InvocationHarness, outcome: Literal["succeeded", "failed", "canceled"]
) -> None:
    await service.create()
    [claimed] = await service.claim()
    requested = await service.cancel(claimed)
    assert (requested.status, requested.cancel_reason) == (State.RUNNING, "enough")
    assert (await service.heartbeat(claimed)).cancel_requested_at is not None
    completed = await service.complete(claimed, outcome)
    assert (completed.status, completed.result_json) == (State.CANCELED, '"r"'), "the reported result is stored"
    assert await service.complete(claimed, outcome) == completed, "repeating the report returns the same row"
    assert await service.event_types(claimed) == ["created", "started", "cancel_requested", "canceled"]


@pytest.mark.parametrize("field", ["source_session_id", "target_session_id"])
async def test_ending_a_session_cancels_its_invocations_in_the_same_transaction(
    runtime: RuntimeHarness, field: str
) -> None:
    service = await register_service(runtime)
    session, other = await runtime.spawn(), await runtime.spawn()
    waiting = await service.create(**{field: session.id})
    running = await service.create(**{field: session.id})
    kept = await service.create(**{field: other.id})
    for _ in range(2):
        await service.claim()
    await service.release(await service.read(waiting))
    await runtime.terminate(session)
    for row in (waiting, running):
        after = await service.read(row)
        assert (after.status, after.cancel_reason) == (State.CANCELED, "session_ended")
    assert (await service.read(kept)).status is State.PENDING
    assert await problem_code(service.complete(await service.read(running))) == "invocation_not_completable"
    log = await runtime.read_log()
    at = {event.subject: event.at for event in log if event.type in ("session.terminate", "invocation.canceled")}
    assert at[session.id] == at[waiting.id] == at[running.id]


async def test_invocations_of_sessions_marked_by_a_cascade_do_not_start(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as runtime:
        await runtime.put_zone()
        service = await register_service(runtime)
        root = await runtime.spawn()
        child = await runtime.spawn(parent_id=root.id)
        row = await service.create(source_session_id=child.id)
        result = await runtime.cascade_runner.submit_terminate(Terminate(root.zone_id, root.id, "obsolete"))
        assert result.cascade_id is not None
        assert await problem_code(service.create(source_session_id=child.id)) == "agent_session_not_found"
        assert await service.claim() == ()
        assert (await service.read(row)).status is State.CANCELED


async def test_invocations_wait_while_source_or_target_is_suspended(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    source, target = await runtime.spawn(), await runtime.spawn()
    row = await service.create(source_session_id=source.id, target_session_id=target.id)
    await runtime.suspend(source)
    await runtime.suspend(target)
    assert await service.claim() == ()
    assert await problem_code(service.create(source_session_id=source.id)) == "agent_suspended"
    await runtime.resume(source)
    assert await service.claim() == (), "the target is still suspended"
    await runtime.resume(target)
    assert [claimed.id for claimed in await service.claim()] == [row.id]


async def test_running_invocation_of_a_suspended_session_can_be_completed(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    await service.create(source_session_id=session.id)
    [claimed] = await service.claim()
    await runtime.suspend(session)
    assert (await service.heartbeat(claimed)).status is State.RUNNING
    assert (await service.complete(claimed)).status is State.SUCCEEDED


async def test_retry_for_a_suspended_session_waits_until_it_is_resumed(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    await service.create(source_session_id=session.id)
    [claimed] = await service.claim()
    await runtime.suspend(session)
    await service.complete(claimed, "failed")
    assert await service.claim() == ()
    await runtime.resume(session)
    assert [retried.id for retried in await service.claim()] == [claimed.id]


async def test_invocations_are_canceled_when_their_service_is_unregistered(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime, session_id=session.id)
    row = await service.create()
    await runtime.terminate(session)
    after = await service.read(row)
    assert (after.status, after.cancel_reason) == (State.CANCELED, "service_unregistered")
    assert await problem_code(service.create()) == "agent_service_not_found"


async def test_orphan_sweep_cancels_invocations_of_expired_sessions(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    row = await service.create(source_session_id=session.id)
    runtime.database.expire_sessions(session)
    assert await runtime.invocation_sweep_runner().run_now(ORPHAN) == 1
    assert (await service.read(row)).status is State.CANCELED


async def test_retention_deletes_only_invocations_that_ended_before_the_window(service: InvocationHarness) -> None:
    old, recent, waiting = [await service.create() for _ in range(3)]
    for row in await service.claim(2):
        await service.complete(row)
    settings = InvocationSettings(invocation_retention_days=1)
    sweeper = service.runtime.invocation_sweep_runner(settings)
    assert await sweeper.run_now(RETENTION) == 0
    old_id = f"00000000{old.id[8:]}"
    service.runtime.database.execute(
        "update agent_invocations set id = ?, completed_at = ? where id = ?", old_id, old.created_at - 2 * DAY, old.id
    )
    assert await sweeper.run_now(RETENTION) == 1
    remaining = {str(row_id) for (row_id,) in service.runtime.database.execute("select id from agent_invocations")}
    assert remaining == {recent.id, waiting.id}


# -- long polls


async def start_watcher(runtime: RuntimeHarness) -> tuple[Watcher[Claim, tuple[str, str], Invocation], Wakeups]:
    wakeups = Wakeups()
    watcher = Watcher(wakeups, runtime.claim_polls, ReadyPollWaker(runtime.engine, runtime.claim_polls, 30.0), 30.0)
    watcher.start()
    return watcher, wakeups


async def wait_for_claim(runtime: RuntimeHarness) -> None:
    async def is_waiting() -> bool:
        return len(runtime.claim_polls) == 1

    await eventually(is_waiting, "a claim is waiting")


async def test_waiting_claim_is_woken_by_a_commit_of_another_process(engine_url: str, runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    watcher, wakeups = await start_watcher(runtime)
    try:
        claim = asyncio.create_task(
            wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        )
        await wait_for_claim(runtime)
        # As another process would: without the long polls of this one.
        polls, runtime.claim_polls._by_key = runtime.claim_polls._by_key, {}
        row = await service.create()
        runtime.claim_polls._by_key = polls
        wakeups.notify()
        [delivered] = await claim
        assert delivered.id == row.id
    finally:
        await watcher.stop()


async def test_waiting_claim_fails_when_its_service_is_unregistered(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime, session_id=session.id)
    watcher, wakeups = await start_watcher(runtime)
    try:
        claim = asyncio.create_task(
            wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        )
        await wait_for_claim(runtime)
        await runtime.terminate(session)
        wakeups.notify()
        assert await problem_code(claim) == "agent_service_not_found"
    finally:
        await watcher.stop()


async def test_two_waiting_requests_with_one_claim_id_get_the_same_invocation(service: InvocationHarness) -> None:
    polls = [new_claim_poll(service.claim_command(claim_id="c")) for _ in range(2)]
    for poll in polls:
        await service.submit_claim(msgspec.structs.replace(poll.request, waiter=poll))
    first = await service.create()
    waiting, service.runtime.claim_polls._by_key = service.runtime.claim_polls._by_key, {}
    assert [row.id for row in polls[0].take_delivered()] == [first.id]
    await service.create()
    service.runtime.claim_polls._by_key = waiting
    await service.create()
    assert [row.id for row in polls[1].take_delivered()] == [first.id]


async def test_each_service_loads_only_as_many_due_invocations_as_it_claims(
    service: InvocationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await register_service(service.runtime)
    for harness in [service, other] * 30:
        await harness.create()
    runner = BatchRunner(30_000, ClaimPolls())
    inputs: list[InvocationBatchInput] = []

    def record_input(loaded: InvocationBatchInput) -> BatchDecider:
        inputs.append(loaded)
        return BatchDecider(loaded)

    monkeypatch.setattr("quarterdeck.domain.invocations.operations.batch.BatchDecider", record_input)
    commands: list[InvocationCommand] = [service.claim_command(1), other.claim_command(20)]
    await service.runtime.engine.transact(lambda tx: runner.run(tx, commands), zones=[ZONE])
    [loaded] = inputs
    loaded_counts = Counter(row.service_id for row in loaded.due)
    assert loaded_counts[service.service_id] <= 4
    assert loaded_counts[other.service_id] >= 20


async def test_waiting_claim_gets_an_invocation_when_its_backoff_ends(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    await service.create(retry_policy=RetryPolicy(backoff_ms=80))
    [claimed] = await service.claim()
    await service.complete(claimed, "failed")
    watcher, _ = await start_watcher(runtime)
    try:
        [retried] = await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        assert retried.attempts == 2
    finally:
        await watcher.stop()


async def test_long_poll_timeout_returns_nothing_and_removes_the_poll(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    assert await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 0.01) == ()
    assert len(runtime.claim_polls) == 0


async def test_waiting_claims_return_when_the_server_stops(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    claim = asyncio.create_task(
        wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 60)
    )
    await wait_for_claim(runtime)
    runtime.claim_polls.close()
    assert await claim == ()
    assert await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 60) == ()


def test_deliveries_to_a_removed_poll_are_returned_as_undelivered() -> None:
    async def deliver_twice() -> list[Invocation]:
        polls = ClaimPolls()
        undelivered: list[Invocation] = []
        polls.on_undelivered = undelivered.extend
        poll = new_claim_poll(CLAIM)
        polls.add(poll)
        polls.deliver(poll, (invocation_row("a"),))
        polls.remove(poll)
        polls.deliver(poll, (invocation_row("a"),))
        return undelivered

    assert len(asyncio.run(deliver_twice())) == 2
