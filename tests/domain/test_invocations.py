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
from tests.support.asking import ZONE, caller
from tests.support.calling import Calling, calling
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, keel_on


@pytest.fixture
async def service(keel: Keel) -> Calling:
    return await calling(keel)


def backdate(service: Calling, row: Invocation, column: str) -> None:
    service.keel.side.run(f"update agent_invocations set {column} = 1 where id = ?", row.id)


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await work
    return refusal.value.code


async def test_of_many_callers_with_one_key_one_makes_it_and_the_others_are_shown_it(service: Calling) -> None:
    done = await asyncio.gather(*(service.enqueue("same") for _ in range(50)))
    assert sum(each.created for each in done) == 1
    assert len({each.invocation.id for each in done}) == 1


async def test_what_is_called_is_claimed_in_order_completed_and_kept(service: Calling) -> None:
    made = [await service.call() for _ in range(5)]
    taken = await service.claim(3)
    assert [row.id for row in taken] == [row.id for row in made[:3]]
    await service.complete(taken[0])
    kept = await service.now(taken[0])
    assert (kept.status, kept.result_json, kept.params_json) == (State.SUCCEEDED, '"r"', '{"a":1}')
    assert await service.events(taken[0]) == ["created", "started", "succeeded"]


async def test_of_many_who_claim_at_once_each_gets_others_and_together_all(service: Calling) -> None:
    await asyncio.gather(*(service.call() for _ in range(60)))
    taken = await asyncio.gather(*(service.claim(7) for _ in range(12)))
    ids = [row.id for given in taken for row in given]
    assert len(ids) == len(set(ids)) == 60


async def test_two_processes_never_give_one_attempt_to_two(service: Calling, engine_url: str) -> None:
    if not engine_url.startswith("postgresql"):
        pytest.skip("SQLite has one process")
    await asyncio.gather(*(service.call() for _ in range(40)))
    async with keel_on(engine_url) as other:
        elsewhere = Calling(other, service.service_id)
        taken = await asyncio.gather(*(one.claim(3) for one in (service, elsewhere) * 10))
    ids = [row.id for given in taken for row in given]
    assert len(ids) == len(set(ids)) == 40


async def test_a_call_is_handed_to_whoever_waits_in_the_commit_that_makes_it(service: Calling) -> None:
    waiter = poll_for_claim(service.asking())
    assert await service.submit_claim(service.asking(waiter=waiter)) == ()
    assert len(service.keel.waiters) == 1
    head = service.keel.side.one("select pos from log_head")
    done = await service.enqueue()
    [given] = waiter.take_delivered()
    assert given.id == done.invocation.id
    assert service.keel.side.one("select pos from log_head") == int(str(head)) + 2
    [created, started] = service.keel.side.run("select at from events where subject = ?", given.id)
    assert created == started, "one transaction, one instant"
    assert len(service.keel.waiters) == 0


async def test_what_was_handed_to_somebody_who_is_gone_goes_back_and_costs_no_attempt(service: Calling) -> None:
    returned: list[Invocation] = []
    service.keel.waiters.on_undelivered = returned.extend
    waiter = poll_for_claim(service.asking())
    await service.submit_claim(service.asking(waiter=waiter))
    await service.call()
    service.keel.waiters.remove(waiter)
    [row] = returned
    back = await service.release(row)
    assert (back.status, back.attempts) == (State.PENDING, 0)


async def test_a_waiter_whose_session_has_ended_is_given_nothing(keel: Keel) -> None:
    session = await keel.spawn()
    service = await calling(keel)
    waiting = Calling(keel, service.service_id)
    waiting.caller = caller("app", session_id=session.id)
    waiter = poll_for_claim(waiting.asking())
    assert await waiting.submit_claim(waiting.asking(waiter=waiter)) == ()
    await keel.end(session)
    row = await service.call()
    assert waiter.delivered == (), "it is told to ask again"
    assert waiter.take_delivered() == ()
    assert (await service.now(row)).status is State.PENDING


