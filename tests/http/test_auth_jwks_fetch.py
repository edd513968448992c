"""JWKS of external issuers: when keys are fetched, how long they are cached, and what happens without them."""

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

SIGNER = TokenSigner("k1")
JWKS = json.dumps({"keys": [SIGNER.jwk()]}).encode()


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with run_issuer() as server:
        yield server


async def test_keys_are_cached_for_600_seconds(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    for n in range(5):
        await harness.verify(signer, sub=f"user-{n}")
    harness.monotonic_clock.now += 599
    await harness.verify(signer)
    assert fetch_count(issuer) == 1
    harness.monotonic_clock.now += 1
    await harness.verify(signer)
    assert fetch_count(issuer) == 2


async def test_keys_are_fetched_from_sts_url_if_set(issuer: IssuerServer) -> None:
    signer = TokenSigner("k1")
    harness = AuthenticatorHarness(issuer, issuer_url="https://issuer.invalid/", sts_url=issuer.url + "/base/")
    issuer.keys = [signer.jwk()]
    await harness.verify(signer)
    assert issuer.requests == ["/base/.well-known/jwks.json?zone_id=z1"]


async def test_zone_id_is_percent_encoded_in_the_jwks_query(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await harness.verify(signer, zone_id="a:b.c_d-e")
    assert issuer.requests == ["/.well-known/jwks.json?zone_id=a%3Ab.c_d-e"]


async def test_invalid_claims_are_refused_without_a_fetch(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    invalid_claims: list[dict[str, object]] = [
        {"iss": "http://127.0.0.1:9/"},
        {"aud": "another"},
        {"exp": NOW - 60},
        {"zone_id": "../x"},
        {"zone_id": "z1&zone_id=z2"},
        {"zone_id": "z1\r\nHost: x"},
        {"client_id": ""},
    ]
    for change in invalid_claims:
        assert (await harness.verify_refused(signer, **change)).code == "invalid_token"
    assert fetch_count(issuer) == 0


async def test_rotated_key_is_found_by_another_fetch(issuer: IssuerServer) -> None:
    old, new, harness = TokenSigner("old"), TokenSigner("new"), AuthenticatorHarness(issuer)
    issuer.keys = [old.jwk()]
    await harness.verify(old)
    issuer.keys = [old.jwk(), new.jwk()]
    harness.monotonic_clock.now += 10
    await harness.verify(new)
    await harness.verify(old)
    assert fetch_count(issuer) == 2
    issuer.keys = [new.jwk()]
    harness.monotonic_clock.now += 600
    await harness.verify(new)
    assert (await harness.verify_refused(old)).code == "invalid_token"


async def test_unknown_keys_cause_one_fetch_in_ten_seconds(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await harness.verify(signer)
    for n in range(20):
        assert (await harness.verify_refused(TokenSigner(f"unknown-{n}"))).code == "invalid_token"
    assert fetch_count(issuer) == 1
    harness.monotonic_clock.now += 9.9
    await harness.verify_refused(TokenSigner("unknown"))
    assert fetch_count(issuer) == 1
    harness.monotonic_clock.now += 0.1
    for n in range(20):
        await harness.verify_refused(TokenSigner(f"unknown-{n}"))
    assert fetch_count(issuer) == 2


async def test_concurrent_verifications_share_one_fetch(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    issuer.may_respond.clear()
    waiting = [asyncio.create_task(harness.verify(signer, sub=f"user-{n}")) for n in range(20)]
    await issuer.request_received.wait()
    issuer.may_respond.set()
    callers = await asyncio.gather(*waiting)
    assert {caller.subject for caller in callers} == {f"user-{n}" for n in range(20)}
    assert fetch_count(issuer) == 1


async def test_canceled_verification_does_not_cancel_the_shared_fetch(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    issuer.may_respond.clear()
    first, second = (asyncio.create_task(harness.verify(signer, sub=name)) for name in ("first", "second"))
    await issuer.request_received.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    issuer.may_respond.set()
    assert (await second).subject == "second"
    assert fetch_count(issuer) == 1


async def test_close_fails_waiting_verifications_with_unavailable(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.may_respond.clear()
    waiting = asyncio.create_task(harness.verify(signer))
    await issuer.request_received.wait()
    await harness.authenticator.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_unreachable_issuer_fails_closed_with_retry_after(issuer: IssuerServer) -> None:
    signer = TokenSigner("k1")
    async with run_issuer() as gone:
        harness = AuthenticatorHarness(issuer, issuer_url=gone.url)
    refusal = await harness.verify_refused(signer)
    assert isinstance(refusal, Unavailable)
    assert (refusal.code, refusal.retry_after) == ("issuer_unavailable", 10)
    harness.monotonic_clock.now += 7.5
    assert (await harness.verify_refused(signer)).retry_after == 3


async def test_failed_fetch_is_retried_after_ten_seconds(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys, issuer.raw_response = [signer.jwk()], http_response(b"", "500 Internal Server Error")
    assert (await harness.verify_refused(signer)).code == "issuer_unavailable"
    issuer.raw_response = None
    assert (await harness.verify_refused(signer)).code == "issuer_unavailable"
    assert fetch_count(issuer) == 1
    harness.monotonic_clock.now += 10
    await harness.verify(signer)


async def test_cached_keys_are_used_for_one_hour_while_the_issuer_is_down(issuer: IssuerServer) -> None:
    signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    await harness.verify(signer)
    issuer.raw_response = http_response(b"", "503 Service Unavailable")
    harness.monotonic_clock.now += 3599
    for n in range(5):
        await harness.verify(signer, sub=f"user-{n}")
    assert fetch_count(issuer) == 2
    harness.monotonic_clock.now += 1
    assert (await harness.verify_refused(signer)).code == "issuer_unavailable"
    issuer.raw_response = None
    harness.monotonic_clock.now += 10
    await harness.verify(signer)


@pytest.mark.parametrize(
    "response",
    [
        http_response(b"", "302 Found", "Location: /elsewhere"),
        http_response(b"", "307 Temporary Redirect", "Location: /elsewhere"),
        http_response(JWKS, "201 Created"),
        http_response(JWKS, "500 Internal Server Error"),
        http_response(JWKS, "401 Unauthorized"),
        http_response(JWKS[:-3] + b" " * 256 * 1024 + JWKS[-3:]),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        http_response(JWKS[:-1]),
        http_response(JWKS)[:-1],
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
async def test_invalid_jwks_response_is_issuer_unavailable(issuer: IssuerServer, response: bytes) -> None:
    issuer.raw_response = response
    refusal = await AuthenticatorHarness(issuer).verify_refused(SIGNER)
    assert (refusal.status, refusal.code) == (503, "issuer_unavailable")
    assert fetch_count(issuer) == 1, "a redirect must not be followed"


@pytest.mark.parametrize(
    "response",
    [
        http_response(JWKS + b" " * 200 * 1024),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(JWKS), JWKS),
        b"HTTP/1.0 200 OK\r\n\r\n" + JWKS,
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%s" % (len(JWKS), JWKS),
    ],
)
async def test_every_http_framing_of_a_jwks_response_is_accepted(issuer: IssuerServer, response: bytes) -> None:
    issuer.raw_response = response
    assert (await AuthenticatorHarness(issuer).verify(SIGNER)).subject == "user-1"


@pytest.mark.parametrize("response", [None, http_response(b"", "404 Not Found"), http_response(b"x", "410 Gone")])
async def test_tokens_are_invalid_if_the_issuer_has_no_keys_for_the_zone(
    issuer: IssuerServer, response: bytes | None
) -> None:
    harness = AuthenticatorHarness(issuer)
    issuer.keys = [SIGNER.jwk()]
    await harness.verify(SIGNER)
    issuer.keys, issuer.raw_response = [], response
    harness.monotonic_clock.now += 600
    refusal = await harness.verify_refused(SIGNER)
    assert (refusal.status, refusal.code) == (401, "invalid_token")


async def test_slow_issuer_times_out(issuer: IssuerServer) -> None:
    issuer.may_respond.clear()
    refusal = await AuthenticatorHarness(issuer, jwks_timeout_seconds=0.05).verify_refused(SIGNER)
    assert refusal.code == "issuer_unavailable"


async def test_unfinished_jwks_response_times_out() -> None:
    finished = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await finished.wait()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    authenticator = Authenticator(AuthSettings(issuer_url=url, jwks_timeout_seconds=0.05), None, FakeClock())
    try:
        with pytest.raises(Unavailable):
            await authenticator.verify_token(authorization_header(SIGNER.sign(build_claims(url))))
    finally:
        finished.set()
        server.close()
        await server.wait_closed()


async def test_fetches_for_unknown_zones_are_limited_and_evict_no_valid_keys(issuer: IssuerServer) -> None:
    harness, forger = AuthenticatorHarness(issuer, jwks_cache_max=8), TokenSigner("k1")
    issuer.keys = [SIGNER.jwk()]
    for zone in ("real-1", "real-2"):
        await harness.verify(SIGNER, zone_id=zone)
    refusals = [await harness.verify_refused(forger, zone_id=f"invented-{n}") for n in range(50)]
    assert {refusal.status for refusal in refusals} == {401, 503}
    assert fetch_count(issuer) == 8
    harness.monotonic_clock.now += 1
    for n in range(50):
        await harness.verify_refused(forger, zone_id=f"again-{n}")
    # Fetches have a burst of 8 and refill at 10 per second, up to 8.
    assert fetch_count(issuer) == 16
    for zone in ("real-1", "real-2"):
        await harness.verify(SIGNER, zone_id=zone)
    assert fetch_count(issuer) == 16


async def test_jwks_cache_is_bounded(issuer: IssuerServer) -> None:
    harness = AuthenticatorHarness(issuer, jwks_cache_max=2)
    issuer.keys = [SIGNER.jwk()]
    for zone in ("z1", "z2", "z3"):
        harness.monotonic_clock.now += 1
        await harness.verify(SIGNER, zone_id=zone)
    for zone in ("z3", "z2"):
        await harness.verify(SIGNER, zone_id=zone)
    assert fetch_count(issuer) == 3
    await harness.verify(SIGNER, zone_id="z1")
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
def test_invalid_issuer_url_is_refused_at_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(ISSUER_URL|STS_URL|QD_ADMIN_ISSUER) .*\.$"):
        Authenticator(AuthSettings(**settings), None)


async def test_fetch_failure_log_names_the_issuer_and_no_token(
    issuer: IssuerServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.raw_response = http_response(b"s3cret", "500 Oh")
    token = SIGNER.sign(build_claims(issuer.url))
    with pytest.raises(Unavailable):
        await AuthenticatorHarness(issuer).authenticator.verify_token(authorization_header(token))
    assert issuer.url in caplog.text
    assert "s3cret" not in caplog.text
    assert not any(part in caplog.text for part in token.split("."))
