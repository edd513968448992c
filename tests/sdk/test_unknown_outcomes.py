"""Requests whose response is lost take effect once."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.sdk.errors import Lost
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.support.zone import APP, FreshZone, read_events


async def count_events(zone: FreshZone, event_type: str) -> int:
    return sum(event["type"] == event_type for event in await read_events(zone))


async def test_spawn_with_a_lost_response_creates_one_session(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        proxy.cut_next(b"POST", b"POST")
        spawned = await qd.sessions.spawn(APP)
        assert proxy.cut_count == 2
        assert [session.id for session in await collect(qd.sessions.list())] == [spawned.id]
    assert await count_events(zone, "session.spawn") == 1


async def test_concurrent_spawns_over_cut_connections_each_create_one_session(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        proxy.cut_next(*[b"POST"] * 10)
        sessions = await asyncio.gather(*(qd.sessions.spawn(APP) for _ in range(20)))
        assert proxy.cut_count == 10
    assert len({session.id for session in sessions}) == 20
    assert await count_events(zone, "session.spawn") == 20


async def test_enqueue_and_delegate_with_lost_responses_take_effect_once(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        source, target = await qd.sessions.spawn(APP), await qd.sessions.spawn(APP)
        proxy.cut_next(b"/invocations", b"/delegations")
        invocation = await qd.invocations.enqueue(service.id, "double", 2)
        edge = await qd.delegations.create(source.id, target.id)
        assert proxy.cut_count == 2
        assert [each.id for each in await collect(qd.invocations.list())] == [invocation.id]
        assert [each.id for each in await collect(qd.delegations.list())] == [edge.id]


async def test_end_with_a_lost_response_terminates_the_whole_tree(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        root = await qd.sessions.spawn(APP)
        await qd.sessions.spawn(APP, parent_id=root.id)
        proxy.cut_next(b"DELETE")
        receipt = await qd.sessions.end(root.id)
        assert (proxy.cut_count, receipt.asked, receipt.left) == (1, 2, [])
    assert await count_events(zone, "session.terminate") == 2


async def test_suspend_with_a_lost_response_raises_lost_and_is_not_repeated(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        session = await qd.sessions.spawn(APP)
        proxy.cut_next(b"/suspend")
        with pytest.raises(Lost):
            await qd.sessions.suspend(session.id)
        assert proxy.cut_count == 1
        assert (await qd.sessions.get(session.id)).status == "suspended"
    assert await count_events(zone, "session.suspend") == 1
