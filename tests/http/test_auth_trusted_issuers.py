"""External issuers: whose keys are believed, which keys are good for what, and who may grant what."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448

from quarterdeck.core.caller import ADMIN, LIFECYCLE
from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.http.auth import Grant, LocalIssuer
from tests.http.auth_support import (
    AuthenticatorHarness,
    FakeClock,
    IssuerServer,
    TokenSigner,
    authorization_header,
    fetch_count,
    rsa_key,
    run_issuer,
)

GOOD = TokenSigner("k1")


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with run_issuer() as server:
        yield server


@pytest.mark.parametrize("alg", ["ES256", "EdDSA", "RS256"])
async def test_a_token_of_the_external_issuer_is_believed(issuer: IssuerServer, alg: str) -> None:
    signer, bench = TokenSigner("k1", alg), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    caller = await bench.verify(signer, sid="s")
    assert (caller.subject, caller.zone_id, caller.sid, caller.is_admin) == ("user-1", "z1", "s", False)
    assert issuer.requests == ["/.well-known/jwks.json?zone_id=z1"]


async def test_the_keys_of_one_zone_do_not_sign_for_another(issuer: IssuerServer) -> None:
    first, second, bench = TokenSigner("k1"), TokenSigner("k2"), AuthenticatorHarness(issuer)
    issuer.keys = [first.jwk()]
    await bench.verify(first, zone_id="z1")
    issuer.keys = [second.jwk()]
    await bench.verify(second, zone_id="z2")
    assert (await bench.verify_refused(first, zone_id="z2")).code == "invalid_token"
    await bench.verify(first, zone_id="z1")


def with_alg(signer: TokenSigner, alg: str) -> TokenSigner:
    """The same key, lying about itself in the header of its tokens."""
    liar = TokenSigner(signer.kid, signer.alg, signer.key)
    sign = liar.sign
    liar.sign = lambda claims, **header: sign(claims, alg=alg, **header)  # type: ignore[method-assign]  # the lie
    return liar


@pytest.mark.parametrize("key", ["ES256", "EdDSA", "RS256"])
@pytest.mark.parametrize("alg", ["ES256", "EdDSA", "RS256", "PS256", "HS256", "none"])
async def test_a_fetched_key_is_good_for_its_own_algorithm_only(issuer: IssuerServer, key: str, alg: str) -> None:
    signer, bench = TokenSigner("k1", key), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    if key == alg:
        await bench.verify(signer)
    else:
        assert (await bench.verify_refused(with_alg(signer, alg))).code == "invalid_token"


def tampered(signer: TokenSigner, **members: object) -> list[dict[str, object]]:
    return [signer.jwk(**members)]


def unusable() -> list[tuple[TokenSigner, list[dict[str, object]]]]:
    weak, edwards = TokenSigner("k1", "RS256", rsa_key(1024)), ed448.Ed448PrivateKey.generate()
    # Signed with SHA-256, as ES256 says, but on curves that ES256 is not about.
    p384, k256 = (
        TokenSigner("k1", "ES256", ec.generate_private_key(curve)) for curve in (ec.SECP384R1(), ec.SECP256K1())
    )
    other_curve, es, rs = TokenSigner("k1", "ES384"), TokenSigner("k1"), TokenSigner("k1", "RS256")
    secret: dict[str, object] = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}
    return [
        (weak, tampered(weak)),
        (other_curve, tampered(other_curve)),
        (with_alg(TokenSigner("k1", "EdDSA", edwards), "EdDSA"), tampered(TokenSigner("k1", "EdDSA", edwards))),
        (p384, tampered(p384)),
        (k256, tampered(k256)),
        (es, tampered(es, use="enc")),
        (es, tampered(es, key_ops=["sign"])),
        (es, tampered(es, alg="ES384")),
        (rs, tampered(rs, alg="PS256")),
        (es, tampered(es, y=es.jwk()["x"])),
        (es, tampered(es, x="AA")),
        (es, tampered(es, x=7)),
        (es, tampered(es, crv="P-384")),
        (es, tampered(es, kty="RSA")),
        (es, tampered(es, kty="oct")),
        (rs, tampered(rs, e="Ag")),
        (rs, tampered(rs, n="_" * 200_000)),
        (with_alg(es, "HS256"), [secret]),
    ]


@pytest.mark.parametrize(("signer", "keys"), unusable())
async def test_a_key_that_is_weak_foreign_or_broken_is_left_out_and_spoils_no_other(
    issuer: IssuerServer, signer: TokenSigner, keys: list[dict[str, object]]
) -> None:
    sound = TokenSigner("sound")
    issuer.keys, bench = [*keys, sound.jwk()], AuthenticatorHarness(issuer)
    assert (await bench.verify_refused(signer)).code == "invalid_token"
    await bench.verify(sound)


async def test_a_private_key_published_by_mistake_still_only_verifies(issuer: IssuerServer) -> None:
    issuer.keys = [GOOD.jwk(d="AAAA")]
    await AuthenticatorHarness(issuer).verify(GOOD)


async def test_a_token_without_kid_is_good_only_where_there_is_one_key(issuer: IssuerServer) -> None:
    nameless, bench = TokenSigner(None), AuthenticatorHarness(issuer)
    issuer.keys = [nameless.jwk()]
    await bench.verify(nameless)
    issuer.keys = [nameless.jwk(), GOOD.jwk()]
    bench.monotonic_clock.now += 600
    assert (await bench.verify_refused(nameless)).code == "invalid_token"
    await bench.verify(GOOD)


async def test_admin_is_not_honoured_from_a_foreign_issuer_and_leaves_no_trace(issuer: IssuerServer) -> None:
    bench = AuthenticatorHarness(issuer)
    issuer.keys = [GOOD.jwk()]
    caller = await bench.verify(GOOD, scope=f"{LIFECYCLE} {ADMIN}")
    assert not caller.is_admin
    assert caller.scopes == {LIFECYCLE}
    for scope, zone, code in ((ADMIN, None, "missing_scope"), (LIFECYCLE, "z2", "zone_mismatch")):
        with pytest.raises(Problem) as refusal:
            bench.authenticator.check_access(caller, scope, zone)
        assert refusal.value.code == code


async def test_admin_is_honoured_from_the_admin_issuer_whether_it_is_the_same_or_another(issuer: IssuerServer) -> None:
    issuer.keys = [GOOD.jwk()]
    same = AuthenticatorHarness(issuer, admin_issuer=issuer.url)
    assert (await same.verify(GOOD, scope=ADMIN)).is_admin
    async with run_issuer() as plain:
        other = TokenSigner("k1")
        plain.keys = [other.jwk()]
        bench = AuthenticatorHarness(plain, admin_issuer=issuer.url)
        assert not (await bench.verify(other, scope=ADMIN)).is_admin
        assert (await bench.verify(GOOD, iss=issuer.url, aud=issuer.url, scope=ADMIN)).is_admin
        # Neither issuer's key speaks in the other's name, and an audience of the one is not the other's.
        assert (await bench.verify_refused(other, iss=issuer.url, aud=issuer.url)).code == "invalid_token"
        assert (await bench.verify_refused(GOOD, iss=issuer.url)).code == "invalid_token"


LOCAL = LocalIssuer(ec.generate_private_key(ec.SECP256R1()), None, FakeClock())
ADMINISTRATOR = Grant(zone_id="z1", client_id="local", subject="local", scopes=(LIFECYCLE, ADMIN))


async def test_the_local_issuer_is_believed_beside_an_external_one_each_with_its_own_keys(issuer: IssuerServer) -> None:
    bench = AuthenticatorHarness(issuer, LOCAL)
    caller = await bench.authenticator.verify_token(authorization_header(LOCAL.mint(ADMINISTRATOR, 60)))
    assert caller.is_admin
    assert fetch_count(issuer) == 0, "the local key is never fetched"
    forger = TokenSigner(LOCAL.kid)
    issuer.keys = [forger.jwk()]
    assert (await bench.verify_refused(forger, iss=LOCAL.issuer, aud=LOCAL.issuer)).code == "invalid_token"
    local = TokenSigner(LOCAL.kid, "ES256", LOCAL._key)
    assert (await bench.verify_refused(local)).code == "invalid_token"
    without = AuthenticatorHarness(issuer, None)
    with pytest.raises(Unauthenticated):
        await without.authenticator.verify_token(authorization_header(LOCAL.mint(ADMINISTRATOR, 60)))


async def test_under_a_shared_name_the_key_decides_who_may_grant_admin(issuer: IssuerServer) -> None:
    shared = LocalIssuer(LOCAL._key, issuer.url, FakeClock())
    bench = AuthenticatorHarness(issuer, shared)
    issuer.keys = [GOOD.jwk()]
    assert (await bench.authenticator.verify_token(authorization_header(shared.mint(ADMINISTRATOR, 60)))).is_admin
    assert not (await bench.verify(GOOD, scope=ADMIN)).is_admin
    forger = TokenSigner(shared.kid)
    issuer.keys = [forger.jwk()]
    bench.monotonic_clock.now += 600
    assert "signature" in (await bench.verify_refused(forger)).detail
