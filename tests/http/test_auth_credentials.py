"""What a request shows: a token or a key, exactly one of them, and judged anew whenever it is asked about again."""

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
GOOD = Caller("key:k", "app", "z", frozenset({"agent:lifecycle"}))


@dataclass
class Shown:
    authorization: bytes | None = None
    api_key: bytes | None = None


class Keys:
    """Stands where the room of keys stands: one key, until it is revoked."""

    def __init__(self) -> None:
        self.asked: list[ParsedApiKey] = []
        self.revoked = False

    async def find(self, shown: ParsedApiKey) -> Caller:
        self.asked.append(shown)
        if self.revoked or shown.digest != apikey.digest(KEY):
            raise apikey.invalid_key_error()
        return GOOD


@dataclass
class Judge:
    authenticator: Authenticator
    issuer: LocalIssuer
    clock: FakeClock
    keys: Keys

    def token(self, **grant: str) -> bytes:
        said = {"zone_id": "z", "client_id": "app", "subject": "app", **grant}
        return authorization_header(self.issuer.mint(build_struct(Grant, **said), 300))

    async def identify(self, **headers: bytes) -> Caller:
        return await self.authenticator.authenticate(Shown(**headers))

    async def refusal(self, **headers: bytes) -> Problem:
        with pytest.raises(Unauthenticated) as refused:
            await self.identify(**headers)
        return refused.value


@pytest.fixture
async def auth_harness(tmp_path: Path) -> AsyncIterator[Judge]:
    clock = FakeClock()
    issuer = LocalIssuer.open(tmp_path / "signing-key.pem", clock=clock)
    authenticator = Authenticator(AuthSettings(), issuer, clock)
    keys = Keys()
    authenticator.set_api_key_lookup(keys.find)
    yield Judge(authenticator, issuer, clock, keys)
    await authenticator.close()


async def test_either_credential_says_who_somebody_is(auth_harness: Judge) -> None:
    assert (await auth_harness.identify(authorization=auth_harness.token())).client_id == "app"
    assert await auth_harness.identify(api_key=KEY) == GOOD
    assert (await auth_harness.refusal()).code == "missing_token"
    assert (await auth_harness.refusal(api_key=b"", authorization=b"")).code == "missing_token"


async def test_both_at_once_are_refused_before_anybody_is_asked(auth_harness: Judge) -> None:
    token = auth_harness.token()
    await auth_harness.identify(authorization=token)
    for authorization in (token, b"Basic YTpi", b"Bearer"):
        refusal = await auth_harness.refusal(authorization=authorization, api_key=KEY)
        assert (refusal.code, "one of them" in refusal.detail) == ("invalid_token", True)
    assert auth_harness.keys.asked == []


async def test_a_key_is_asked_about_every_time_and_remembered_by_nobody(auth_harness: Judge) -> None:
    for _ in range(3):
        assert await auth_harness.identify(api_key=KEY) == GOOD
    assert len(auth_harness.keys.asked) == 3
    auth_harness.keys.revoked = True
    assert (await auth_harness.refusal(api_key=KEY)).code == "invalid_token"
    auth_harness.keys.revoked = False
    assert await auth_harness.identify(api_key=KEY) == GOOD


async def test_what_is_no_key_costs_nobody_a_question(auth_harness: Judge) -> None:
    for junk in (b"x", KEY + b" ", b" " + KEY, KEY[:-1], KEY * 500, b"\xff" * 50, b"qd_", KEY + b", " + KEY):
        refusal = await auth_harness.refusal(api_key=junk)
        assert (refusal.code, refusal.detail) == ("invalid_token", apikey.invalid_key_error().detail)
    assert auth_harness.keys.asked == []


async def test_without_a_room_of_keys_every_key_is_refused(tmp_path: Path) -> None:
    authenticator = Authenticator(AuthSettings(), LocalIssuer.open(tmp_path / "signing-key.pem"))
    with pytest.raises(Unauthenticated, match="API key"):
        await authenticator.authenticate(Shown(api_key=KEY))
    await authenticator.close()


async def test_whoever_asks_again_with_the_same_token_learns_that_it_has_expired(auth_harness: Judge) -> None:
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
async def test_a_token_says_for_which_session_and_which_agent_it_speaks(
    claims: dict[str, object], expected: Bearer | None
) -> None:
    signer = TokenSigner("theirs")
    async with run_issuer() as server:
        server.keys = [signer.jwk()]
        authenticator = Authenticator(AuthSettings(issuer_url=server.url), None, FakeClock())
        token = signer.sign(build_claims(server.url, **claims))
        assert (await authenticator.authenticate(Shown(authorization_header(token)))).bearer == expected
        await authenticator.close()


@pytest.mark.parametrize("agent", [7, ["a"], "a" * 256, "a\n", "a\x00"])
async def test_an_agent_that_could_be_nobodys_name_makes_a_token_invalid(agent: object) -> None:
    signer = TokenSigner("theirs")
    async with run_issuer() as server:
        server.keys = [signer.jwk()]
        authenticator = Authenticator(AuthSettings(issuer_url=server.url), None, FakeClock())
        with pytest.raises(Unauthenticated) as refusal:
            await authenticator.authenticate(
                Shown(authorization_header(signer.sign(build_claims(server.url, agent_id=agent))))
            )
        assert refusal.value.code == "invalid_token"
        await authenticator.close()


async def test_the_local_issuer_names_an_agent_if_it_is_told_to(auth_harness: Judge) -> None:
    caller = await auth_harness.identify(authorization=auth_harness.token(agent_id="a"))
    assert caller.bearer == Bearer("z", None, "a")


# -- what is read of a request's head ----------------------------------------------------------------------------


def test_a_header_that_comes_twice_is_no_credential_at_all() -> None:
    twice = RequestHeaders([(b"authorization", b"Bearer a"), (b"x-api-key", KEY), (b"authorization", b"Bearer b")])
    assert (twice.authorization, twice.api_key) == (b"Bearer a, Bearer b", KEY)
    keys = RequestHeaders([(b"x-api-key", KEY), (b"x-api-key", KEY)])
    assert keys.api_key is not None and apikey.parse(keys.api_key) is None
    empty = RequestHeaders([(b"x-api-key", b""), (b"x-api-key", KEY)])
    assert empty.api_key is not None and apikey.parse(empty.api_key) is None


def test_a_head_shows_nothing_of_what_it_holds() -> None:
    assert KEY.decode() not in repr(RequestHeaders([(b"x-api-key", KEY)]))
