"""Credentials of a request: exactly one token or API key, checked again on every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarterdeck.core import api_key as apikey
from quarterdeck.core.api_key import ParsedApiKey
from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.http.auth import Authenticator, AuthSettings, Grant, LocalIssuer
from quarterdeck.http.dispatcher import RequestHeaders
from tests.http.auth_support import NOW, FakeClock, TokenSigner, authorization_header, build_claims, run_issuer
from tests.support.structs import build_struct

KEY = apikey.format_key("z", "0198f3a2-7c41-7b1e-9d52-3f6a8c0e41d7", bytes(32)).encode()
KEY_CALLER = Caller("key:k", "app", "z", frozenset({"agent:lifecycle"}))


def bearer_names(bearer: Bearer | None) -> tuple[str, str | None, str | None] | None:
    return (bearer.zone_id, bearer.session_id, bearer.agent_id) if bearer else None


@dataclass
class Credentials:
    authorization: bytes | None = None
    api_key: bytes | None = None


class FakeKeyLookup:
    """A key lookup that finds one key until it is revoked."""

    def __init__(self) -> None:
        self.lookups: list[ParsedApiKey] = []
        self.revoked = False

    async def find(self, parsed: ParsedApiKey) -> Caller:
        self.lookups.append(parsed)
        if self.revoked or parsed.digest != apikey.digest(KEY):
            raise apikey.invalid_key_error()
        return KEY_CALLER


@dataclass
class AuthHarness:
    authenticator: Authenticator
    issuer: LocalIssuer
    clock: FakeClock
    keys: FakeKeyLookup

    def token(self, **grant: str) -> bytes:
        claims = {"zone_id": "z", "client_id": "app", "subject": "app", **grant}
        return authorization_header(self.issuer.mint(build_struct(Grant, **claims), 300))

    async def identify(self, **headers: bytes) -> Caller:
        return await self.authenticator.authenticate(Credentials(**headers))

    async def refusal(self, **headers: bytes) -> Problem:
        with pytest.raises(Unauthenticated) as refused:
            await self.identify(**headers)
        return refused.value


@pytest.fixture
async def auth_harness(tmp_path: Path) -> AsyncIterator[AuthHarness]:
    clock = FakeClock()
    issuer = LocalIssuer.open(tmp_path / "signing-key.pem", clock=clock)
    authenticator = Authenticator(AuthSettings(), issuer, clock)
    keys = FakeKeyLookup()
    authenticator.set_api_key_lookup(keys.find)
    yield AuthHarness(authenticator, issuer, clock, keys)
    await authenticator.close()


async def test_token_or_api_key_identifies_the_caller(auth_harness: AuthHarness) -> None:
    assert (await auth_harness.identify(authorization=auth_harness.token())).client_id == "app"
    assert await auth_harness.identify(api_key=KEY) == KEY_CALLER
    assert (await auth_harness.refusal()).code == "missing_token"
    assert (await auth_harness.refusal(api_key=b"", authorization=b"")).code == "missing_token"


async def test_token_with_api_key_is_refused_without_a_lookup(auth_harness: AuthHarness) -> None:
    token = auth_harness.token()
    await auth_harness.identify(authorization=token)
    for authorization in (token, b"Basic YTpi", b"Bearer"):
        refusal = await auth_harness.refusal(authorization=authorization, api_key=KEY)
        assert (refusal.code, "one of them" in refusal.detail) == ("invalid_token", True)
    assert auth_harness.keys.lookups == []


async def test_api_key_is_looked_up_every_time_and_never_cached(auth_harness: AuthHarness) -> None:
    for _ in range(3):
        assert await auth_harness.identify(api_key=KEY) == KEY_CALLER
    assert len(auth_harness.keys.lookups) == 3
    auth_harness.keys.revoked = True
    assert (await auth_harness.refusal(api_key=KEY)).code == "invalid_token"
    auth_harness.keys.revoked = False
    assert await auth_harness.identify(api_key=KEY) == KEY_CALLER


async def test_malformed_key_is_refused_without_a_lookup(auth_harness: AuthHarness) -> None:
    for junk in (b"x", KEY + b" ", b" " + KEY, KEY[:-1], KEY * 500, b"\xff" * 50, b"qd_", KEY + b", " + KEY):
        refusal = await auth_harness.refusal(api_key=junk)
        assert (refusal.code, refusal.detail) == ("invalid_token", apikey.invalid_key_error().detail)
    assert auth_harness.keys.lookups == []


async def test_every_key_is_refused_without_a_key_lookup(tmp_path: Path) -> None:
    authenticator = Authenticator(AuthSettings(), LocalIssuer.open(tmp_path / "signing-key.pem"))
    with pytest.raises(Unauthenticated, match="API key"):
        await authenticator.authenticate(Credentials(api_key=KEY))
    await authenticator.close()


async def test_expired_token_is_rejected_when_reused(auth_harness: AuthHarness) -> None:
    token = auth_harness.token()
    await auth_harness.identify(authorization=token)
    auth_harness.clock.now = NOW + 299
    await auth_harness.identify(authorization=token)
    auth_harness.clock.now = NOW + 400
    assert "expired" in (await auth_harness.refusal(authorization=token)).detail


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, None),
        ({"agent_id": None}, None),
        ({"agent_id": ""}, None),
        ({"agent_id": "a"}, Bearer("z1", None, "a")),
        ({"agent_session_id": "s"}, Bearer("z1", "s", None)),
        ({"agent_session_id": "s", "agent_id": "a"}, Bearer("z1", "s", "a")),
    ],
)
async def test_token_claims_give_the_bearer_session_and_agent(
    claims: dict[str, object], expected: Bearer | None
) -> None:
    signer = TokenSigner("external")
    async with run_issuer() as server:
        server.keys = [signer.jwk()]
        authenticator = Authenticator(AuthSettings(issuer_url=server.url), None, FakeClock())
        token = signer.sign(build_claims(server.url, **claims))
        bearer = (await authenticator.authenticate(Credentials(authorization_header(token)))).bearer
        assert bearer_names(bearer) == bearer_names(expected)
        await authenticator.close()


@pytest.mark.parametrize("agent", [7, ["a"], "a" * 256, "a\n", "a\x00"])
async def test_token_with_a_malformed_agent_id_is_refused(agent: object) -> None:
    signer = TokenSigner("external")
    async with run_issuer() as server:
        server.keys = [signer.jwk()]
        authenticator = Authenticator(AuthSettings(issuer_url=server.url), None, FakeClock())
        with pytest.raises(Unauthenticated) as refusal:
            await authenticator.authenticate(
                Credentials(authorization_header(signer.sign(build_claims(server.url, agent_id=agent))))
            )
        assert refusal.value.code == "invalid_token"
        await authenticator.close()


async def test_local_token_with_an_agent_id_has_that_agent_as_bearer(auth_harness: AuthHarness) -> None:
    caller = await auth_harness.identify(authorization=auth_harness.token(agent_id="a"))
    assert bearer_names(caller.bearer) == ("z", None, "a")


# -- request headers ---------------------------------------------------------------------------------------------


def test_repeated_credential_header_is_not_a_valid_credential() -> None:
    twice = RequestHeaders([(b"authorization", b"Bearer a"), (b"x-api-key", KEY), (b"authorization", b"Bearer b")])
    assert (twice.authorization, twice.api_key) == (b"Bearer a, Bearer b", KEY)
    keys = RequestHeaders([(b"x-api-key", KEY), (b"x-api-key", KEY)])
    assert keys.api_key is not None and apikey.parse(keys.api_key) is None
    empty = RequestHeaders([(b"x-api-key", b""), (b"x-api-key", KEY)])
    assert empty.api_key is not None and apikey.parse(empty.api_key) is None


def test_repr_of_request_headers_hides_credentials() -> None:
    assert KEY.decode() not in repr(RequestHeaders([(b"x-api-key", KEY)]))
