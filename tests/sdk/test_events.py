"""Event streams deliver every event once across lost connections. Waiting for an invocation does not poll."""

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

TIMEOUT_SECONDS = 30.0
FOUR = msgspec.Raw(b"4")


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return [await anext(events) for _ in range(count)]


async def test_log_is_listed_from_any_position(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        session_ids = [(await qd.sessions.spawn(APP)).id for _ in range(3)]
        spawned = await collect(qd.events.list(types=["session.spawn"]))
        assert [event.subject for event in spawned] == session_ids
        assert spawned[0].to_state == "active"
        assert [e.subject for e in await collect(qd.events.list(after=spawned[0].pos))] == session_ids[1:]
        assert [e.subject for e in await collect(qd.events.list(subject=session_ids[1]))] == [session_ids[1]]


async def test_follow_yields_every_event_once_across_cut_connections(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        sdk_client(zone) as other,
    ):
        session_ids = [(await other.sessions.spawn(APP)).id]
        events = qd.events.follow(after=0, types=["session.spawn"])
        received = await take(events, 1)
        for _ in range(3):
            proxy.cut_all()
            session_ids.append((await other.sessions.spawn(APP)).id)
            received += await take(events, 1)
        assert isinstance(events, AsyncGenerator)
        await events.aclose()
    assert [event.subject for event in received] == session_ids
    assert sum(b"/events" in request for request in proxy.requests) >= 4


@STARTED_ON_SQLITE
async def test_follow_continues_after_a_server_restart(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    async with Quarterdeck.connect(data=str(launch.data)) as qd:
        first = await qd.sessions.spawn(APP)
        events = qd.events.follow(after=0, types=["session.spawn"])
        assert [event.subject for event in await take(events, 1)] == [first.id]
        await server.stop()
        await servers.start(launch)
        # The same client: the server has another address and another token now.
        second = await qd.sessions.spawn(APP)
        assert [event.subject for event in await take(events, 1)] == [second.id]
        assert isinstance(events, AsyncGenerator)
        await events.aclose()


async def test_reset_event_raises_log_reset() -> None:
    stream = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'2a\r\nid: 41\nevent: reset\ndata: {"floor":41}\n\n\r\n'
    )
    async with run_scripted_server(stream) as server, Quarterdeck.connect(server.url, "t") as qd:
        with pytest.raises(LogReset) as caught:
            await take(qd.events.follow(after=1), 1)
    assert caught.value.position == 41


async def test_refused_stream_raises_without_retry() -> None:
    responses = [http_response(401, {"error": "invalid_token"})] * 2
    async with run_scripted_server(*responses) as server, Quarterdeck.connect(server.url, "t") as qd:
        with pytest.raises(Unauthenticated):
            await take(qd.events.follow(), 1)
    assert len(server.requests) == 1


# -- waiting for an invocation


@contextlib.asynccontextmanager
async def claimed_invocation(qd: Quarterdeck) -> AsyncIterator[Lease]:
    """Enqueues an invocation and claims it."""
    service = await qd.services.register(APP, "http://worker.invalid/app")
    await qd.invocations.enqueue(service.id, "double", 2)
    [lease] = await qd.invocations.claim(service.id, "claim-1")
    yield lease


async def test_wait_ends_with_the_invocation_over_one_shared_stream(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        claimed_invocation(qd) as lease,
    ):
        waiters = [asyncio.create_task(qd.invocations.wait(lease.id)) for _ in range(5)]
        await wait_for_reads(proxy.requests, lease.id, 5)
        completion = Completion(lease.id, lease.attempt_token, "succeeded", FOUR)
        await qd.invocations.complete([completion])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            invocations = await asyncio.gather(*waiters)
        assert [each.result for each in invocations] == [4] * 5
        assert invocations[0].result_as(int) == 4
        # One event stream for all waiters, and two reads each.
        assert sum(b"GET /zones/%s/events" % zone.id.encode() in request for request in proxy.requests) == 1
        assert count_reads(proxy.requests, lease.id) <= 10


async def test_wait_notices_an_end_while_the_stream_was_cut(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        claimed_invocation(qd) as lease,
    ):
        waiter = asyncio.create_task(qd.invocations.wait(lease.id))
        await wait_for_reads(proxy.requests, lease.id, 1)
        proxy.cut_all()
        async with sdk_client(zone) as other:
            completion = Completion(lease.id, lease.attempt_token, "succeeded", FOUR)
            await other.invocations.complete([completion])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert (await waiter).result == 4


async def test_wait_raises_not_succeeded_with_the_invocation(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, claimed_invocation(qd) as lease:
        failed = Completion(lease.id, lease.attempt_token, "failed", error={"code": "no"}, retryable=False)
        await qd.invocations.complete([failed])
        with pytest.raises(NotSucceeded) as caught:
            await qd.invocations.wait(lease.id)
    assert (caught.value.status, caught.value.error) == ("failed", {"code": "no"})
    assert caught.value.invocation.id == lease.id


async def test_wait_timeout_does_not_affect_the_invocation(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, claimed_invocation(qd) as lease:
        with pytest.raises(TimedOut):
            await qd.invocations.wait(lease.id, timeout=0.05)
        assert (await qd.invocations.get(lease.id)).status == "running"
        assert (await qd.invocations.cancel(lease.id, reason="late")).cancel_reason == "late"


def count_reads(requests: list[bytes], invocation_id: str) -> int:
    return sum(
        b"GET /zones/" in request and f"/invocations/{invocation_id} ".encode() in request for request in requests
    )


async def wait_for_reads(requests: list[bytes], invocation_id: str, times: int) -> None:
    async def is_reached() -> bool:
        return count_reads(requests, invocation_id) >= times

    await eventually(is_reached, "every waiter has read the invocation")
