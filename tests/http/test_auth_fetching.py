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
    Bench,
    Clock,
    IssuerServer,
    Signer,
    bearer,
    claims_of,
    fetched,
    http_answer,
    issuer_server,
)

GOOD = Signer("k1")
KEYS = json.dumps({"keys": [GOOD.jwk()]}).encode()


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with issuer_server() as server:
        yield server


async def test_keys_are_fetched_once_and_serve_until_they_are_old(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    for n in range(5):
        await bench.verify(signer, sub=f"user-{n}")
    bench.ticks.now += 599
    await bench.verify(signer)
    assert fetched(issuer) == 1
    bench.ticks.now += 1
    await bench.verify(signer)
    assert fetched(issuer) == 2


async def test_keys_are_fetched_at_sts_url_if_that_is_set(issuer: IssuerServer) -> None:
    signer = Signer("k1")
    bench = Bench(issuer, issuer_url="https://issuer.invalid/", sts_url=issuer.url + "/base/")
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    assert issuer.requests == ["/base/.well-known/jwks.json?zone_id=z1"]


async def test_a_zone_with_colons_is_asked_for_in_one_query_value(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer, zone_id="a:b.c_d-e")
    assert issuer.requests == ["/.well-known/jwks.json?zone_id=a%3Ab.c_d-e"]


async def test_what_is_wrong_without_a_key_asks_nobody(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
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
        assert (await bench.refusal(signer, **change)).code == "invalid_token"
    assert fetched(issuer) == 0


async def test_a_rotated_key_is_found_by_asking_again(issuer: IssuerServer) -> None:
    old, new, bench = Signer("old"), Signer("new"), Bench(issuer)
    issuer.keys = [old.jwk()]
    await bench.verify(old)
    issuer.keys = [old.jwk(), new.jwk()]
    bench.ticks.now += 10
    await bench.verify(new)
    await bench.verify(old)
    assert fetched(issuer) == 2
    issuer.keys = [new.jwk()]
    bench.ticks.now += 600
    await bench.verify(new)
    assert (await bench.refusal(old)).code == "invalid_token"


async def test_unknown_keys_cause_one_question_in_ten_seconds(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    for n in range(20):
        assert (await bench.refusal(Signer(f"unknown-{n}"))).code == "invalid_token"
    assert fetched(issuer) == 1
    bench.ticks.now += 9.9
    await bench.refusal(Signer("unknown"))
    assert fetched(issuer) == 1
    bench.ticks.now += 0.1
    for n in range(20):
        await bench.refusal(Signer(f"unknown-{n}"))
    assert fetched(issuer) == 2


async def test_many_who_wait_for_the_same_keys_ask_once(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    issuer.open.clear()
    waiting = [asyncio.create_task(bench.verify(signer, sub=f"user-{n}")) for n in range(20)]
    await issuer.asked.wait()
    issuer.open.set()
    callers = await asyncio.gather(*waiting)
    assert {caller.subject for caller in callers} == {f"user-{n}" for n in range(20)}
    assert fetched(issuer) == 1


async def test_one_who_hangs_up_does_not_take_the_keys_from_the_others(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    issuer.open.clear()
    first, second = (asyncio.create_task(bench.verify(signer, sub=name)) for name in ("first", "second"))
    await issuer.asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    issuer.open.set()
    assert (await second).subject == "second"
    assert fetched(issuer) == 1


async def test_closing_answers_those_who_wait(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.open.clear()
    waiting = asyncio.create_task(bench.verify(signer))
    await issuer.asked.wait()
    await bench.judge.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_an_issuer_that_is_away_fails_closed_and_says_when_to_try_again(issuer: IssuerServer) -> None:
    signer = Signer("k1")
    async with issuer_server() as gone:
        bench = Bench(issuer, issuer_url=gone.url)
    refusal = await bench.refusal(signer)
    assert isinstance(refusal, Unavailable)
    assert (refusal.code, refusal.retry_after) == ("issuer_unavailable", 10)
    bench.ticks.now += 7.5
    assert (await bench.refusal(signer)).retry_after == 3


async def test_an_issuer_that_comes_back_is_asked_again(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys, issuer.answer = [signer.jwk()], http_answer(b"", "500 Internal Server Error")
    assert (await bench.refusal(signer)).code == "issuer_unavailable"
    issuer.answer = None
    assert (await bench.refusal(signer)).code == "issuer_unavailable"
    assert fetched(issuer) == 1
    bench.ticks.now += 10
    await bench.verify(signer)


async def test_known_keys_outlive_the_issuer_by_an_hour_and_no_more(issuer: IssuerServer) -> None:
    signer, bench = Signer("k1"), Bench(issuer)
    issuer.keys = [signer.jwk()]
    await bench.verify(signer)
    issuer.answer = http_answer(b"", "503 Service Unavailable")
    bench.ticks.now += 3599
    for n in range(5):
        await bench.verify(signer, sub=f"user-{n}")
    assert fetched(issuer) == 2
    bench.ticks.now += 1
    assert (await bench.refusal(signer)).code == "issuer_unavailable"
    issuer.answer = None
    bench.ticks.now += 10
    await bench.verify(signer)


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(b"", "302 Found", "Location: /elsewhere"),
        http_answer(b"", "307 Temporary Redirect", "Location: /elsewhere"),
        http_answer(KEYS, "201 Created"),
        http_answer(KEYS, "500 Internal Server Error"),
        http_answer(KEYS, "401 Unauthorized"),
        http_answer(KEYS[:-3] + b" " * 256 * 1024 + KEYS[-3:]),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        http_answer(KEYS[:-1]),
        http_answer(KEYS)[:-1],
        http_answer(b""),
        http_answer(b"[]"),
        http_answer(b'{"keys": {}}'),
        http_answer(b'{"keys": null}'),
        http_answer(b'{"keys": [' + b"[" * 100_000),
        http_answer(b"\xff\xfe"),
        http_answer(b"<html>"),
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxxx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_an_answer_that_is_no_key_set_is_no_answer(issuer: IssuerServer, answer: bytes) -> None:
    issuer.answer = answer
    refusal = await Bench(issuer).refusal(GOOD)
    assert (refusal.status, refusal.code) == (503, "issuer_unavailable")
    assert fetched(issuer) == 1, "a redirect must not be followed"


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(KEYS + b" " * 200 * 1024),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(KEYS), KEYS),
        b"HTTP/1.0 200 OK\r\n\r\n" + KEYS,
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%s" % (len(KEYS), KEYS),
    ],
)
async def test_every_framing_of_an_answer_is_understood(issuer: IssuerServer, answer: bytes) -> None:
    issuer.answer = answer
    assert (await Bench(issuer).verify(GOOD)).subject == "user-1"


@pytest.mark.parametrize("answer", [None, http_answer(b"", "404 Not Found"), http_answer(b"x", "410 Gone")])
async def test_an_issuer_that_has_no_keys_for_a_zone_makes_its_tokens_invalid(
    issuer: IssuerServer, answer: bytes | None
) -> None:
    bench = Bench(issuer)
    issuer.keys = [GOOD.jwk()]
    await bench.verify(GOOD)
    issuer.keys, issuer.answer = [], answer
    bench.ticks.now += 600
    refusal = await bench.refusal(GOOD)
    assert (refusal.status, refusal.code) == (401, "invalid_token")


async def test_a_slow_issuer_is_given_up_in_time(issuer: IssuerServer) -> None:
    issuer.open.clear()
    refusal = await Bench(issuer, jwks_timeout_seconds=0.05).refusal(GOOD)
    assert refusal.code == "issuer_unavailable"


async def test_an_answer_that_never_ends_is_given_up_in_time() -> None:
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await over.wait()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    judge = Authenticator(AuthSettings(issuer_url=url, jwks_timeout_seconds=0.05), None, Clock())
    try:
        with pytest.raises(Unavailable):
            await judge.verify_token(bearer(GOOD.sign(claims_of(url))))
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_a_flood_of_invented_zones_neither_hammers_the_issuer_nor_washes_out_a_real_one(
    issuer: IssuerServer,
) -> None:
    bench, forger = Bench(issuer, jwks_cache_max=8), Signer("k1")
    issuer.keys = [GOOD.jwk()]
    for zone in ("real-1", "real-2"):
        await bench.verify(GOOD, zone_id=zone)
    answers = [await bench.refusal(forger, zone_id=f"invented-{n}") for n in range(50)]
    assert {refusal.status for refusal in answers} == {401, 503}
    assert fetched(issuer) == 8
    bench.ticks.now += 1
    for n in range(50):
        await bench.refusal(forger, zone_id=f"again-{n}")
    # Eight at once and then ten a second, of which the bucket keeps eight.
    assert fetched(issuer) == 16
    for zone in ("real-1", "real-2"):
        await bench.verify(GOOD, zone_id=zone)
    assert fetched(issuer) == 16


async def test_the_cache_of_key_sets_is_bounded(issuer: IssuerServer) -> None:
    bench = Bench(issuer, jwks_cache_max=2)
    issuer.keys = [GOOD.jwk()]
    for zone in ("z1", "z2", "z3"):
        bench.ticks.now += 1
        await bench.verify(GOOD, zone_id=zone)
    for zone in ("z3", "z2"):
        await bench.verify(GOOD, zone_id=zone)
    assert fetched(issuer) == 3
    await bench.verify(GOOD, zone_id="z1")
    assert fetched(issuer) == 4


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
    issuer.answer = http_answer(b"s3cret", "500 Oh")
    token = GOOD.sign(claims_of(issuer.url))
    with pytest.raises(Unavailable):
        await Bench(issuer).judge.verify_token(bearer(token))
    assert issuer.url in caplog.text
    assert "s3cret" not in caplog.text
    assert not any(part in caplog.text for part in token.split("."))
