"""The outbound HTTP client: SSRF rules, limits, TLS and response parsing. It connects only to checked addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from quarterdeck.engine.outbound_http import (
    ALLOW_PRIVATE,
    PUBLIC_ONLY,
    InvalidResponse,
    OutboundClient,
    Request,
    RequestBlocked,
    Resolver,
    Response,
    ResponseLimits,
    ResponseTooLarge,
    SsrfGuard,
    TimedOut,
    Unreachable,
)
from tests.support.certificates import create_certificate
from tests.support.http_endpoint import HttpEndpoint, http_response, run_endpoint
from tests.support.push import ScriptedResolver

LIMIT = 10.0
NAME = "push.example"


def post(url: str, body: bytes = b"{}", *headers: tuple[str, str]) -> Request:
    return Request("POST", url, headers, body)


async def send(client: OutboundClient, request: Request, seconds: float = LIMIT) -> Response:
    return await client.send(request, seconds)


@contextlib.asynccontextmanager
async def tcp_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A raw TCP server, for malformed HTTP. Yields its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


# -- blocked targets

LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "localhost",
    "LOCALHOST",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
]
"""Spellings of one address that a C library accepts."""
OTHER_BLOCKED = [
    "0.0.0.0",
    "0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "[::1]",
    "[::]",
    "[fe80::1]",
    "[fc00::1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[::127.0.0.1]",
    "[2002:7f00:1::]",
    "localhost.",
    "metadata.google.internal",
    "printer.local",
    "127.0.0.1%2f",
    "push.example%00.com",
]


@pytest.mark.parametrize("host", LOOPBACK + OTHER_BLOCKED)
async def test_private_host_is_refused_in_any_spelling_without_a_connection(receiver: HttpEndpoint, host: str) -> None:
    names = ScriptedResolver(["127.0.0.1"])
    with pytest.raises(RequestBlocked):
        await send(OutboundClient(PUBLIC_ONLY, resolve=names), post(f"http://{host}:{receiver.port}/"))
    assert receiver.connections == 0
    assert names.lookups == [], "a host that is refused by its spelling is not resolved"


@pytest.mark.parametrize("host", LOOPBACK)
async def test_private_hosts_are_reached_when_allowed(receiver: HttpEndpoint, host: str) -> None:
    # Shows that the endpoint of the test above counts connections.
    await send(OutboundClient(ALLOW_PRIVATE), post(f"http://{host}:{receiver.port}/"))
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.31.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.100.100.200",
        "::1",
        "::",
        "fe80::1%lo",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "::7f00:1",
    ],
)
async def test_name_is_refused_if_any_of_its_addresses_is_private(receiver: HttpEndpoint, address: str) -> None:
    for addresses in ([address], ["93.184.215.14", address], [address, "93.184.215.14"]):
        with pytest.raises(RequestBlocked) as refusal:
            await send(
                OutboundClient(PUBLIC_ONLY, resolve=ScriptedResolver(addresses)),
                post(f"http://{NAME}:{receiver.port}/"),
            )
        assert refusal.value.address == address
        assert address not in str(refusal.value), "callers do not learn the addresses of this network"
    assert receiver.connections == 0


async def test_name_that_resolves_to_this_machine_is_refused(receiver: HttpEndpoint) -> None:
    # With the real resolver, and a name that passes the check of its spelling.
    async def resolve(host: str, port: int, requester: str) -> Sequence[str]:
        return await Resolver()("localhost", port, requester)

    with pytest.raises(RequestBlocked):
        await send(OutboundClient(PUBLIC_ONLY, resolve=resolve), post(f"http://{NAME}:{receiver.port}/"))
    assert receiver.connections == 0


async def test_connection_uses_the_checked_address_without_a_second_lookup(
    receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, *rest: object, **more: object) -> object:
        raise AssertionError(f"{host} was resolved again while connecting")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    guard = SsrfGuard(lambda host: None, lambda address: None if address == "127.0.0.1" else "private")
    names = ScriptedResolver(["127.0.0.1"], ["127.0.0.2"])
    client, request = OutboundClient(guard, resolve=names), post(f"http://{NAME}:{receiver.port}/hook")
    assert (await send(client, request)).status == 200
    assert names.lookups == [(NAME, receiver.port)]
    with pytest.raises(RequestBlocked):
        await send(client, request)
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://{host}/",
        "file:///etc/passwd",
        "//{host}/",
        "http:///path",
        "http://user@{host}/",
        "http://user:word@{host}/",
        "http://good.example\\@{host}/",
        "http://{host}/a b",
        "http://{host}/\r\nX: y",
        "http://{host}:0/",
        "http://{host}:99999/",
        "http://hôte/",
        "http://[::1/",
    ],
)
async def test_ambiguous_url_is_refused(receiver: HttpEndpoint, url: str) -> None:
    with pytest.raises(RequestBlocked):
        await send(
            OutboundClient(ALLOW_PRIVATE), post(url.replace("{host}:", "127.0.0.1:").replace("{host}", "127.0.0.1"))
        )
    assert receiver.connections == 0


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirect_is_returned_and_not_followed(receiver: HttpEndpoint, status: str) -> None:
    async with run_endpoint() as target:
        receiver.response = http_response(b"", status, f"Location: {target.url}")
        response = await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
        assert response.status == int(status[:3])
        assert response.headers["location"] == target.url
        assert (receiver.connections, target.connections) == (1, 0)


async def test_proxies_of_the_environment_are_ignored(receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_endpoint() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
        assert (receiver.connections, proxy.connections) == (1, 0)


# -- requests


async def test_request_has_the_host_of_the_url_and_the_full_path(receiver: HttpEndpoint) -> None:
    client = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.1"]))
    await send(client, post(f"http://{NAME}:{receiver.port}/a/b?c=d&e", b"body", ("X-Own", "yes")))
    request = await receiver.wait_for_request()
    assert request.path == "/a/b?c=d&e"
    assert request.headers["host"] == f"{NAME}:{receiver.port}"
    assert request.headers["x-own"] == "yes"
    assert request.body == b"body"


async def test_header_with_a_line_break_is_refused(receiver: HttpEndpoint) -> None:
    with pytest.raises(ValueError, match="line break"):
        await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url, b"", ("X-Own", "a\r\nX-Other: b")))
    assert receiver.connections == 0


async def test_next_address_is_tried_after_a_failed_connection(receiver: HttpEndpoint) -> None:
    # Only the second address has a listener.
    client = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.9", "127.0.0.1"]))
    assert (await send(client, post(f"http://{NAME}:{receiver.port}/"))).status == 200


# -- TLS


@pytest.mark.parametrize(
    ("subject", "is_trusted", "is_valid"),
    [(NAME, True, True), (NAME, False, False), ("other.example", True, False), ("127.0.0.1", True, False)],
)
async def test_certificate_must_match_the_name_of_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: str, is_trusted: bool, is_valid: bool
) -> None:
    certificate, context = create_certificate(tmp_path, subject)
    server_names: list[str | None] = []
    context.sni_callback = lambda ssl_socket, name, ssl_context: server_names.append(name)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with run_endpoint(context) as endpoint:
        request = post(f"https://{NAME}.:{endpoint.port}/")
        client = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.1"]))
        if is_valid:
            assert (await send(client, request)).status == 200
        else:
            with pytest.raises(Unreachable, match="certificate"):
                await send(client, request)
            assert endpoint.requests == []
    assert server_names == [NAME]


async def test_request_is_not_sent_to_a_server_without_tls() -> None:
    received: list[bytes] = []

    async def serve_plain_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(65_536))
        writer.write(http_response())
        writer.close()

    async with tcp_server(serve_plain_http) as port:
        with pytest.raises(Unreachable):
            await send(OutboundClient(ALLOW_PRIVATE), post(f"https://127.0.0.1:{port}/", b"a secret"))
    assert b"POST" not in received[0]
    assert b"a secret" not in received[0]


def test_default_tls_context_checks_host_names() -> None:
    # The tests above rely on these defaults of the library.
    context = ssl.create_default_context()
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


# -- limits


async def test_silent_server_times_out(receiver: HttpEndpoint) -> None:
    receiver.may_respond.clear()
    with pytest.raises(TimedOut):
        await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url), 0.05)


async def test_server_that_stalls_in_its_response_times_out() -> None:
    done = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await done.wait()
        writer.close()

    async with tcp_server(stall) as port:
        with pytest.raises(TimedOut):
            await send(OutboundClient(ALLOW_PRIVATE), post(f"http://127.0.0.1:{port}/"), 0.05)
        done.set()


async def test_silent_resolver_times_out() -> None:
    async def silent(host: str, port: int, requester: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(TimedOut):
        await send(OutboundClient(PUBLIC_ONLY, resolve=silent), post(f"http://{NAME}/"), 0.05)


@pytest.mark.parametrize(
    "response",
    [
        http_response(b"x" * 1_025),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 2_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1_025,
    ],
)
async def test_body_larger_than_its_limit_is_refused(receiver: HttpEndpoint, response: bytes) -> None:
    receiver.response = response
    with pytest.raises(ResponseTooLarge) as refused:
        await send(OutboundClient(ALLOW_PRIVATE, ResponseLimits(body_bytes=1_024)), post(receiver.url))
    assert refused.value.status == 200


@pytest.mark.parametrize(
    "response",
    [
        http_response(b"", "200 OK", "X: " + "y" * 5_000),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" * 5_000,
    ],
)
async def test_head_larger_than_its_limit_is_refused(receiver: HttpEndpoint, response: bytes) -> None:
    receiver.response = response
    with pytest.raises(ResponseTooLarge):
        await send(OutboundClient(ALLOW_PRIVATE, ResponseLimits(head_bytes=4_096)), post(receiver.url))


async def test_body_at_its_limit_is_accepted(receiver: HttpEndpoint) -> None:
    receiver.response = http_response(b"x" * 1_024)
    assert (
        len((await send(OutboundClient(ALLOW_PRIVATE, ResponseLimits(body_bytes=1_024)), post(receiver.url))).body)
        == 1_024
    )


# -- responses


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok and more",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
async def test_every_framing_of_a_response_is_parsed(receiver: HttpEndpoint, response: bytes) -> None:
    receiver.response = response
    parsed = await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
    assert (parsed.status, parsed.body) == (200, b"ok")


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxxx",
        b"SSH-2.0-OpenSSH_9.9\r\n",
    ],
)
async def test_incomplete_or_invalid_response_is_refused(receiver: HttpEndpoint, response: bytes) -> None:
    receiver.response = response
    with pytest.raises(InvalidResponse):
        await send(OutboundClient(ALLOW_PRIVATE), post(receiver.url))


async def test_refused_connection_is_unreachable() -> None:
    async with run_endpoint() as stopped:
        url = stopped.url
    with pytest.raises(Unreachable):
        await send(OutboundClient(ALLOW_PRIVATE), post(url))


# -- resolver


async def test_unknown_name_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*rest: object, **more: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unreachable):
        await send(OutboundClient(PUBLIC_ONLY), post(f"http://{NAME}/"))


async def test_hanging_lookups_use_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    may_finish, lookups = threading.Event(), 0

    def look_up(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        nonlocal lookups
        lookups += 1
        may_finish.wait(20)
        return [(0, 0, 0, "", ("127.0.0.1", port)), (0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=2)
    waiting = [asyncio.create_task(resolver(f"h{n}.example", 80, f"zone-{n}")) for n in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert (len(done), lookups) == (0, 2), "the third lookup waits for a thread"
    waiting[0].cancel()
    done, _ = await asyncio.wait(waiting[1:], timeout=0.05)
    assert (len(done), lookups) == (0, 2), "a cancelled lookup keeps its thread until it ends"
    may_finish.set()
    assert await asyncio.gather(*waiting[1:]) == [["127.0.0.1"], ["127.0.0.1"]]
    assert lookups == 3


async def test_hanging_lookups_of_one_requester_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    may_finish, lookups = threading.Event(), []

    def look_up(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        lookups.append(host)
        if host.startswith("silent"):
            may_finish.wait(20)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=8)
    waiting = [asyncio.create_task(resolver(f"silent{n}.example", 80, "one")) for n in range(20)]
    assert await asyncio.wait_for(resolver("fine.example", 80, "other"), 10) == ["127.0.0.1"]
    assert sorted(lookups) == ["fine.example", "silent0.example", "silent1.example"]
    for task in waiting[2:]:
        task.cancel()
    may_finish.set()
    assert await asyncio.gather(*waiting[:2]) == [["127.0.0.1"]] * 2
    assert await asyncio.wait_for(resolver("silent3.example", 80, "one"), 10) == ["127.0.0.1"]


async def test_concurrent_lookups_of_a_name_are_shared_and_survive_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_finish, lookups = threading.Event(), []

    def look_up(host: str, port: int, **more: object) -> object:
        lookups.append(host)
        may_finish.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=4)
    waiting = [asyncio.create_task(resolver(NAME, 80, f"zone-{n % 3}")) for n in range(9)]
    await asyncio.wait(waiting, timeout=0.05)
    waiting[0].cancel()
    may_finish.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert lookups == [NAME]
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, *[Unreachable] * 8]
