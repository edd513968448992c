"""Following: nothing missed and nothing twice, whatever is cut; waiting for an end without asking over and over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import pytest

from quarterdeck.sdk import LogReset, NotSucceeded, Quarterdeck
from quarterdeck.sdk.errors import TimedOut, Unauthenticated
from quarterdeck.sdk.types import Completion, Event, Lease
from tests.sdk.fake_servers import collect, http_response, run_cutting_proxy, run_scripted_server, sdk_client
from tests.support.engine_marks import STARTED_ON_SQLITE
from tests.support.eventually import eventually
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone

LIMIT = 30.0
FOUR = msgspec.Raw(b"4")


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(LIMIT):
        return [await anext(events) for _ in range(count)]


async def test_the_log_is_listed_from_any_position_to_its_end(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        made = [(await qd.sessions.spawn(APP)).id for _ in range(3)]
        spawned = await collect(qd.events.list(types=["session.spawn"]))
        assert [event.subject for event in spawned] == made
        assert spawned[0].to_state == "active"
        assert [e.subject for e in await collect(qd.events.list(after=spawned[0].pos))] == made[1:]
        assert [e.subject for e in await collect(qd.events.list(subject=made[1]))] == [made[1]]


async def test_events_are_heard_as_they_happen_and_over_cut_connections_each_once(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as cutter,
        sdk_client(zone, cutter.url) as qd,
        sdk_client(zone) as other,
    ):
        made = [(await other.sessions.spawn(APP)).id]
        events = qd.events.follow(after=0, types=["session.spawn"])
        heard = await take(events, 1)
        for _ in range(3):
            cutter.cut_all()
            made.append((await other.sessions.spawn(APP)).id)
            heard += await take(events, 1)
        assert isinstance(events, AsyncGenerator)
        await events.aclose()
    assert [event.subject for event in heard] == made
    assert sum(b"/events" in request for request in cutter.requests) >= 4


@STARTED_ON_SQLITE
async def test_a_server_that_is_started_again_is_followed_on_from_where_it_was(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    async with Quarterdeck.connect(data=str(launch.data)) as qd:
        first = await qd.sessions.spawn(APP)
        events = qd.events.follow(after=0, types=["session.spawn"])
        assert [event.subject for event in await take(events, 1)] == [first.id]
        await server.stop()
        await servers.start(launch)
        # The same client: the server is elsewhere now, and its token is another.
        second = await qd.sessions.spawn(APP)
        assert [event.subject for event in await take(events, 1)] == [second.id]
        assert isinstance(events, AsyncGenerator)
        await events.aclose()


async def test_a_reader_that_the_log_has_left_behind_is_told() -> None:
    opened = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'2a\r\nid: 41\nevent: reset\ndata: {"floor":41}\n\n\r\n'
    )
    async with run_scripted_server(opened) as peer, Quarterdeck.connect(peer.url, "t") as qd:
        with pytest.raises(LogReset) as told:
            await take(qd.events.follow(after=1), 1)
    assert told.value.position == 41


async def test_what_the_server_refuses_is_raised_and_not_asked_for_ever() -> None:
    refused = [http_response(401, {"error": "invalid_token"})] * 2
    async with run_scripted_server(*refused) as peer, Quarterdeck.connect(peer.url, "t") as qd:
        with pytest.raises(Unauthenticated):
            await take(qd.events.follow(), 1)
    assert len(peer.requests) == 1


# -- the end of an invocation


@contextlib.asynccontextmanager
async def leased(qd: Quarterdeck) -> AsyncIterator[Lease]:
    """An invocation that this test holds."""
    service = await qd.services.register(APP, "http://worker.invalid/app")
    await qd.invocations.enqueue(service.id, "double", 2)
    [lease] = await qd.invocations.claim(service.id, "claim-1")
    yield lease


async def test_waiting_ends_with_the_invocation(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd, leased(qd) as lease:
        waiting = [asyncio.create_task(qd.invocations.wait(lease.id)) for _ in range(5)]
        await looked_at(cutter.requests, lease.id, 5)
        done = Completion(lease.id, lease.attempt_token, "succeeded", FOUR)
        await qd.invocations.complete([done])
        async with asyncio.timeout(LIMIT):
            found = await asyncio.gather(*waiting)
        assert [each.result for each in found] == [4] * 5
        assert found[0].result_as(int) == 4
        # One stream for all of them, and two looks each.
        assert sum(b"GET /zones/%s/events" % zone.id.encode() in request for request in cutter.requests) == 1
        assert looks(cutter.requests, lease.id) <= 10


async def test_what_ends_while_the_stream_is_cut_is_not_waited_for_in_vain(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd, leased(qd) as lease:
        waiting = asyncio.create_task(qd.invocations.wait(lease.id))
        await looked_at(cutter.requests, lease.id, 1)
        cutter.cut_all()
        async with sdk_client(zone) as other:
            done = Completion(lease.id, lease.attempt_token, "succeeded", FOUR)
            await other.invocations.complete([done])
        async with asyncio.timeout(LIMIT):
            assert (await waiting).result == 4


async def test_however_it_ends_otherwise_is_raised_with_the_invocation(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, leased(qd) as lease:
        failed = Completion(lease.id, lease.attempt_token, "failed", error={"code": "no"}, retryable=False)
        await qd.invocations.complete([failed])
        with pytest.raises(NotSucceeded) as told:
            await qd.invocations.wait(lease.id)
    assert (told.value.status, told.value.error) == ("failed", {"code": "no"})
    assert told.value.invocation.id == lease.id


async def test_whoever_has_no_more_time_is_told_and_the_invocation_goes_on(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, leased(qd) as lease:
        with pytest.raises(TimedOut):
            await qd.invocations.wait(lease.id, timeout=0.05)
        assert (await qd.invocations.get(lease.id)).status == "running"
        assert (await qd.invocations.cancel(lease.id, reason="late")).cancel_reason == "late"


def looks(seen: list[bytes], invocation_id: str) -> int:
    return sum(b"GET /zones/" in request and f"/invocations/{invocation_id} ".encode() in request for request in seen)


async def looked_at(seen: list[bytes], invocation_id: str, times: int) -> None:
    async def often_enough() -> bool:
        return looks(seen, invocation_id) >= times

    await eventually(often_enough, "those who wait had looked")
