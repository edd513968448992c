"""Connections: kept while both sides keep them, given up with whatever was given up on them, and never a hang."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import pytest

from quarterdeck.client.discovery import ServerLocation
from quarterdeck.client.http_async import BUFFER_MAX
from quarterdeck.client.http_types import parse_address
from quarterdeck.sdk import Options, Quarterdeck
from quarterdeck.sdk.errors import Lost, TimedOut, Unavailable, Unreachable
from quarterdeck.sdk.transport import ApiCall, Transport
from tests.sdk.fake_servers import CUT_STEP, HANG_STEP, ScriptedServer, http_response, run_scripted_server, run_server
from tests.support.certificates import create_certificate

OK = http_response(200, {})
GET = ApiCall("GET", "/")
ONCE = ApiCall("POST", "/")
KEYED = ApiCall("POST", "/", key="k")


def remote_of(peer: ScriptedServer, options: Options | None = None) -> Transport:
    return Transport(ServerLocation(url=peer.url, token="t"), options or Options(timeout=5.0, patience=5.0))


async def test_one_connection_serves_one_call_after_another() -> None:
    async with run_scripted_server(OK, OK, OK) as peer:
        remote = remote_of(peer)
        for _ in range(3):
            await remote.send(GET)
        await remote.close()
    assert peer.connections == 1


async def test_calls_at_once_have_a_connection_each_up_to_the_bound() -> None:
    async with run_scripted_server(*[OK] * 20) as peer:
        remote = remote_of(peer, Options(connections=4))
        await asyncio.gather(*(remote.send(GET) for _ in range(20)))
        await remote.close()
    assert 1 < peer.connections <= 4


async def test_a_server_that_says_goodbye_is_taken_at_its_word() -> None:
    async with run_scripted_server(http_response(200, {}, Connection="close"), OK) as peer:
        remote = remote_of(peer)
        await remote.send(ONCE)
        await remote.send(ONCE)
        await remote.close()
    assert peer.connections == 2


async def test_a_kept_connection_that_turns_out_closed_is_replaced_at_once_for_what_may_be_repeated() -> None:
    async with run_scripted_server(OK, CUT_STEP, OK) as peer:
        remote = remote_of(peer, Options(patience=0.0))  # so it is not the retrying that helps
        await remote.send(KEYED)
        await remote.send(KEYED)
        await remote.close()
    assert len(peer.requests) == 3


async def test_what_may_not_be_repeated_is_told_that_its_answer_is_lost() -> None:
    async with run_scripted_server(OK, CUT_STEP) as peer:
        remote = remote_of(peer)
        await remote.send(ONCE)
        with pytest.raises(Lost):
            await remote.send(ONCE)
        await remote.close()
    assert len(peer.requests) == 2


async def test_a_lost_answer_is_asked_for_again_with_the_same_key() -> None:
    async with run_scripted_server(CUT_STEP, CUT_STEP, http_response(503, {"error": "outcome_unknown"}), OK) as peer:
        remote = remote_of(peer)
        await remote.send(ApiCall("POST", "/", key="mine"))
        await remote.close()
    assert len(peer.requests) == 4
    assert all(b"\r\nIdempotency-Key: mine\r\n" in request for request in peer.requests)


async def test_a_call_that_took_longer_than_all_patience_is_asked_for_once_more_with_the_same_key() -> None:
    async with run_scripted_server(HANG_STEP, OK) as peer:
        remote = remote_of(peer, Options(timeout=0.2, patience=0.1))
        await remote.send(KEYED)
        await remote.close()
    assert len(peer.requests) == 2
    assert all(b"\r\nIdempotency-Key: k\r\n" in request for request in peer.requests)


async def test_whoever_is_left_in_doubt_is_told_the_key_to_ask_again_with() -> None:
    async with run_scripted_server(HANG_STEP, HANG_STEP) as peer:
        remote = remote_of(peer, Options(timeout=0.2, patience=0.1))
        with pytest.raises(TimedOut) as told:
            await remote.send(KEYED)
        await remote.close()
    assert len(peer.requests) == 2
    assert told.value.members["idempotency_key"] == "k"


async def test_a_client_that_is_closed_while_it_looks_for_its_server_opens_nothing() -> None:
    looks, may_go_on = threading.Event(), threading.Event()

    def token() -> str:
        looks.set()
        may_go_on.wait()
        return "t"

    async with run_scripted_server() as peer:
        remote = Transport(ServerLocation(url=peer.url), Options(), token)
        asked = asyncio.create_task(remote.send(GET))
        await asyncio.to_thread(looks.wait)
        await remote.close()
        may_go_on.set()
        with pytest.raises(RuntimeError, match="closed"):
            await asked
    assert remote._pool is None
    assert peer.connections == 0


async def test_without_patience_nothing_is_made_again() -> None:
    async with run_scripted_server(http_response(503, {"error": "queue_full"})) as peer:
        remote = remote_of(peer, Options(patience=0.0))
        with pytest.raises(Unavailable):
            await remote.send(GET)
        await remote.close()
    assert len(peer.requests) == 1


async def test_retry_after_is_waited_for_and_not_beyond_patience() -> None:
    async with run_scripted_server(http_response(503, {"error": "queue_full"}, Retry_After="600")) as peer:
        remote = remote_of(peer)
        with pytest.raises(Unavailable) as told:
            await remote.send(GET)
        await remote.close()
    assert told.value.retry_after == 600
    assert len(peer.requests) == 1


async def test_an_answer_that_takes_too_long_is_given_up_and_its_connection_with_it() -> None:
    async with run_scripted_server(HANG_STEP, OK) as peer:
        remote = remote_of(peer, Options(timeout=0.2, patience=0.0))
        with pytest.raises(TimedOut):
            await remote.send(ONCE)
        await remote.send(ONCE)
        await remote.close()
    assert peer.connections == 2


async def test_a_call_that_is_cancelled_leaves_no_answer_behind_for_the_next() -> None:
    async with run_scripted_server(HANG_STEP, http_response(200, {"mine": True})) as peer:
        remote = remote_of(peer)
        asked = asyncio.create_task(remote.send(GET))
        await peer.request_received.wait()
        asked.cancel()
        await asyncio.wait([asked])
        assert (await remote.send(GET)).body == b'{"mine": true}'
        await remote.close()


async def test_where_nobody_listens_the_server_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "unix:/nowhere/at/all.sock", "unix:/far" + "/too/long" * 20):
        async with Quarterdeck.connect(url, "t", options=Options(patience=0.0)) as qd:
            with pytest.raises(Unreachable):
                await qd.zones.get()


async def test_a_server_that_comes_up_within_the_clients_patience_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    remote = Transport(ServerLocation(url=f"unix:{path}", token="t"), Options(patience=20.0))
    asked = asyncio.create_task(remote.send(ONCE))
    async with run_server(ScriptedServer([OK]).handle, path):
        assert (await asked).status == 200
        await remote.close()


@pytest.mark.parametrize("trusts", [True, False])
async def test_a_server_over_tls_is_judged_by_its_certificate(tmp_path: Path, trusts: bool) -> None:
    public, context = create_certificate(tmp_path, "127.0.0.1")
    told = ssl.create_default_context(cafile=str(public)) if trusts else None
    peer = ScriptedServer([OK, OK])
    async with run_server(peer.handle, tls=context) as url:
        remote = Transport(ServerLocation(url=url, token="t"), Options(patience=0.0, tls=told))
        if trusts:
            assert (await remote.send(GET)).status == 200
            assert (await remote.send(GET)).status == 200
        else:
            with pytest.raises(Unreachable, match="certificate"):
                await remote.send(GET)
        await remote.close()
    assert len(peer.requests) == (2 if trusts else 0)


async def test_a_stream_whose_reader_is_slow_loses_nothing_and_holds_the_server_up() -> None:
    pieces = [b"data: %d %s\n\n" % (n, b"x" * 100_000) for n in range(60)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with run_scripted_server(head + body) as peer:
        remote = remote_of(peer)
        read = b""
        async with remote.stream(GET, None) as stream:
            async for piece in stream:
                assert len(piece) < 3 * BUFFER_MAX
                read += piece
                await asyncio.sleep(0)
        await remote.close()
    assert read == b"".join(pieces)


async def test_what_is_not_http_is_no_hang_and_is_not_asked_again() -> None:
    async with run_scripted_server(b"SSH-2.0-OpenSSH_9.6\r\n") as peer:
        remote = remote_of(peer)
        with pytest.raises(Lost) as told:
            await remote.send(GET)
        await remote.close()
    assert told.value.code == "garbled_answer"
    assert len(peer.requests) == 1


async def test_a_token_with_a_line_break_writes_no_header_of_its_own() -> None:
    async with run_scripted_server() as peer, Quarterdeck.connect(peer.url, "t\r\nX-Evil: 1") as qd:
        with pytest.raises(Exception, match="control character"):
            await qd.zones.get()
    assert not peer.requests


def test_addresses_are_those_of_the_command_line() -> None:
    assert str(parse_address("https://qd.example/base/")) == "https://qd.example:443/base"