async def test_a_claim_repeated_with_its_id_gives_the_same_leases(service: Calling) -> None:
    await service.call()
    [first] = await service.claim(claim_id="c")
    [again] = await service.claim(claim_id="c")
    assert (again.id, again.attempts, again.attempt_token) == (first.id, 1, first.attempt_token)
    assert (await service.now(first)).lease_expires_at == again.lease_expires_at != first.lease_expires_at
    assert await service.claim(claim_id="d") == ()


async def test_a_completion_of_an_older_attempt_is_refused_and_changes_nothing(service: Calling) -> None:
    await service.call()
    [first] = await service.claim()
    backdate(service, first, "lease_expires_at")
    await service.overdue(first)
    [second] = await service.claim()
    assert second.attempts == 2
    assert await refused(service.complete(first)) == "stale_attempt"
    assert await refused(service.beat(first)) == "stale_attempt"
    assert (await service.now(second)).status is State.RUNNING
    assert (await service.complete(second)).status is State.SUCCEEDED


async def test_attempts_exhausted_by_failures_end_as_dead(service: Calling) -> None:
    row = await service.call()
    for _ in range(3):
        [taken] = await service.claim()
        row = await service.complete(taken, "failed")
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert await service.claim() == ()
    assert await service.events(row) == ["created"] + ["started", "retried"] * 2 + ["started", "dead"]


async def test_backoff_is_kept_over_a_restart(keel: Keel, engine_url: str) -> None:
    service = await calling(keel)
    await service.call(retry_policy=RetryPolicy(backoff_ms=200_000))
    [taken] = await service.claim()
    row = await service.complete(taken, "failed")
    assert row.available_at > row.updated_at + 199_000
    async with keel_on(engine_url) as again:
        later = Calling(again, service.service_id)
        assert await later.claim() == ()
        keel.side.run("update agent_invocations set available_at = 1 where id = ?", row.id)
        assert [each.attempts for each in await later.claim()] == [2]


@pytest.mark.parametrize(("column", "last"), [("deadline_at", State.TIMED_OUT), ("lease_expires_at", State.DEAD)])
async def test_the_sweep_ends_attempts_whose_time_has_passed(service: Calling, column: str, last: State) -> None:
    row = await service.call()
    sweeper = service.keel.invocation_sweeper()
    for _ in range(3):
        [taken] = await service.claim()
        backdate(service, taken, column)
        assert await sweeper.run_now(DEADLINE) == 1
    assert (await service.now(row)).status is last
    assert await sweeper.run_now(DEADLINE) == 0


@pytest.mark.parametrize("said", ["succeeded", "failed", "canceled"])
async def test_a_canceled_running_invocation_ends_as_canceled(
    service: Calling, said: Literal["succeeded", "failed", "canceled"]
) -> None:
    await service.call()
    [taken] = await service.claim()
    asked = await service.cancel(taken)
    assert (asked.status, asked.cancel_reason) == (State.RUNNING, "enough")
    assert (await service.beat(taken)).cancel_requested_at is not None
    done = await service.complete(taken, said)
    assert (done.status, done.result_json) == (State.CANCELED, '"r"'), "what it reported is kept"
    assert await service.complete(taken, said) == done, "and answered again"
    assert await service.events(taken) == ["created", "started", "cancel_requested", "canceled"]


@pytest.mark.parametrize("named", ["source_session_id", "target_session_id"])
async def test_the_end_of_a_session_cancels_what_waits_and_runs_for_it_in_the_same_transaction(
    keel: Keel, named: str
) -> None:
    service = await calling(keel)
    session, other = await keel.spawn(), await keel.spawn()
    waiting = await service.call(**{named: session.id})
    running = await service.call(**{named: session.id})
    kept = await service.call(**{named: other.id})
    for _ in range(2):
        await service.claim()
    await service.release(await service.now(waiting))
    await keel.end(session)
    for row in (waiting, running):
        after = await service.now(row)
        assert (after.status, after.cancel_reason) == (State.CANCELED, "session_ended")
    assert (await service.now(kept)).status is State.PENDING
    assert await refused(service.complete(await service.now(running))) == "invocation_not_completable"
    log = await keel.log()
    at = {event.subject: event.at for event in log if event.type in ("session.terminate", "invocation.canceled")}
    assert at[session.id] == at[waiting.id] == at[running.id]


