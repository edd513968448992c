"""Sessions and services with more calls than one transaction settles: they end, sleep, wake and go all the same. Of
what is left nothing begins that may not; the sweep finishes the rest."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.invocations.model import Invocation, InvocationCommand, Release, State
from quarterdeck.domain.invocations.operations.on_session_ended import INVOCATIONS_PER_TRANSACTION
from quarterdeck.domain.invocations.rules import states
from quarterdeck.domain.invocations.sweeps import ORPHAN, SETTLE
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.model import Register, RegisteredService, Unregister
from tests.support.asking import ZONE, admin
from tests.support.calling import Calling, calling
from tests.support.keel import Keel

MANY = 3 * INVOCATIONS_PER_TRANSACTION + 10
LEFT = "status in ('pending', 'running')"


@pytest.fixture
async def service(keel: Keel) -> Calling:
    return await calling(keel)


def multiply(keel: Keel, row: Invocation, number: int = MANY) -> None:
    """As many more of the same as nobody would call one by one."""
    named = {"id": "t.id || '-' || n.i", "idempotency_key": "t.id || n.i", "available_at": "t.available_at - n.i"}
    columns = Invocation.__struct_fields__
    values = ", ".join(named.get(name, f"t.{name}") for name in columns)
    keel.side.run(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) "
        f"insert into agent_invocations ({', '.join(columns)}) select {values} from agent_invocations t, n "
        "where t.id = ?",
        number,
        row.id,
    )


def left(keel: Keel) -> int:
    return keel.side.count("agent_invocations", LEFT)


def told(keel: Keel, kind: str) -> int:
    return keel.side.count("events", "type = ?", f"invocation.{kind}")


async def test_a_session_with_more_calls_than_one_transaction_settles_ends_and_nothing_of_it_goes_on(
    keel: Keel, service: Calling
) -> None:
    session, other = await keel.spawn(), await keel.spawn()
    await service.call(source_session_id=session.id)
    [running] = await service.claim()
    for _ in range(2):
        multiply(keel, await service.call(source_session_id=session.id), MANY // 2)
    multiply(keel, running, INVOCATIONS_PER_TRANSACTION)
    good = await service.call(source_session_id=other.id)
    await keel.end(session)
    assert left(keel) > INVOCATIONS_PER_TRANSACTION
    [row] = keel.side.run(f"select id from agent_invocations where status = 'running' and {LEFT} limit 1")
    with pytest.raises(Problem) as refusal:
        await service.complete(msgspec.structs.replace(running, id=str(row[0])))
    assert refusal.value.code == "invocation_not_completable"
    begun = told(keel, "started")
    found = [given.id for _ in range(5) for given in await service.claim()]
    assert set(found) <= {good.id}
    sweeper = keel.invocation_sweeper()
    assert await sweeper.run_now(SETTLE) == 1
    assert left(keel) == 1
    assert told(keel, "started") == begun + len(found)
    assert told(keel, "canceled") == keel.side.count("agent_invocations", "status = 'canceled'")
    assert keel.side.count("invocation_backlogs") == 0
    assert await sweeper.run_now(SETTLE) == 0


async def test_what_is_canceled_with_many_is_as_what_is_canceled_alone(keel: Keel, service: Calling) -> None:
    session = await keel.spawn()
    for _ in range(2):
        await service.call(target_session_id=session.id)
    [running] = await service.claim()
    await service.cancel(running)
    before = await service.now(running)
    await keel.end(session)
    after = await service.now(running)
    assert after == states.cancel(before, "session_ended", after.updated_at)
    assert (after.cancel_reason, told(keel, "canceled")) == ("enough", 2)


async def test_a_session_with_many_calls_falls_asleep_and_wakes_and_meanwhile_none_is_handed_out(
    keel: Keel, service: Calling
) -> None:
    session, other = await keel.spawn(), await keel.spawn()
    multiply(keel, await service.call(source_session_id=session.id))
    good = await service.call(source_session_id=other.id)
    await keel.suspend(session)
    assert keel.side.count("agent_invocations", "parked = 0") > INVOCATIONS_PER_TRANSACTION
    assert {given.id for _ in range(3) for given in await service.claim(100)} <= {good.id}
    assert await keel.invocation_sweeper().run_now(SETTLE) == 1
    assert keel.side.count("agent_invocations", "parked = 0") == 1
    assert [given.id for given in await service.claim()] == [good.id]
    assert told(keel, "started") == 1
    await keel.resume(session)
    assert keel.side.count("agent_invocations", "parked = 1") > INVOCATIONS_PER_TRANSACTION
    assert len(await service.claim(100)) == 100
    assert await keel.invocation_sweeper().run_now(SETTLE) == 1
    assert keel.side.count("agent_invocations", "parked = 1") == 0


async def test_a_service_that_comes_back_is_not_given_what_was_asked_of_it_before(keel: Keel) -> None:
    service = await registered(keel)
    old = await service.call()
    multiply(keel, old)
    await service.call()
    multiply(keel, (await service.claim(100))[-1], 5)
    await unregistered(keel, service)
    assert left(keel) > INVOCATIONS_PER_TRANSACTION
    again = await registered(keel)
    assert again.service_id == service.service_id
    keel.side.run("update agent_invocations set created_at = created_at - 1, available_at = 1")
    good = await again.call()
    given = [row.id for _ in range(20) for row in await again.claim(100)]
    assert set(given) <= {good.id}
    assert await keel.invocation_sweeper().run_now(SETTLE) == 1
    assert {row.id for row in await again.claim(100)} | {*given} == {good.id}
    assert left(keel) == 1
    assert keel.side.count("agent_invocations", "status = 'canceled' and cancel_reason <> 'service_unregistered'") == 0


async def test_a_zone_whose_service_has_many_calls_ends(keel: Keel) -> None:
    await keel.zone("other")
    service = await calling(keel, "other")
    multiply(keel, await service.call())
    await keel.stop("other", ends=True)
    assert left(keel) > INVOCATIONS_PER_TRANSACTION
    assert await keel.invocation_sweeper().run_now(SETTLE) == 1
    assert left(keel) == 0


async def test_the_orphan_sweep_walks_on_from_where_it_was_and_finds_both_sources_and_targets(
    keel: Keel, service: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.domain.invocations.sweeps.SLICE", 2)
    lost = [await keel.spawn() for _ in range(4)]
    kept = await keel.spawn()
    for session in (*lost, kept):
        await service.call(source_session_id=session.id)
        await service.call(target_session_id=session.id)
    keel.side.expire(*lost)
    assert await keel.invocation_sweeper().run_now(ORPHAN) == 8
    assert left(keel) == 2


async def test_a_lease_that_did_not_arrive_is_not_taken_from_the_claim_that_was_given_it_again(
    service: Calling,
) -> None:
    await service.call()
    [lost] = await service.claim(claim_id="c")
    [again] = await service.claim(claim_id="c")
    ask: InvocationCommand = Release(
        zone_id=ZONE, id=lost.id, attempt_token=lost.attempt_token or "", lease_expires_at=lost.lease_expires_at
    )
    await service.keel.invocations.submit(ask)
    assert (await service.now(lost)).status is State.RUNNING
    assert (await service.complete(again)).status is State.SUCCEEDED


# -- a service that goes and comes back

ENDPOINT = "http://worker.example/again"


async def registered(keel: Keel) -> Calling:
    registrar = services.Registrar(private_allowed=True)
    ask = Register(
        id=new_id(), zone_id=ZONE, caller=admin(), endpoint_url=ENDPOINT, application_id="app", session_id=None
    )
    [done] = await keel.engine.transact(lambda tx: registrar.register(tx, [ask]), zones=[ZONE])
    assert isinstance(done, RegisteredService)
    return Calling(keel, done.service.id)


async def unregistered(keel: Keel, service: Calling) -> None:
    ask = Unregister(zone_id=ZONE, caller=admin(), service_id=service.service_id)
    await keel.engine.transact(lambda tx: services.unregister(tx, [ask]), zones=[ZONE])
