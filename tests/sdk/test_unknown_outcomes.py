"""An answer that is lost: what was asked is done once, whatever becomes of the connection."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.sdk.errors import Lost
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.support.zone import APP, FreshZone, read_events


async def told_of(zone: FreshZone, kind: str) -> int:
    return sum(event["type"] == kind for event in await read_events(zone))


async def test_a_spawn_whose_answer_is_lost_is_found_and_not_doubled(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        cutter.cut_next(b"POST", b"POST")
        made = await qd.sessions.spawn(APP)
        assert cutter.cut_count == 2
        assert [session.id for session in await collect(qd.sessions.list())] == [made.id]
    assert await told_of(zone, "session.spawn") == 1


async def test_of_many_spawns_over_connections_that_are_cut_each_is_made_once(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        cutter.cut_next(*[b"POST"] * 10)
        made = await asyncio.gather(*(qd.sessions.spawn(APP) for _ in range(20)))
        assert cutter.cut_count == 10
    assert len({session.id for session in made}) == 20
    assert await told_of(zone, "session.spawn") == 20


async def test_a_call_and_a_delegation_whose_answers_are_lost_are_made_once(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        lender, borrower = await qd.sessions.spawn(APP), await qd.sessions.spawn(APP)
        cutter.cut_next(b"/invocations", b"/delegations")
        invocation = await qd.invocations.enqueue(service.id, "double", 2)
        edge = await qd.delegations.create(lender.id, borrower.id)
        assert cutter.cut_count == 2
        assert [each.id for each in await collect(qd.invocations.list())] == [invocation.id]
        assert [each.id for each in await collect(qd.delegations.list())] == [edge.id]


async def test_an_ending_whose_answer_is_lost_has_ended_all_of_it(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        root = await qd.sessions.spawn(APP)
        await qd.sessions.spawn(APP, parent_id=root.id)
        cutter.cut_next(b"DELETE")
        receipt = await qd.sessions.end(root.id)
        assert (cutter.cut_count, receipt.asked, receipt.left) == (1, 2, [])
    assert await told_of(zone, "session.terminate") == 2


async def test_a_suspension_whose_answer_is_lost_is_told_to_be_lost_and_not_made_twice(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        session = await qd.sessions.spawn(APP)
        cutter.cut_next(b"/suspend")
        with pytest.raises(Lost):
            await qd.sessions.suspend(session.id)
        assert cutter.cut_count == 1
        assert (await qd.sessions.get(session.id)).status == "suspended"
    assert await told_of(zone, "session.suspend") == 1
