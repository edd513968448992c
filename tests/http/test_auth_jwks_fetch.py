"""External issuers: when their keys are asked for, for how long they serve, and what happens without them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quarterdeck.core.errors import Unavailable
from quarterdeck.http.auth import Authenticator, AuthSettings
from tests.http.auth_support import (
    NOW,
    AuthenticatorHarness,
    FakeClock,
    IssuerServer,
    TokenSigner,
    authorization_header,
    build_claims,
    fetch_count,
    http_response,
    run_issuer,
)

GOOD = TokenSigner("k1")
KEYS = json.dumps({"keys": [GOOD.jwk()]}).encode()


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with run_issuer() as server:
        yield server


async def test_keys_are_fetched_once_and_serve_until_they_are_old(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    for n in range(5):
        await bench.verify(signer, sub=f"user-{n}")
    bench.monotonic_clock.now += 599
    await bench.verify(signer)
    assert fetch_count(issuer) == 1
    bench.monotonic_clock.now += 1
    await bench.verify(signer)
    assert fetch_count(issuer) == 2


async def test_keys_are_fetched_at_sts_url_if_that_is_set(issuer: IssuerServer) -> None:
    signer = TokenSigner("k1")
    bench = AuthenticatorHarness(issuer, issuer_url="https://issuer.invalid/", sts_url=issuer.url + "/base/")
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    assert issuer.requests == ["/base/.well-known/jwks.json?zone_id=z1"]


async def test_a_zone_with_colons_is_asked_for_in_one_query_value(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer, zone_id="a:b.c_d-e")
    assert issuer.requests == ["/.well-known/jwks.json?zone_id=a%3Ab.c_d-e"]


async def test_what_is_wrong_without_a_key_asks_nobody(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    wrong: list[dict[str, object]] = [
        {"iss": "http://127.0.0.1:9/"},
        {"aud": "another"},
        {"exp": NOW - 60},
        {"zone_id": "../x"},
        {"zone_id": "z1&zone_id=z2"},
        {"zone_id": "z1\r\nHost: x"},
        {"client_id": ""},
    ]
    for change in wrong:
        assert (await bench.verify_refused(signer, **change)).code == "invalid_token"
    assert fetch_count(issuer) == 0


async def test_a_rotated_key_is_found_by_asking_again(issuer: IssuerServer) -> None:
    old, new, bench = TokenSigner("old"), TokenSigner("new"), AuthenticatorHarness(issuer)
    issuer.keys = [old.jwk()]
    await bench.verify(old)
    issuer.keys = [old.jwk(), new.jwk()]
    bench.monotonic_clock.now += 10
    await bench.verify(new)
    await bench.verify(old)
    assert fetch_count(issuer) == 2
    issuer.keys = [new.jwk()]
    bench.monotonic_clock.now += 600
    await bench.verify(new)
    assert (await bench.verify_refused(old)).code == "invalid_token"


async def test_unknown_keys_cause_one_question_in_ten_seconds(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    for n in range(20):
        assert (await bench.verify_refused(TokenSigner(f"unknown-{n}"))).code == "invalid_token"
    assert fetch_count(issuer) == 1
    bench.monotonic_clock.now += 9.9
    await bench.verify_refused(TokenSigner("unknown"))
    assert fetch_count(issuer) == 1
    bench.monotonic_clock.now += 0.1
    for n in range(20):
        await bench.verify_refused(TokenSigner(f"unknown-{n}"))
    assert fetch_count(issuer) == 2


async def test_many_who_wait_for_the_same_keys_ask_once(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    issuer.may_respond.clear()
    waiting = [asyncio.create_task(bench.verify(signer, sub=f"user-{n}")) for n in range(20)]
    await issuer.request_received.wait()
    issuer.may_respond.set()
    callers = await asyncio.gather(*waiting)
    assert {caller.subject for caller in callers} == {f"user-{n}" for n in range(20)}
    assert fetch_count(issuer) == 1


async def test_one_who_hangs_up_does_not_take_the_keys_from_the_others(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    issuer.may_respond.clear()
    first, second = (asyncio.create_task(bench.verify(signer, sub=name)) for name in ("first", "second"))
    await issuer.request_received.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    issuer.may_respond.set()
    assert (await second).subject == "second"
    assert fetch_count(issuer) == 1


async def test_closing_answers_those_who_wait(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.may_respond.clear()
    waiting = asyncio.create_task(bench.verify(signer))
    await issuer.request_received.wait()
    await bench.authenticator.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_an_issuer_that_is_away_fails_closed_and_says_when_to_try_again(issuer: IssuerServer) -> None:
    signer = TokenSigner("k1")
    async with run_issuer() as gone:
        bench = AuthenticatorHarness(issuer, issuer_url=gone.url)
    refusal = await bench.verify_refused(signer)
    assert isinstance(refusal, Unavailable)
    assert (refusal.code, refusal.retry_after) == ("issuer_unavailable", 10)
    bench.monotonic_clock.now += 7.5
    assert (await bench.verify_refused(signer)).retry_after == 3


async def test_an_issuer_that_comes_back_is_asked_again(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys, issuer.raw_response = [signer.jwk()], http_response(b"", "500 Internal Server Error")
    assert (await bench.verify_refused(signer)).code == "issuer_unavailable"
    issuer.raw_response = None
    assert (await bench.verify_refused(signer)).code == "issuer_unavailable"
    assert fetch_count(issuer) == 1
    bench.monotonic_clock.now += 10
    await bench.verify(signer)


async def test_known_keys_outlive_the_issuer_by_an_hour_and_no_more(issuer: IssuerServer) -> None:
    signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    issuer.raw_response = http_response(b"", "503 Service Unavailable")
    bench.monotonic_clock.now += 3599
    for n in range(5):
        await bench.verify(signer, sub=f"user-{n}")
    assert fetch_count(issuer) == 2
    bench.monotonic_clock.now += 1
    assert (await bench.verify_refused(signer)).code == "issuer_unavailable"
    issuer.raw_response = None
    bench.monotonic_clock.now += 10
    await bench.verify(signer)


@pytest.mark.parametrize(
    "answer",
    [
        http_response(b"", "302 Found", "Location: /elsewhere"),
        http_response(b"", "307 Temporary Redirect", "Location: /elsewhere"),
        http_response(KEYS, "201 Created"),
        http_response(KEYS, "500 Internal Server Error"),
        http_response(KEYS, "401 Unauthorized"),
        http_response(KEYS[:-3] + b" " * 256 * 1024 + KEYS[-3:]),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        http_response(KEYS[:-1]),
        http_response(KEYS)[:-1],
        http_response(b""),
        http_response(b"[]"),
        http_response(b'{"keys": {}}'),
        http_response(b'{"keys": null}'),
        http_response(b'{"keys": [' + b"[" * 100_000),
        http_response(b"\xff\xfe"),
        http_response(b"<html>"),
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxxx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_an_answer_that_is_no_key_set_is_no_answer(issuer: IssuerServer, answer: bytes) -> None:
    issuer.raw_response = answer
    refusal = await AuthenticatorHarness(issuer).verify_refused(GOOD)
    assert (refusal.status, refusal.code) == (503, "issuer_unavailable")
    assert fetch_count(issuer) == 1, "a redirect must not be followed"


@pytest.mark.parametrize(
    "answer",
    [
        http_response(KEYS + b" " * 200 * 1024),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(KEYS), KEYS),
        b"HTTP/1.0 200 OK\r\n\r\n" + KEYS,
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%s" % (len(KEYS), KEYS),
    ],
)
async def test_every_framing_of_an_answer_is_understood(issuer: IssuerServer, answer: bytes) -> None:
    issuer.raw_response = answer
    assert (await AuthenticatorHarness(issuer).verify(GOOD)).subject == "user-1"


@pytest.mark.parametrize("answer", [None, http_response(b"", "404 Not Found"), http_response(b"x", "410 Gone")])
async def test_an_issuer_that_has_no_keys_for_a_zone_makes_its_tokens_invalid(
    issuer: IssuerServer, answer: bytes | None
) -> None:
    bench = AuthenticatorHarness(issuer)
    issuer.keys = [GOOD.jwk()]
    await bench.verify(GOOD)
    issuer.keys, issuer.raw_response = [], answer
    bench.monotonic_clock.now += 600
    refusal = await bench.verify_refused(GOOD)
    assert (refusal.status, refusal.code) == (401, "invalid_token")


async def test_a_slow_issuer_is_given_up_in_time(issuer: IssuerServer) -> None:
    issuer.may_respond.clear()
    refusal = await AuthenticatorHarness(issuer, jwks_timeout_seconds=0.05).verify_refused(GOOD)
    assert refusal.code == "issuer_unavailable"


async def test_an_answer_that_never_ends_is_given_up_in_time() -> None:
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await over.wait()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    judge = Authenticator(AuthSettings(issuer_url=url, jwks_timeout_seconds=0.05), None, FakeClock())
    try:
        with pytest.raises(Unavailable):
            await judge.verify_token(authorization_header(GOOD.sign(build_claims(url))))
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_a_flood_of_invented_zones_neither_hammers_the_issuer_nor_washes_out_a_real_one(
    issuer: IssuerServer,
) -> None:
    bench, forger = AuthenticatorHarness(issuer, jwks_cache_max=8), TokenSigner("k1")
    issuer.keys = [GOOD.jwk()]
    for zone in ("real-1", "real-2"):
        await bench.verify(GOOD, zone_id=zone)
    answers = [await bench.verify_refused(forger, zone_id=f"invented-{n}") for n in range(50)]
    assert {refusal.status for refusal in answers} == {401, 503}
    assert fetch_count(issuer) == 8
    bench.monotonic_clock.now += 1
    for n in range(50):
        await bench.verify_refused(forger, zone_id=f"again-{n}")
    # Eight at once and then ten a second, of which the bucket keeps eight.
    assert fetch_count(issuer) == 16
    for zone in ("real-1", "real-2"):
        await bench.verify(GOOD, zone_id=zone)
    assert fetch_count(issuer) == 16


async def test_the_cache_of_key_sets_is_bounded(issuer: IssuerServer) -> None:
    bench = AuthenticatorHarness(issuer, jwks_cache_max=2)
    issuer.keys = [GOOD.jwk()]
    for zone in ("z1", "z2", "z3"):
        bench.monotonic_clock.now += 1
        await bench.verify(GOOD, zone_id=zone)
    for zone in ("z3", "z2"):
        await bench.verify(GOOD, zone_id=zone)
    assert fetch_count(issuer) == 3
    await bench.verify(GOOD, zone_id="z1")
    assert fetch_count(issuer) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer_url": "issuer"},
        {"issuer_url": "ftp://issuer"},
        {"issuer_url": "file:///etc/passwd"},
        {"issuer_url": "http://"},
        {"issuer_url": "http://host:99999"},
        {"issuer_url": "http://user:pw@host"},
        {"issuer_url": "http://host/?a=b"},
        {"issuer_url": "http://host/#x"},
        {"issuer_url": "http://ho st"},
        {"issuer_url": "http://host\r\nX: y"},
        {"issuer_url": "http://hôte"},
        {"issuer_url": "urn:x", "sts_url": "gopher://x"},
        {"admin_issuer": "urn:x"},
    ],
)
def test_an_address_that_could_never_be_asked_is_refused_at_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(ISSUER_URL|STS_URL|QD_ADMIN_ISSUER) .*\.$"):
        Authenticator(AuthSettings(**settings), None)


async def test_the_log_of_a_failure_names_the_issuer_and_no_token(
    issuer: IssuerServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.raw_response = http_response(b"s3cret", "500 Oh")
    token = GOOD.sign(build_claims(issuer.url))
    with pytest.raises(Unavailable):
        await AuthenticatorHarness(issuer).authenticator.verify_token(authorization_header(token))
    assert issuer.url in caplog.text
    assert "s3cret" not in caplog.text
    assert not any(part in caplog.text for part in token.split("."))
