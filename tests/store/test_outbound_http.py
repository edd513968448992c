"""Calls to the outside: to where they may go and nowhere else, within every bound, by the address that was judged."""

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


@pytest.fixture
async def receiver() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as listening:
        yield listening


def post(url: str, body: bytes = b"{}", *headers: tuple[str, str]) -> Request:
    return Request("POST", url, headers, body)


async def ask(outward: OutboundClient, request: Request, seconds: float = LIMIT) -> Response:
    return await outward.send(request, seconds)


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """For a server that does not speak HTTP as it should; its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


# -- where it does not go

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
"""Spellings of one address, all of which a C library takes for it."""
OTHERS = [
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


@pytest.mark.parametrize("host", LOOPBACK + OTHERS)
async def test_a_private_host_is_refused_however_it_is_spelt_and_nobody_is_connected_to(
    receiver: HttpEndpoint, host: str
) -> None:
    names = ScriptedResolver(["127.0.0.1"])
    with pytest.raises(RequestBlocked):
        await ask(OutboundClient(PUBLIC_ONLY, resolve=names), post(f"http://{host}:{receiver.port}/"))
    assert receiver.connections == 0
    assert names.lookups == [], "what is refused as it is spelt needs no resolver"


@pytest.mark.parametrize("host", LOOPBACK)
async def test_the_same_hosts_are_reached_where_private_addresses_are_allowed(
    receiver: HttpEndpoint, host: str
) -> None:
    # Without this, a listener that counts nothing would prove nothing.
    await ask(OutboundClient(ALLOW_PRIVATE), post(f"http://{host}:{receiver.port}/"))
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
async def test_a_name_is_refused_by_the_address_it_gives_and_by_any_one_of_them(
    receiver: HttpEndpoint, address: str
) -> None:
    for given in ([address], ["93.184.215.14", address], [address, "93.184.215.14"]):
        with pytest.raises(RequestBlocked) as refusal:
            await ask(
                OutboundClient(PUBLIC_ONLY, resolve=ScriptedResolver(given)), post(f"http://{NAME}:{receiver.port}/")
            )
        assert refusal.value.address == address
        assert address not in str(refusal.value), "callers are not told what the resolver of this network says"
    assert receiver.connections == 0


async def test_a_name_of_this_machine_is_looked_up_and_refused(receiver: HttpEndpoint) -> None:
    # Through the real resolver: a name that the judge of spellings lets pass.
    async def resolve(host: str, port: int, asker: str) -> Sequence[str]:
        return await Resolver()("localhost", port, asker)

    with pytest.raises(RequestBlocked):
        await ask(OutboundClient(PUBLIC_ONLY, resolve=resolve), post(f"http://{NAME}:{receiver.port}/"))
    assert receiver.connections == 0


async def test_a_name_that_gives_another_address_the_second_time_is_never_asked_a_second_time(
    receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, *rest: object, **more: object) -> object:
        raise AssertionError(f"{host} was looked up again, by whoever connects")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    only_this = SsrfGuard(lambda host: None, lambda address: None if address == "127.0.0.1" else "private")
    names = ScriptedResolver(["127.0.0.1"], ["127.0.0.2"])
    outward, request = OutboundClient(only_this, resolve=names), post(f"http://{NAME}:{receiver.port}/hook")
    assert (await ask(outward, request)).status == 200
    assert names.lookups == [(NAME, receiver.port)]
    with pytest.raises(RequestBlocked):
        await ask(outward, request)
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://{there}/",
        "file:///etc/passwd",
        "//{there}/",
        "http:///path",
        "http://user@{there}/",
        "http://user:word@{there}/",
        "http://good.example\\@{there}/",
        "http://{there}/a b",
        "http://{there}/\r\nX: y",
        "http://{there}:0/",
        "http://{there}:99999/",
        "http://hôte/",
        "http://[::1/",
    ],
)
async def test_a_url_that_two_readers_might_read_differently_is_not_called(receiver: HttpEndpoint, url: str) -> None:
    with pytest.raises(RequestBlocked):
        await ask(
            OutboundClient(ALLOW_PRIVATE), post(url.replace("{there}:", "127.0.0.1:").replace("{there}", "127.0.0.1"))
        )
    assert receiver.connections == 0


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_an_answer_and_is_not_followed(receiver: HttpEndpoint, status: str) -> None:
    async with run_endpoint() as elsewhere:
        receiver.response = http_response(b"", status, f"Location: {elsewhere.url}")
        answer = await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
        assert answer.status == int(status[:3])
        assert answer.headers["location"] == elsewhere.url
        assert (receiver.connections, elsewhere.connections) == (1, 0)


async def test_no_proxy_of_the_environment_is_used(receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_endpoint() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
        assert (receiver.connections, proxy.connections) == (1, 0)


# -- what is sent


async def test_the_host_header_is_the_urls_and_the_path_keeps_its_query(receiver: HttpEndpoint) -> None:
    outward = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.1"]))
    await ask(outward, post(f"http://{NAME}:{receiver.port}/a/b?c=d&e", b"body", ("X-Own", "yes")))
    request = await receiver.wait_for_request()
    assert request.path == "/a/b?c=d&e"
    assert request.headers["host"] == f"{NAME}:{receiver.port}"
    assert request.headers["x-own"] == "yes"
    assert request.body == b"body"


async def test_a_header_cannot_become_two(receiver: HttpEndpoint) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url, b"", ("X-Own", "a\r\nX-Other: b")))
    assert receiver.connections == 0


async def test_an_address_that_cannot_be_connected_to_gives_way_to_the_next(receiver: HttpEndpoint) -> None:
    # Nobody listens on the first: only 127.0.0.1 does.
    outward = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.9", "127.0.0.1"]))
    assert (await ask(outward, post(f"http://{NAME}:{receiver.port}/"))).status == 200


# -- TLS


@pytest.mark.parametrize(
    ("holder", "trusted", "believed"),
    [(NAME, True, True), (NAME, False, False), ("other.example", True, False), ("127.0.0.1", True, False)],
)
async def test_a_certificate_must_hold_for_the_name_of_the_url_whatever_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str, trusted: bool, believed: bool
) -> None:
    public, context = create_certificate(tmp_path, holder)
    told: list[str | None] = []
    context.sni_callback = lambda sock, name, own: told.append(name)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
    async with run_endpoint(context) as there:
        request = post(f"https://{NAME}.:{there.port}/")
        outward = OutboundClient(ALLOW_PRIVATE, resolve=ScriptedResolver(["127.0.0.1"]))
        if believed:
            assert (await ask(outward, request)).status == 200
        else:
            with pytest.raises(Unreachable, match="certificate"):
                await ask(outward, request)
            assert there.requests == []
    assert told == [NAME]


async def test_a_server_that_speaks_no_tls_is_told_nothing() -> None:
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65_536))
        writer.write(http_response())
        writer.close()

    async with listening(plain) as port:
        with pytest.raises(Unreachable):
            await ask(OutboundClient(ALLOW_PRIVATE), post(f"https://127.0.0.1:{port}/", b"a secret"))
    assert b"POST" not in heard[0]
    assert b"a secret" not in heard[0]


def test_the_context_checks_names() -> None:
    # What the tests above rely on, should the library's default ever change.
    made = ssl.create_default_context()
    assert (made.check_hostname, made.verify_mode) == (True, ssl.CERT_REQUIRED)


# -- bounds


async def test_a_server_that_never_answers_is_given_up_in_time(receiver: HttpEndpoint) -> None:
    receiver.may_respond.clear()
    with pytest.raises(TimedOut):
        await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url), 0.05)


async def test_a_server_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await over.wait()
        writer.close()

    async with listening(drip) as port:
        with pytest.raises(TimedOut):
            await ask(OutboundClient(ALLOW_PRIVATE), post(f"http://127.0.0.1:{port}/"), 0.05)
        over.set()


async def test_a_resolver_that_never_answers_is_given_up_in_time() -> None:
    async def silent(host: str, port: int, asker: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(TimedOut):
        await ask(OutboundClient(PUBLIC_ONLY, resolve=silent), post(f"http://{NAME}/"), 0.05)


@pytest.mark.parametrize(
    "answer",
    [
        http_response(b"x" * 1_025),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 2_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1_025,
    ],
)
async def test_a_body_beyond_its_bound_is_not_read_to_its_end(receiver: HttpEndpoint, answer: bytes) -> None:
    receiver.response = answer
    with pytest.raises(ResponseTooLarge) as excess:
        await ask(OutboundClient(ALLOW_PRIVATE, ResponseLimits(body_bytes=1_024)), post(receiver.url))
    assert excess.value.status == 200


@pytest.mark.parametrize(
    "answer",
    [
        http_response(b"", "200 OK", "X: " + "y" * 5_000),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" * 5_000,
    ],
)
async def test_a_head_beyond_its_bound_is_not_read_to_its_end(receiver: HttpEndpoint, answer: bytes) -> None:
    receiver.response = answer
    with pytest.raises(ResponseTooLarge):
        await ask(OutboundClient(ALLOW_PRIVATE, ResponseLimits(head_bytes=4_096)), post(receiver.url))


async def test_a_body_at_its_bound_is_whole(receiver: HttpEndpoint) -> None:
    receiver.response = http_response(b"x" * 1_024)
    assert (
        len((await ask(OutboundClient(ALLOW_PRIVATE, ResponseLimits(body_bytes=1_024)), post(receiver.url))).body)
        == 1_024
    )


# -- answers


@pytest.mark.parametrize(
    "answer",
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
async def test_every_framing_of_an_answer_is_understood(receiver: HttpEndpoint, answer: bytes) -> None:
    receiver.response = answer
    got = await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url))
    assert (got.status, got.body) == (200, b"ok")


@pytest.mark.parametrize(
    "answer",
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
async def test_what_is_no_whole_answer_is_none(receiver: HttpEndpoint, answer: bytes) -> None:
    receiver.response = answer
    with pytest.raises(InvalidResponse):
        await ask(OutboundClient(ALLOW_PRIVATE), post(receiver.url))


async def test_nobody_there_is_unreachable() -> None:
    async with run_endpoint() as gone:
        url = gone.url
    with pytest.raises(Unreachable):
        await ask(OutboundClient(ALLOW_PRIVATE), post(url))


# -- the resolver


async def test_a_name_that_is_none_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*rest: object, **more: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unreachable):
        await ask(OutboundClient(PUBLIC_ONLY), post(f"http://{NAME}/"))


async def test_lookups_that_hang_hold_only_their_own_threads_and_end_with_the_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, asked = threading.Event(), 0

    def look_up(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        nonlocal asked
        asked += 1
        silent.wait(20)
        return [(0, 0, 0, "", ("127.0.0.1", port)), (0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=2)
    waiting = [asyncio.create_task(resolver(f"h{n}.example", 80, f"zone-{n}")) for n in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert (len(done), asked) == (0, 2), "the third waits for a thread"
    waiting[0].cancel()
    done, _ = await asyncio.wait(waiting[1:], timeout=0.05)
    assert (len(done), asked) == (0, 2), "one who gives up frees no thread before the lookup has ended"
    silent.set()
    assert await asyncio.gather(*waiting[1:]) == [["127.0.0.1"], ["127.0.0.1"]]
    assert asked == 3


async def test_one_askers_silent_names_leave_the_others_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, asked = threading.Event(), []

    def look_up(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host.startswith("silent"):
            silent.wait(20)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=8)
    waiting = [asyncio.create_task(resolver(f"silent{n}.example", 80, "one")) for n in range(20)]
    assert await asyncio.wait_for(resolver("fine.example", 80, "other"), 10) == ["127.0.0.1"]
    assert sorted(asked) == ["fine.example", "silent0.example", "silent1.example"]
    for task in waiting[2:]:
        task.cancel()
    silent.set()
    assert await asyncio.gather(*waiting[:2]) == [["127.0.0.1"]] * 2
    assert await asyncio.wait_for(resolver("silent3.example", 80, "one"), 10) == ["127.0.0.1"]


async def test_a_name_is_looked_up_once_for_all_who_wait_for_it_and_one_who_gives_up_takes_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, asked = threading.Event(), []

    def look_up(host: str, port: int, **more: object) -> object:
        asked.append(host)
        goes_on.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Resolver(lookups_max=4)
    waiting = [asyncio.create_task(resolver(NAME, 80, f"zone-{n % 3}")) for n in range(9)]
    await asyncio.wait(waiting, timeout=0.05)
    waiting[0].cancel()
    goes_on.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert asked == [NAME]
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, *[Unreachable] * 8]