async def test_from_the_stamp_of_a_cascade_on_nothing_of_it_begins(engine_url: str) -> None:
    async with keel_on(engine_url, Rigging(chunk=1)) as keel:
        await keel.zone()
        service = await calling(keel)
        root = await keel.spawn()
        child = await keel.spawn(parent_id=root.id)
        row = await service.call(source_session_id=child.id)
        ended = await keel.finisher.submit_terminate(Terminate(root.zone_id, root.id, "enough"))
        assert ended.cascade_id is not None
        assert await refused(service.call(source_session_id=child.id)) == "agent_session_not_found"
        assert await service.claim() == ()
        assert (await service.now(row)).status is State.CANCELED


async def test_while_a_session_sleeps_its_calls_wait_and_when_all_are_awake_they_go_on(keel: Keel) -> None:
    service = await calling(keel)
    source, target = await keel.spawn(), await keel.spawn()
    row = await service.call(source_session_id=source.id, target_session_id=target.id)
    await keel.suspend(source)
    await keel.suspend(target)
    assert await service.claim() == ()
    assert await refused(service.call(source_session_id=source.id)) == "agent_suspended"
    await keel.resume(source)
    assert await service.claim() == (), "the other still sleeps"
    await keel.resume(target)
    assert [each.id for each in await service.claim()] == [row.id]


async def test_what_runs_for_a_session_that_falls_asleep_may_be_finished(keel: Keel) -> None:
    service = await calling(keel)
    session = await keel.spawn()
    await service.call(source_session_id=session.id)
    [taken] = await service.claim()
    await keel.suspend(session)
    assert (await service.beat(taken)).status is State.RUNNING
    assert (await service.complete(taken)).status is State.SUCCEEDED


async def test_a_retry_for_a_sleeping_session_waits_until_it_wakes(keel: Keel) -> None:
    service = await calling(keel)
    session = await keel.spawn()
    await service.call(source_session_id=session.id)
    [taken] = await service.claim()
    await keel.suspend(session)
    await service.complete(taken, "failed")
    assert await service.claim() == ()
    await keel.resume(session)
    assert [each.id for each in await service.claim()] == [taken.id]


async def test_what_waits_for_a_service_is_canceled_when_the_service_goes(keel: Keel) -> None:
    session = await keel.spawn()
    service = await calling(keel, session_id=session.id)
    row = await service.call()
    await keel.end(session)
    after = await service.now(row)
    assert (after.status, after.cancel_reason) == (State.CANCELED, "service_unregistered")
    assert await refused(service.call()) == "agent_service_not_found"


async def test_what_belongs_to_a_session_that_is_gone_is_found_and_canceled(keel: Keel) -> None:
    service = await calling(keel)
    session = await keel.spawn()
    row = await service.call(source_session_id=session.id)
    keel.side.expire(session)
    assert await keel.invocation_sweeper().run_now(ORPHAN) == 1
    assert (await service.now(row)).status is State.CANCELED


async def test_what_ended_long_ago_is_forgotten_and_nothing_else(service: Calling) -> None:
    old, young, waiting = [await service.call() for _ in range(3)]
    for row in await service.claim(2):
        await service.complete(row)
    settings = InvocationSettings(invocation_retention_days=1)
    sweeper = service.keel.invocation_sweeper(settings)
    assert await sweeper.run_now(RETENTION) == 0
    aged = f"00000000{old.id[8:]}"
    service.keel.side.run(
        "update agent_invocations set id = ?, completed_at = ? where id = ?", aged, old.created_at - 2 * DAY, old.id
    )
    assert await sweeper.run_now(RETENTION) == 1
    left = {str(name) for (name,) in service.keel.side.run("select id from agent_invocations")}
    assert left == {young.id, waiting.id}


# -- waiting


