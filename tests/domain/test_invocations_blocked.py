"""What must not begin though somebody waits for it: work of a zone that another transaction holds, and of a session
that has ended and is not settled yet."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from quarterdeck.domain.invocations.model import ClaimedInvocations, InvocationCommand, Release, State
from quarterdeck.domain.invocations.operations import BatchRunner, ClaimPolls
from quarterdeck.domain.invocations.operations.long_poll import poll_for_claim
from quarterdeck.domain.sessions.model import Terminate
from tests.support.builders import ZONE
from tests.support.eventually import eventually
from tests.support.invocations import InvocationHarness, register_service
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


@pytest.fixture
async def service(runtime: RuntimeHarness) -> InvocationHarness:
    return await register_service(runtime)


async def test_whoever_calls_into_a_busy_zone_hands_nothing_of_it_to_those_who_wait(
    service: InvocationHarness, engine_url: str
) -> None:
    if not engine_url.startswith("postgresql"):
        pytest.skip("on SQLite no zone is busy: there is one writer")
    keel = service.runtime
    waiter = poll_for_claim(service.claim_command(2))
    assert await service.submit_claim(service.claim_command(poll=waiter)) == ()
    async with open_runtime(engine_url) as other:
        row = await InvocationHarness(other, service.service_id).create()
    with psycopg.connect(keel.url) as outsider:
        outsider.execute("select 1 from zones where id = %s for update", [ZONE])
        calling_too = asyncio.create_task(service.create())

        async def somebody_waits() -> bool:
            return keel.database.waiting_for_locks() > 0

        await eventually(somebody_waits, "the call was held up")
        assert await service.event_types(row) == ["created"], "whoever holds the zone may be handing it out"
        assert not waiter.delivered
    second = await calling_too
    assert [given.id for given in waiter.take_delivered()] == [row.id, second.id]


async def test_what_is_given_back_for_a_session_that_has_ended_does_not_begin_again(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as keel:
        await keel.put_zone()
        service = await register_service(keel)
        root = await keel.spawn()
        child = await keel.spawn(parent_id=root.id)
        await service.create(source_session_id=child.id)
        [row] = await service.claim()
        ended = await keel.cascade_runner.submit_terminate(Terminate(root.zone_id, root.id, "enough"))
        assert ended.cascade_id is not None, "stamped, and not settled"
        asks: list[InvocationCommand] = [
            Release(zone_id=ZONE, id=row.id, attempt_token=row.attempt_token or ""),
            service.claim_command(),
        ]
        exchange = BatchRunner(30_000, ClaimPolls())
        _, taken = await keel.engine.transact(lambda tx: exchange.run(tx, asks), zones=[ZONE])
        assert taken == ClaimedInvocations(())
        assert await service.event_types(row) == ["created", "started", "canceled"]
        assert (await service.read(row)).status is State.CANCELED
