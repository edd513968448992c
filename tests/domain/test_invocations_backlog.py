"""Sessions and services with more invocations than one transaction handles can still be ended, suspended and resumed.

The remaining invocations do not start meanwhile, and a sweep handles them.
"""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.invocations.model import Invocation, InvocationCommand, Release, State
from quarterdeck.domain.invocations.operations.on_session_ended import INVOCATIONS_PER_TRANSACTION
from quarterdeck.domain.invocations.rules import states
from quarterdeck.domain.invocations.sweeps import ORPHAN, SETTLE
from quarterdeck.domain.services.model import Register, RegisteredService, Unregister
from quarterdeck.domain.services.operations import unregister as unregister_operations
from quarterdeck.domain.services.operations.register import Registrar
from tests.support.builders import ZONE, admin
from tests.support.invocations import InvocationHarness, register_service
from tests.support.runtime import RuntimeHarness

MANY = 3 * INVOCATIONS_PER_TRANSACTION + 10
UNFINISHED = "status in ('pending', 'running')"


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


def insert_copies(runtime: RuntimeHarness, row: Invocation, count: int = MANY) -> None:
    """Insert copies of an invocation directly, which is faster than many calls."""
    expressions = {"id": "t.id || '-' || n.i", "idempotency_key": "t.id || n.i", "available_at": "t.available_at - n.i"}
    columns = Invocation.__struct_fields__
    values = ", ".join(expressions.get(name, f"t.{name}") for name in columns)
    runtime.database.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) "
        f"insert into agent_invocations ({', '.join(columns)}) select {values} from agent_invocations t, n "
        "where t.id = ?",
        count,
        row.id,
    )


def count_unfinished(runtime: RuntimeHarness) -> int:
    return runtime.database.count("agent_invocations", UNFINISHED)


def count_events(runtime: RuntimeHarness, verb: str) -> int:
    return runtime.database.count("events", "type = ?", f"invocation.{verb}")


