"""Invocations on both engines: once per key, one holder per attempt, and nothing outlives its session."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Literal

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import (
    Claim,
    Invocation,
    InvocationCommand,
    InvocationSettings,
    RetryPolicy,
    State,
)
from quarterdeck.domain.invocations.operations import BatchRunner
from quarterdeck.domain.invocations.operations.long_poll import (
    ClaimPolls,
    ReadyPollWaker,
    poll_for_claim,
    wait_for_invocations,
)
from quarterdeck.domain.invocations.rules import BatchDecider, InvocationBatchInput
from quarterdeck.domain.invocations.sweeps import DEADLINE, ORPHAN, RETENTION
from quarterdeck.domain.sessions.model import Terminate
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.wakeups import Wakeups
from tests.support.builders import ZONE, caller
from tests.support.eventually import eventually
from tests.support.invocations import InvocationHarness, register_service
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


def backdate(service: InvocationHarness, row: Invocation, column: str) -> None:
    service.runtime.database.execute(f"update agent_invocations set {column} = 1 where id = ?", row.id)


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await work
    return refusal.value.code


async def test_of_many_callers_with_one_key_one_makes_it_and_the_others_are_shown_it(
    service: InvocationHarness,
) -> None:
    done = await asyncio.gather(*(service.enqueue("same") for _ in range(50)))
    assert sum(each.created for each in done) == 1
    assert len({each.invocation.id for each in done}) == 1


async def test_what_is_called_is_claimed_in_order_completed_and_kept(service: InvocationHarness) -> None:
    made = [await service.create() for _ in range(5)]
    taken = await service.claim(3)
    assert [row.id for row in taken] == [row.id for row in made[:3]]
    await service.complete(taken[0])
    kept = await service.read(taken[0])
    assert (kept.status, kept.result_json, kept.params_json) == (State.SUCCEEDED, '"r"', '{"a":1}')
    assert await service.event_types(taken[0]) == ["created", "started", "succeeded"]


async def test_of_many_who_claim_at_once_each_gets_others_and_together_all(service: InvocationHarness) -> None:
    await asyncio.gather(*(service.create() for _ in range(60)))
    taken = await asyncio.gather(*(service.claim(7) for _ in range(12)))
    ids = [row.id for given in taken for row in given]
    assert len(ids) == len(set(ids)) == 60


async def test_two_processes_never_give_one_attempt_to_two(service: InvocationHarness, engine_url: str) -> None:
    if not engine_url.startswith("postgresql"):
        pytest.skip("SQLite has one process")
    await asyncio.gather(*(service.create() for _ in range(40)))
    async with open_runtime(engine_url) as other:
        elsewhere = InvocationHarness(other, service.service_id)
        taken = await asyncio.gather(*(one.claim(3) for one in (service, elsewhere) * 10))
    ids = [row.id for given in taken for row in given]
    assert len(ids) == len(set(ids)) == 40


async def test_a_call_is_handed_to_whoever_waits_in_the_commit_that_makes_it(service: InvocationHarness) -> None:
    waiter = poll_for_claim(service.claim_command())
    assert await service.submit_claim(service.claim_command(poll=waiter)) == ()
    assert len(service.runtime.claim_polls) == 1
    head = service.runtime.database.scalar("select pos from log_head")
    done = await service.enqueue()
    [given] = waiter.take_delivered()
    assert given.id == done.invocation.id
    assert service.runtime.database.scalar("select pos from log_head") == int(str(head)) + 2
    [created, started] = service.runtime.database.execute("select at from events where subject = ?", given.id)
    assert created == started, "one transaction, one instant"
    assert len(service.runtime.claim_polls) == 0


async def test_what_was_handed_to_somebody_who_is_gone_goes_back_and_costs_no_attempt(
    service: InvocationHarness,
) -> None:
    returned: list[Invocation] = []
    service.runtime.claim_polls.on_undelivered = returned.extend
    waiter = poll_for_claim(service.claim_command())
    await service.submit_claim(service.claim_command(poll=waiter))
    await service.create()
    service.runtime.claim_polls.remove(waiter)
    [row] = returned
    back = await service.release(row)
    assert (back.status, back.attempts) == (State.PENDING, 0)


async def test_a_waiter_whose_session_has_ended_is_given_nothing(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime)
    waiting = InvocationHarness(runtime, service.service_id)
    waiting.caller = caller("app", session_id=session.id)
    waiter = poll_for_claim(waiting.claim_command())
    assert await waiting.submit_claim(waiting.claim_command(poll=waiter)) == ()
    await runtime.terminate(session)
    row = await service.create()
    assert waiter.delivered == (), "it is told to ask again"
    assert waiter.take_delivered() == ()
    assert (await service.read(row)).status is State.PENDING


async def test_a_claim_repeated_with_its_id_gives_the_same_leases(service: InvocationHarness) -> None:
    await service.create()
    [first] = await service.claim(claim_id="c")
    [again] = await service.claim(claim_id="c")
    assert (again.id, again.attempts, again.attempt_token) == (first.id, 1, first.attempt_token)
    assert (await service.read(first)).lease_expires_at == again.lease_expires_at != first.lease_expires_at
    assert await service.claim(claim_id="d") == ()


async def test_a_completion_of_an_older_attempt_is_refused_and_changes_nothing(service: InvocationHarness) -> None:
    await service.create()
    [first] = await service.claim()
    backdate(service, first, "lease_expires_at")
    await service.check_overdue(first)
    [second] = await service.claim()
    assert second.attempts == 2
    assert await refused(service.complete(first)) == "stale_attempt"
    assert await refused(service.heartbeat(first)) == "stale_attempt"
    assert (await service.read(second)).status is State.RUNNING
    assert (await service.complete(second)).status is State.SUCCEEDED


async def test_attempts_exhausted_by_failures_end_as_dead(service: InvocationHarness) -> None:
    row = await service.create()
    for _ in range(3):
        [taken] = await service.claim()
        row = await service.complete(taken, "failed")
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert await service.claim() == ()
    assert await service.event_types(row) == ["created"] + ["started", "retried"] * 2 + ["started", "dead"]


async def test_backoff_is_kept_over_a_restart(runtime: RuntimeHarness, engine_url: str) -> None:
    service = await register_service(runtime)
    await service.create(retry_policy=RetryPolicy(backoff_ms=200_000))
    [taken] = await service.claim()
    row = await service.complete(taken, "failed")
    assert row.available_at > row.updated_at + 199_000
    async with open_runtime(engine_url) as again:
        later = InvocationHarness(again, service.service_id)
        assert await later.claim() == ()
        runtime.database.execute("update agent_invocations set available_at = 1 where id = ?", row.id)
        assert [each.attempts for each in await later.claim()] == [2]


@pytest.mark.parametrize(("column", "last"), [("deadline_at", State.TIMED_OUT), ("lease_expires_at", State.DEAD)])
async def test_the_sweep_ends_attempts_whose_time_has_passed(
    service: InvocationHarness, column: str, last: State
) -> None:
    row = await service.create()
    sweeper = service.runtime.invocation_sweep_runner()
    for _ in range(3):
        [taken] = await service.claim()
        backdate(service, taken, column)
        assert await sweeper.run_now(DEADLINE) == 1
    assert (await service.read(row)).status is last
    assert await sweeper.run_now(DEADLINE) == 0


@pytest.mark.parametrize("said", ["succeeded", "failed", "canceled"])
async def test_a_canceled_running_invocation_ends_as_canceled(
    service: InvocationHarness, said: Literal["succeeded", "failed", "canceled"]
) -> None:
    await service.create()
    [taken] = await service.claim()
    asked = await service.cancel(taken)
    assert (asked.status, asked.cancel_reason) == (State.RUNNING, "enough")
    assert (await service.heartbeat(taken)).cancel_requested_at is not None
    done = await service.complete(taken, said)
    assert (done.status, done.result_json) == (State.CANCELED, '"r"'), "what it reported is kept"
    assert await service.complete(taken, said) == done, "and answered again"
    assert await service.event_types(taken) == ["created", "started", "cancel_requested", "canceled"]


@pytest.mark.parametrize("named", ["source_session_id", "target_session_id"])
async def test_the_end_of_a_session_cancels_what_waits_and_runs_for_it_in_the_same_transaction(
    runtime: RuntimeHarness, named: str
) -> None:
    service = await register_service(runtime)
    session, other = await runtime.spawn(), await runtime.spawn()
    waiting = await service.create(**{named: session.id})
    running = await service.create(**{named: session.id})
    kept = await service.create(**{named: other.id})
    for _ in range(2):
        await service.claim()
    await service.release(await service.read(waiting))
    await runtime.terminate(session)
    for row in (waiting, running):
        after = await service.read(row)
        assert (after.status, after.cancel_reason) == (State.CANCELED, "session_ended")
    assert (await service.read(kept)).status is State.PENDING
    assert await refused(service.complete(await service.read(running))) == "invocation_not_completable"
    log = await runtime.read_log()
    at = {event.subject: event.at for event in log if event.type in ("session.terminate", "invocation.canceled")}
    assert at[session.id] == at[waiting.id] == at[running.id]


async def test_from_the_stamp_of_a_cascade_on_nothing_of_it_begins(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as keel:
        await keel.put_zone()
        service = await register_service(keel)
        root = await keel.spawn()
        child = await keel.spawn(parent_id=root.id)
        row = await service.create(source_session_id=child.id)
        ended = await keel.cascade_runner.submit_terminate(Terminate(root.zone_id, root.id, "enough"))
        assert ended.cascade_id is not None
        assert await refused(service.create(source_session_id=child.id)) == "agent_session_not_found"
        assert await service.claim() == ()
        assert (await service.read(row)).status is State.CANCELED


async def test_while_a_session_sleeps_its_calls_wait_and_when_all_are_awake_they_go_on(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    source, target = await runtime.spawn(), await runtime.spawn()
    row = await service.create(source_session_id=source.id, target_session_id=target.id)
    await runtime.suspend(source)
    await runtime.suspend(target)
    assert await service.claim() == ()
    assert await refused(service.create(source_session_id=source.id)) == "agent_suspended"
    await runtime.resume(source)
    assert await service.claim() == (), "the other still sleeps"
    await runtime.resume(target)
    assert [each.id for each in await service.claim()] == [row.id]


async def test_what_runs_for_a_session_that_falls_asleep_may_be_finished(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    await service.create(source_session_id=session.id)
    [taken] = await service.claim()
    await runtime.suspend(session)
    assert (await service.heartbeat(taken)).status is State.RUNNING
    assert (await service.complete(taken)).status is State.SUCCEEDED


async def test_a_retry_for_a_sleeping_session_waits_until_it_wakes(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    await service.create(source_session_id=session.id)
    [taken] = await service.claim()
    await runtime.suspend(session)
    await service.complete(taken, "failed")
    assert await service.claim() == ()
    await runtime.resume(session)
    assert [each.id for each in await service.claim()] == [taken.id]


async def test_what_waits_for_a_service_is_canceled_when_the_service_goes(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime, session_id=session.id)
    row = await service.create()
    await runtime.terminate(session)
    after = await service.read(row)
    assert (after.status, after.cancel_reason) == (State.CANCELED, "service_unregistered")
    assert await refused(service.create()) == "agent_service_not_found"


async def test_what_belongs_to_a_session_that_is_gone_is_found_and_canceled(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    session = await runtime.spawn()
    row = await service.create(source_session_id=session.id)
    runtime.database.expire_sessions(session)
    assert await runtime.invocation_sweep_runner().run_now(ORPHAN) == 1
    assert (await service.read(row)).status is State.CANCELED


async def test_what_ended_long_ago_is_forgotten_and_nothing_else(service: InvocationHarness) -> None:
    old, young, waiting = [await service.create() for _ in range(3)]
    for row in await service.claim(2):
        await service.complete(row)
    settings = InvocationSettings(invocation_retention_days=1)
    sweeper = service.runtime.invocation_sweep_runner(settings)
    assert await sweeper.run_now(RETENTION) == 0
    aged = f"00000000{old.id[8:]}"
    service.runtime.database.execute(
        "update agent_invocations set id = ?, completed_at = ? where id = ?", aged, old.created_at - 2 * DAY, old.id
    )
    assert await sweeper.run_now(RETENTION) == 1
    left = {str(name) for (name,) in service.runtime.database.execute("select id from agent_invocations")}
    assert left == {young.id, waiting.id}


# -- waiting


async def lookout(keel: RuntimeHarness) -> tuple[Watcher[Claim, tuple[str, str], Invocation], Wakeups]:
    wakes = Wakeups()
    watching = Watcher(wakes, keel.claim_polls, ReadyPollWaker(keel.engine, keel.claim_polls, 30.0), 30.0)
    watching.start()
    return watching, wakes


async def somebody_waits(keel: RuntimeHarness) -> None:
    async def waits() -> bool:
        return len(keel.claim_polls) == 1

    await eventually(waits, "somebody waits")


async def test_whoever_waits_is_woken_by_a_commit_elsewhere(engine_url: str, runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    watching, wakes = await lookout(runtime)
    try:
        claiming = asyncio.create_task(
            wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        )
        await somebody_waits(runtime)
        # As another process would: past this one's waiters.
        elsewhere, runtime.claim_polls._by_key = runtime.claim_polls._by_key, {}
        row = await service.create()
        runtime.claim_polls._by_key = elsewhere
        wakes.notify()
        [given] = await claiming
        assert given.id == row.id
    finally:
        await watching.stop()


async def test_whoever_waits_for_a_service_that_goes_is_told_so(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    service = await register_service(runtime, session_id=session.id)
    watching, wakes = await lookout(runtime)
    try:
        claiming = asyncio.create_task(
            wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        )
        await somebody_waits(runtime)
        await runtime.terminate(session)
        wakes.notify()
        assert await refused(claiming) == "agent_service_not_found"
    finally:
        await watching.stop()


async def test_two_who_wait_with_one_claim_are_given_the_same(service: InvocationHarness) -> None:
    waiters = [poll_for_claim(service.claim_command(claim_id="c")) for _ in range(2)]
    for waiter in waiters:
        await service.submit_claim(msgspec.structs.replace(waiter.claim, waiter=waiter))
    first = await service.create()
    elsewhere, service.runtime.claim_polls._by_key = service.runtime.claim_polls._by_key, {}
    assert [row.id for row in waiters[0].take_delivered()] == [first.id]
    await service.create()
    service.runtime.claim_polls._by_key = elsewhere
    await service.create()
    assert [row.id for row in waiters[1].take_delivered()] == [first.id]


async def test_what_one_service_can_be_given_is_not_loaded_for_another(
    service: InvocationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await register_service(service.runtime)
    for each in [service, other] * 30:
        await each.create()
    exchange = BatchRunner(30_000, ClaimPolls())
    seen: list[InvocationBatchInput] = []

    def board(known: InvocationBatchInput) -> BatchDecider:
        seen.append(known)
        return BatchDecider(known)

    monkeypatch.setattr("quarterdeck.domain.invocations.operations.batch.BatchDecider", board)
    asks: list[InvocationCommand] = [service.claim_command(1), other.claim_command(20)]
    await service.runtime.engine.transact(lambda tx: exchange.run(tx, asks), zones=[ZONE])
    [known] = seen
    loaded = Counter(row.service_id for row in known.due)
    assert loaded[service.service_id] <= 4
    assert loaded[other.service_id] >= 20


async def test_whoever_waits_gets_what_becomes_due_by_its_backoff(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    await service.create(retry_policy=RetryPolicy(backoff_ms=80))
    [taken] = await service.claim()
    await service.complete(taken, "failed")
    watching, _ = await lookout(runtime)
    try:
        [again] = await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 20)
        assert again.attempts == 2
    finally:
        await watching.stop()


async def test_a_wait_that_is_over_gives_nothing_and_leaves_nobody_behind(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    assert await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 0.01) == ()
    assert len(runtime.claim_polls) == 0


async def test_when_the_server_stops_whoever_waits_is_let_go(runtime: RuntimeHarness) -> None:
    service = await register_service(runtime)
    claiming = asyncio.create_task(
        wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 60)
    )
    await somebody_waits(runtime)
    runtime.claim_polls.close()
    assert await claiming == ()
    assert await wait_for_invocations(service.claim_command(), service.submit_claim, runtime.claim_polls, 60) == ()


def test_nothing_is_lost_between_being_handed_and_giving_up() -> None:
    async def go() -> list[Invocation]:
        waiters = ClaimPolls()
        back: list[Invocation] = []
        waiters.on_undelivered = back.extend
        from tests.rules.test_invocations import claim, row

        waiter = poll_for_claim(claim())
        waiters.add(waiter)
        waiters.deliver(waiter, (row(),))
        waiters.remove(waiter)
        waiters.deliver(waiter, (row(),))
        return back

    assert len(asyncio.run(go())) == 2
