"""Invocations that must not start in spite of a waiting claim: their zone is locked, or their session was marked."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from quarterdeck.domain.invocations.model import ClaimedInvocations, InvocationCommand, Release, State
from quarterdeck.domain.invocations.operations.batch import BatchRunner
from quarterdeck.domain.invocations.operations.long_poll import ClaimPolls, new_claim_poll
from quarterdeck.domain.sessions.model import Terminate
from tests.support.builders import ZONE
from tests.support.eventually import eventually
from tests.support.invocations import InvocationHarness, register_service
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


async def test_call_into_a_locked_zone_delivers_nothing_before_it_has_the_lock(
    service: InvocationHarness, engine_url: str
) -> None:
    if not engine_url.startswith("postgresql"):
        pytest.skip("SQLite has one writer, so no zone is locked")
    runtime = service.runtime
    poll = new_claim_poll(service.claim_command(2))
    assert await service.submit_claim(service.claim_command(poll=poll)) == ()
    async with open_runtime(engine_url) as other:
        row = await InvocationHarness(other, service.service_id).create()
    with psycopg.connect(runtime.url) as connection:
        connection.execute("select 1 from zones where id = %s for update", [ZONE])
        second_call = asyncio.create_task(service.create())

        async def waits_for_lock() -> bool:
            return runtime.database.waiting_for_locks() > 0

        await eventually(waits_for_lock, "the call waits for the zone lock")
        assert await service.event_types(row) == ["created"], "the holder of the zone lock may be delivering it"
        assert not poll.delivered
    second = await second_call
    assert [delivered.id for delivered in poll.take_delivered()] == [row.id, second.id]


async def test_released_invocation_of_an_ended_session_is_canceled(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as runtime:
        await runtime.put_zone()
        service = await register_service(runtime)
        root = await runtime.spawn()
        child = await runtime.spawn(parent_id=root.id)
        await service.create(source_session_id=child.id)
        [row] = await service.claim()
        result = await runtime.cascade_runner.submit_terminate(Terminate(root.zone_id, root.id, "obsolete"))
        assert result.cascade_id is not None, "marked, and no chunk has run yet"
        commands: list[InvocationCommand] = [
            Release(zone_id=ZONE, id=row.id, attempt_token=row.attempt_token or ""),
            service.claim_command(),
        ]
        runner = BatchRunner(30_000, ClaimPolls())
        _, claimed = await runtime.engine.transact(lambda tx: runner.run(tx, commands), zones=[ZONE])
        assert claimed == ClaimedInvocations(())
        assert await service.event_types(row) == ["created", "started", "canceled"]
        assert (await service.read(row)).status is State.CANCELED