async def test_session_with_many_invocations_ends_and_none_of_them_starts(
    runtime: RuntimeHarness, service: InvocationHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    await service.create(source_session_id=session.id)
    [running] = await service.claim()
    for _ in range(2):
        insert_copies(runtime, await service.create(source_session_id=session.id), MANY // 2)
    insert_copies(runtime, running, INVOCATIONS_PER_TRANSACTION)
    unaffected = await service.create(source_session_id=other.id)
    await runtime.terminate(session)
    assert count_unfinished(runtime) > INVOCATIONS_PER_TRANSACTION
    [row] = runtime.database.execute(
        f"select id from agent_invocations where status = 'running' and {UNFINISHED} limit 1"
    )
    with pytest.raises(Problem) as problem:
        await service.complete(msgspec.structs.replace(running, id=str(row[0])))
    assert problem.value.code == "invocation_not_completable"
    started = count_events(runtime, "started")
    claimed = [invocation.id for _ in range(5) for invocation in await service.claim()]
    assert set(claimed) <= {unaffected.id}
    sweeper = runtime.invocation_sweep_runner()
    assert await sweeper.run_now(SETTLE) == 1
    assert count_unfinished(runtime) == 1
    assert count_events(runtime, "started") == started + len(claimed)
    assert count_events(runtime, "canceled") == runtime.database.count("agent_invocations", "status = 'canceled'")
    assert runtime.database.count("invocation_backlogs") == 0
    assert await sweeper.run_now(SETTLE) == 0


async def test_bulk_cancellation_equals_single_cancellation(
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
    assert (after.cancel_reason, count_events(runtime, "canceled")) == ("enough", 2)


async def test_session_with_many_invocations_is_suspended_and_resumed(
    runtime: RuntimeHarness, service: InvocationHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    insert_copies(runtime, await service.create(source_session_id=session.id))
    unaffected = await service.create(source_session_id=other.id)
    await runtime.suspend(session)
    assert runtime.database.count("agent_invocations", "parked = 0") > INVOCATIONS_PER_TRANSACTION
    assert {invocation.id for _ in range(3) for invocation in await service.claim(100)} <= {unaffected.id}
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert runtime.database.count("agent_invocations", "parked = 0") == 1
    assert [invocation.id for invocation in await service.claim()] == [unaffected.id]
    assert count_events(runtime, "started") == 1
    await runtime.resume(session)
    assert runtime.database.count("agent_invocations", "parked = 1") > INVOCATIONS_PER_TRANSACTION
    assert len(await service.claim(100)) == 100
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert runtime.database.count("agent_invocations", "parked = 1") == 0


async def test_reregistered_service_does_not_get_its_earlier_invocations(runtime: RuntimeHarness) -> None:
    service = await register_endpoint(runtime)
    old = await service.create()
    insert_copies(runtime, old)
    await service.create()
    insert_copies(runtime, (await service.claim(100))[-1], 5)
    await unregister(runtime, service)
    assert count_unfinished(runtime) > INVOCATIONS_PER_TRANSACTION
    reregistered = await register_endpoint(runtime)
    assert reregistered.service_id == service.service_id
    runtime.database.execute("update agent_invocations set created_at = created_at - 1, available_at = 1")
    current = await reregistered.create()
    claimed = [row.id for _ in range(20) for row in await reregistered.claim(100)]
    assert set(claimed) <= {current.id}
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert {row.id for row in await reregistered.claim(100)} | {*claimed} == {current.id}
    assert count_unfinished(runtime) == 1
    assert (
        runtime.database.count("agent_invocations", "status = 'canceled' and cancel_reason <> 'service_unregistered'")
        == 0
    )


async def test_zone_with_many_invocations_is_ended(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    service = await register_service(runtime, "other")
    insert_copies(runtime, await service.create())
    await runtime.stop_zone("other", ends=True)
    assert count_unfinished(runtime) > INVOCATIONS_PER_TRANSACTION
    assert await runtime.invocation_sweep_runner().run_now(SETTLE) == 1
    assert count_unfinished(runtime) == 0


async def test_orphan_sweep_continues_in_slices_and_finds_sources_and_targets(
    runtime: RuntimeHarness, service: InvocationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.domain.invocations.sweeps.SLICE", 2)
    expired = [await runtime.spawn() for _ in range(4)]
    kept = await runtime.spawn()
    for session in (*expired, kept):
        await service.create(source_session_id=session.id)
        await service.create(target_session_id=session.id)
    runtime.database.expire_sessions(*expired)
    assert await runtime.invocation_sweep_runner().run_now(ORPHAN) == 8
    assert count_unfinished(runtime) == 2


async def test_late_release_does_not_end_a_lease_returned_by_a_repeated_claim(service: InvocationHarness) -> None:
    await service.create()
    [first] = await service.claim(claim_id="c")
    [repeated] = await service.claim(claim_id="c")
    command: InvocationCommand = Release(
        zone_id=ZONE, id=first.id, attempt_token=first.attempt_token or "", lease_expires_at=first.lease_expires_at
    )
    await service.runtime.submit_invocation(command)
    assert (await service.read(first)).status is State.RUNNING
    assert (await service.complete(repeated)).status is State.SUCCEEDED


# -- a service that is unregistered and registered again

ENDPOINT = "http://worker.example/service"


async def register_endpoint(runtime: RuntimeHarness) -> InvocationHarness:
    registrar = Registrar(private_allowed=True)
    command = Register(
        id=new_id(), zone_id=ZONE, caller=admin(), endpoint_url=ENDPOINT, application_id="app", session_id=None
    )
    [result] = await runtime.engine.transact(lambda tx: registrar.register(tx, [command]), zones=[ZONE])
    assert isinstance(result, RegisteredService)
    return InvocationHarness(runtime, result.service.id)


async def unregister(runtime: RuntimeHarness, service: InvocationHarness) -> None:
    command = Unregister(zone_id=ZONE, caller=admin(), service_id=service.service_id)
    await runtime.engine.transact(lambda tx: unregister_operations.unregister(tx, [command]), zones=[ZONE])