async def lookout(keel: Keel) -> tuple[Watcher[Claim, tuple[str, str], Invocation], Wakeups]:
    wakes = Wakeups()
    watching = Watcher(wakes, keel.waiters, ReadyPollWaker(keel.engine, keel.waiters, 30.0), 30.0)
    watching.start()
    return watching, wakes


async def somebody_waits(keel: Keel) -> None:
    async def waits() -> bool:
        return len(keel.waiters) == 1

    await eventually(waits, "somebody waits")


async def test_whoever_waits_is_woken_by_a_commit_elsewhere(engine_url: str, keel: Keel) -> None:
    service = await calling(keel)
    watching, wakes = await lookout(keel)
    try:
        claiming = asyncio.create_task(wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 20))
        await somebody_waits(keel)
        # As another process would: past this one's waiters.
        elsewhere, keel.waiters._by_key = keel.waiters._by_key, {}
        row = await service.call()
        keel.waiters._by_key = elsewhere
        wakes.notify()
        [given] = await claiming
        assert given.id == row.id
    finally:
        await watching.stop()


async def test_whoever_waits_for_a_service_that_goes_is_told_so(keel: Keel) -> None:
    session = await keel.spawn()
    service = await calling(keel, session_id=session.id)
    watching, wakes = await lookout(keel)
    try:
        claiming = asyncio.create_task(wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 20))
        await somebody_waits(keel)
        await keel.end(session)
        wakes.notify()
        assert await refused(claiming) == "agent_service_not_found"
    finally:
        await watching.stop()


async def test_two_who_wait_with_one_claim_are_given_the_same(service: Calling) -> None:
    waiters = [poll_for_claim(service.asking(claim_id="c")) for _ in range(2)]
    for waiter in waiters:
        await service.submit_claim(msgspec.structs.replace(waiter.claim, waiter=waiter))
    first = await service.call()
    elsewhere, service.keel.waiters._by_key = service.keel.waiters._by_key, {}
    assert [row.id for row in waiters[0].take_delivered()] == [first.id]
    await service.call()
    service.keel.waiters._by_key = elsewhere
    await service.call()
    assert [row.id for row in waiters[1].take_delivered()] == [first.id]


async def test_what_one_service_can_be_given_is_not_loaded_for_another(
    service: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await calling(service.keel)
    for each in [service, other] * 30:
        await each.call()
    exchange = BatchRunner(30_000, ClaimPolls())
    seen: list[InvocationBatchInput] = []

    def board(known: InvocationBatchInput) -> BatchDecider:
        seen.append(known)
        return BatchDecider(known)

    monkeypatch.setattr("quarterdeck.domain.invocations.operations.batch.BatchDecider", board)
    asks: list[InvocationCommand] = [service.asking(1), other.asking(20)]
    await service.keel.engine.transact(lambda tx: exchange.run(tx, asks), zones=[ZONE])
    [known] = seen
    loaded = Counter(row.service_id for row in known.due)
    assert loaded[service.service_id] <= 4
    assert loaded[other.service_id] >= 20


async def test_whoever_waits_gets_what_becomes_due_by_its_backoff(keel: Keel) -> None:
    service = await calling(keel)
    await service.call(retry_policy=RetryPolicy(backoff_ms=80))
    [taken] = await service.claim()
    await service.complete(taken, "failed")
    watching, _ = await lookout(keel)
    try:
        [again] = await wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 20)
        assert again.attempts == 2
    finally:
        await watching.stop()


async def test_a_wait_that_is_over_gives_nothing_and_leaves_nobody_behind(keel: Keel) -> None:
    service = await calling(keel)
    assert await wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 0.01) == ()
    assert len(keel.waiters) == 0


async def test_when_the_server_stops_whoever_waits_is_let_go(keel: Keel) -> None:
    service = await calling(keel)
    claiming = asyncio.create_task(wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 60))
    await somebody_waits(keel)
    keel.waiters.close()
    assert await claiming == ()
    assert await wait_for_invocations(service.asking(), service.submit_claim, keel.waiters, 60) == ()


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
