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
from tests.support.builders import ZONE, admin
from tests.support.invocations import InvocationHarness, register_service
from tests.support.runtime import RuntimeHarness

MANY = 3 * INVOCATIONS_PER_TRANSACTION + 10
LEFT = "status in ('pending', 'running')"


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


def multiply(keel: RuntimeHarness, row: Invocation, number: int = MANY) -> None:
    """As many more of the same as nobody would call one by one."""
    named = {"id": "t.id || '-' || n.i", "idempotency_key": "t.id || n.i", "available_at": "t.available_at - n.i"}
    columns = Invocation.__struct_fields__
    values = ", ".join(named.get(name, f"t.{name}") for name in columns)
    keel.database.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) "
        f"insert into agent_invocations ({', '.join(columns)}) select {values} from agent_invocations t, n "
        "where t.id = ?",
        number,
        row.id,
    )


def left(keel: RuntimeHarness) -> int:
    return keel.database.count("agent_invocations", LEFT)


def told(keel: RuntimeHarness, kind: str) -> int:
    return keel.database.count("events", "type = ?", f"invocation.{kind}")


async def test_a_session_with_more_calls_than_one_transaction_settles_ends_and_nothing_of_it_goes_on(
    runtime: RuntimeHarness, service: InvocationHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    await service.create(source_session_id=session.id)
    [running] = await service.claim()
    for _ in range(2):
        multiply(runtime, await service.create(source_session_id=session.id), MANY // 2)
    multiply(runtime, running, INVOCATIONS_PER_TRANSACTION)
    good = await service.create(source_session_id=other.id)
    await runtime.terminate(session)
    assert left(runtime) > INVOCATIONS_PER_TRANSACTION
    [row] = runtime.database.execute(f"select id from agent_invocations where status = 'running' and {LEFT} limit 1")
    with pytest.raises(Problem) as refusal:
        await service.complete(msgspec.structs.replace(running, id=str(row[0])))
    assert refusal.value.code == "invocation_not_completable"
    begun = told(runtime, "started")
    found = [given.id for _ in range(5) for given in await service.claim()]
    assert set(found) <= {good.id}
    sweeper = runtime.invocation_sweep_runner()
    assert await sweeper.run_now(SETTLE) == 1
    assert left(runtime) == 1
    assert told(runtime, "started") == begun + len(found)
    assert told(runtime, "canceled") == runtime.database.count("agent_invocations", "status = 'canceled'")
    assert runtime.database.count("invocation_backlogs") == 0
    assert await sweeper.run_now(SETTLE) == 0


async def test_what_is_canceled_with_many_is_as_what_is_canceled_alone(
    runtime: RuntimeHarness, service: InvocationHarness
) -> None:
    session = await runtime.spawn()
    for _ in range(2):
        await service.create(target_session_id=session.id)
    [running] = await service.claim()
    await service.cancel(running)
    before = await service.read(running)
    await runtime.terminate(session)
    after = await service.read(running)
    assert after == states.cancel(before, "session_ended", after.updated_at)
    assert (after.cancel_reason, told(runtime, "canceled")) == ("enough", 2)


async def test_a_session_with_many_calls_falls_asleep_and_wakes_and_meanwhile_none_is_handed_out(
    runtime: RuntimeHarness, service: InvocationHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    multiply(runtime, await service.create(source_session_id=session.id))
    good = await service.create(source_session_id=other.id)
    await runtime.suspend(session)
    assert runtime.database.count("agent_invocations", "parked = 0") > INVOCATIONS_PER_TRANSACTION
    assert {given.id for _ in range(3) for given in await service.claim(100)} <= {good.id}
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert runtime.database.count("agent_invocations", "parked = 0") == 1
    assert [given.id for given in await service.claim()] == [good.id]
    assert told(runtime, "started") == 1
    await runtime.resume(session)
    assert runtime.database.count("agent_invocations", "parked = 1") > INVOCATIONS_PER_TRANSACTION
    assert len(await service.claim(100)) == 100
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert runtime.database.count("agent_invocations", "parked = 1") == 0


async def test_a_service_that_comes_back_is_not_given_what_was_asked_of_it_before(runtime: RuntimeHarness) -> None:
    service = await registered(runtime)
    old = await service.create()
    multiply(runtime, old)
    await service.create()
    multiply(runtime, (await service.claim(100))[-1], 5)
    await unregistered(runtime, service)
    assert left(runtime) > INVOCATIONS_PER_TRANSACTION
    again = await registered(runtime)
    assert again.service_id == service.service_id
    runtime.database.execute("update agent_invocations set created_at = created_at - 1, available_at = 1")
    good = await again.create()
    given = [row.id for _ in range(20) for row in await again.claim(100)]
    assert set(given) <= {good.id}
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert {row.id for row in await again.claim(100)} | {*given} == {good.id}
    assert left(runtime) == 1
    assert (
        runtime.database.count("agent_invocations", "status = 'canceled' and cancel_reason <> 'service_unregistered'")
        == 0
    )


async def test_a_zone_whose_service_has_many_calls_ends(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    service = await register_service(runtime, "other")
    multiply(runtime, await service.create())
    await runtime.stop_zone("other", ends=True)
    assert left(runtime) > INVOCATIONS_PER_TRANSACTION
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert left(runtime) == 0


async def test_the_orphan_sweep_walks_on_from_where_it_was_and_finds_both_sources_and_targets(
    runtime: RuntimeHarness, service: InvocationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.domain.invocations.sweeps.SLICE", 2)
    lost = [await runtime.spawn() for _ in range(4)]
    kept = await runtime.spawn()
    for session in (*lost, kept):
        await service.create(source_session_id=session.id)
        await service.create(target_session_id=session.id)
    runtime.database.expire_sessions(*lost)
    assert await runtime.invocation_sweep_runner().run_now(ORPHAN) == 8
    assert left(runtime) == 2


async def test_a_lease_that_did_not_arrive_is_not_taken_from_the_claim_that_was_given_it_again(
    service: InvocationHarness,
) -> None:
    await service.create()
    [lost] = await service.claim(claim_id="c")
    [again] = await service.claim(claim_id="c")
    ask: InvocationCommand = Release(
        zone_id=ZONE, id=lost.id, attempt_token=lost.attempt_token or "", lease_expires_at=lost.lease_expires_at
    )
    await service.runtime.invocation_lane.submit(ask)
    assert (await service.read(lost)).status is State.RUNNING
    assert (await service.complete(again)).status is State.SUCCEEDED


# -- a service that goes and comes back

ENDPOINT = "http://worker.example/again"


async def registered(keel: RuntimeHarness) -> InvocationHarness:
    registrar = services.Registrar(private_allowed=True)
    ask = Register(
        id=new_id(), zone_id=ZONE, caller=admin(), endpoint_url=ENDPOINT, application_id="app", session_id=None
    )
    [done] = await keel.engine.transact(lambda tx: registrar.register(tx, [ask]), zones=[ZONE])
    assert isinstance(done, RegisteredService)
    return InvocationHarness(keel, done.service.id)


async def unregistered(keel: RuntimeHarness, service: InvocationHarness) -> None:
    ask = Unregister(zone_id=ZONE, caller=admin(), service_id=service.service_id)
    await keel.engine.transact(lambda tx: services.unregister(tx, [ask]), zones=[ZONE])
