"""The transport: reuse of connections, retries, time-outs and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import pytest

from quarterdeck.client.discovery import ServerLocation
from quarterdeck.client.http_async import BUFFER_BYTES_MAX
from quarterdeck.client.http_types import parse_address
from quarterdeck.sdk import Options, Quarterdeck
from quarterdeck.sdk.errors import Lost, TimedOut, Unavailable, Unreachable
from quarterdeck.sdk.transport import ApiCall, Transport
from tests.sdk.fake_servers import CUT_STEP, HANG_STEP, ScriptedServer, http_response, run_scripted_server, run_server
from tests.support.certificates import create_certificate

OK = http_response(200, {})
GET = ApiCall("GET", "/")
UNKEYED = ApiCall("POST", "/")
KEYED = ApiCall("POST", "/", key="k")


def create_transport(server: ScriptedServer, options: Options | None = None) -> Transport:
    return Transport(ServerLocation(url=server.url, token="t"), options or Options(timeout=5.0, patience=5.0))


async def test_sequential_calls_share_one_connection() -> None:
    async with run_scripted_server(OK, OK, OK) as server:
        transport = create_transport(server)
        for _ in range(3):
            await transport.send(GET)
        await transport.close()
    assert server.connections == 1


async def test_concurrent_calls_use_connections_up_to_the_limit() -> None:
    async with run_scripted_server(*[OK] * 20) as server:
        transport = create_transport(server, Options(connections=4))
        await asyncio.gather(*(transport.send(GET) for _ in range(20)))
        await transport.close()
    assert 1 < server.connections <= 4


async def test_connection_close_is_respected() -> None:
    async with run_scripted_server(http_response(200, {}, Connection="close"), OK) as server:
        transport = create_transport(server)
        await transport.send(UNKEYED)
        await transport.send(UNKEYED)
        await transport.close()
    assert server.connections == 2


async def test_stale_kept_connection_is_replaced_at_once_for_keyed_calls() -> None:
    async with run_scripted_server(OK, CUT_STEP, OK) as server:
        # Without retries, only the replacement of the connection can help.
        transport = create_transport(server, Options(patience=0.0))
        await transport.send(KEYED)
        await transport.send(KEYED)
        await transport.close()
    assert len(server.requests) == 3


async def test_unkeyed_call_with_a_lost_response_raises_lost() -> None:
    async with run_scripted_server(OK, CUT_STEP) as server:
        transport = create_transport(server)
        await transport.send(UNKEYED)
        with pytest.raises(Lost):
            await transport.send(UNKEYED)
        await transport.close()
    assert len(server.requests) == 2


async def test_lost_response_is_retried_with_the_same_key() -> None:
    async with run_scripted_server(CUT_STEP, CUT_STEP, http_response(503, {"error": "outcome_unknown"}), OK) as server:
        transport = create_transport(server)
        await transport.send(ApiCall("POST", "/", key="mine"))
        await transport.close()
    assert len(server.requests) == 4
    assert all(b"\r\nIdempotency-Key: mine\r\n" in request for request in server.requests)


async def test_call_longer_than_the_retry_budget_is_retried_once_with_the_same_key() -> None:
    async with run_scripted_server(HANG_STEP, OK) as server:
        transport = create_transport(server, Options(timeout=0.2, patience=0.1))
        await transport.send(KEYED)
        await transport.close()
    assert len(server.requests) == 2
    assert all(b"\r\nIdempotency-Key: k\r\n" in request for request in server.requests)


async def test_unknown_outcome_contains_the_idempotency_key() -> None:
    async with run_scripted_server(HANG_STEP, HANG_STEP) as server:
        transport = create_transport(server, Options(timeout=0.2, patience=0.1))
        with pytest.raises(TimedOut) as caught:
            await transport.send(KEYED)
        await transport.close()
    assert len(server.requests) == 2
    assert caught.value.members["idempotency_key"] == "k"


async def test_client_closed_during_discovery_opens_no_connection() -> None:
    is_locating, may_continue = threading.Event(), threading.Event()

    def token() -> str:
        is_locating.set()
        may_continue.wait()
        return "t"

    async with run_scripted_server() as server:
        transport = Transport(ServerLocation(url=server.url), Options(), token)
        call = asyncio.create_task(transport.send(GET))
        await asyncio.to_thread(is_locating.wait)
        await transport.close()
        may_continue.set()
        with pytest.raises(RuntimeError, match="closed"):
            await call
    assert transport._pool is None
    assert server.connections == 0


async def test_zero_retry_budget_disables_retries() -> None:
    async with run_scripted_server(http_response(503, {"error": "queue_full"})) as server:
        transport = create_transport(server, Options(patience=0.0))
        with pytest.raises(Unavailable):
            await transport.send(GET)
        await transport.close()
    assert len(server.requests) == 1


async def test_retry_after_beyond_the_retry_budget_is_raised() -> None:
    async with run_scripted_server(http_response(503, {"error": "queue_full"}, Retry_After="600")) as server:
        transport = create_transport(server)
        with pytest.raises(Unavailable) as caught:
            await transport.send(GET)
        await transport.close()
    assert caught.value.retry_after == 600
    assert len(server.requests) == 1


async def test_timed_out_call_closes_its_connection() -> None:
    async with run_scripted_server(HANG_STEP, OK) as server:
        transport = create_transport(server, Options(timeout=0.2, patience=0.0))
        with pytest.raises(TimedOut):
            await transport.send(UNKEYED)
        await transport.send(UNKEYED)
        await transport.close()
    assert server.connections == 2


async def test_canceled_call_leaves_no_response_for_the_next() -> None:
    async with run_scripted_server(HANG_STEP, http_response(200, {"mine": True})) as server:
        transport = create_transport(server)
        call = asyncio.create_task(transport.send(GET))
        await server.request_received.wait()
        call.cancel()
        await asyncio.wait([call])
        assert (await transport.send(GET)).body == b'{"mine": true}'
        await transport.close()


async def test_refused_connection_raises_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "unix:/nowhere/at/all.sock", "unix:/far" + "/too/long" * 20):
        async with Quarterdeck.connect(url, "t", options=Options(patience=0.0)) as qd:
            with pytest.raises(Unreachable):
                await qd.zones.get()


async def test_server_that_starts_within_the_retry_budget_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "s"
    transport = Transport(ServerLocation(url=f"unix:{path}", token="t"), Options(patience=20.0))
    call = asyncio.create_task(transport.send(UNKEYED))
    async with run_server(ScriptedServer([OK]).handle, path):
        assert (await call).status == 200
        await transport.close()


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_tls_certificate_is_verified(tmp_path: Path, is_trusted: bool) -> None:
    public, context = create_certificate(tmp_path, "127.0.0.1")
    client_tls = ssl.create_default_context(cafile=str(public)) if is_trusted else None
    server = ScriptedServer([OK, OK])
    async with run_server(server.handle, tls=context) as url:
        transport = Transport(ServerLocation(url=url, token="t"), Options(patience=0.0, tls=client_tls))
        if is_trusted:
            assert (await transport.send(GET)).status == 200
            assert (await transport.send(GET)).status == 200
        else:
            with pytest.raises(Unreachable, match="certificate"):
                await transport.send(GET)
        await transport.close()
    assert len(server.requests) == (2 if is_trusted else 0)


async def test_slow_stream_reader_loses_nothing_and_applies_backpressure() -> None:
    pieces = [b"data: %d %s\n\n" % (n, b"x" * 100_000) for n in range(60)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with run_scripted_server(head + body) as server:
        transport = create_transport(server)
        received = b""
        async with transport.stream(GET, None) as stream:
            async for piece in stream:
                assert len(piece) < 3 * BUFFER_BYTES_MAX
                received += piece
                await asyncio.sleep(0)
        await transport.close()
    assert received == b"".join(pieces)


async def test_response_that_is_not_http_raises_lost_without_retry() -> None:
    async with run_scripted_server(b"SSH-2.0-OpenSSH_9.6\r\n") as server:
        transport = create_transport(server)
        with pytest.raises(Lost) as caught:
            await transport.send(GET)
        await transport.close()
    assert caught.value.code == "garbled_answer"
    assert len(server.requests) == 1


async def test_line_break_in_a_token_is_refused() -> None:
    async with run_scripted_server() as server, Quarterdeck.connect(server.url, "t\r\nX-Evil: 1") as qd:
        with pytest.raises(Exception, match="nonprintable character"):
            await qd.zones.get()
    assert not server.requests


def test_addresses_are_parsed_as_on_the_command_line() -> None:
    assert str(parse_address("https://qd.example/base/")) == "https://qd.example:443/base"
