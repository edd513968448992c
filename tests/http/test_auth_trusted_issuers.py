"""External issuers: whose keys are trusted, which algorithm each key allows, and who may grant admin."""

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

SIGNER = TokenSigner("k1")


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with run_issuer() as server:
        yield server


@pytest.mark.parametrize("alg", ["ES256", "EdDSA", "RS256"])
async def test_token_of_the_external_issuer_is_accepted(issuer: IssuerServer, alg: str) -> None:
    signer, harness = TokenSigner("k1", alg), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    caller = await harness.verify(signer, sid="s")
    assert (caller.subject, caller.zone_id, caller.sid, caller.is_admin) == ("user-1", "z1", "s", False)
    assert issuer.requests == ["/.well-known/jwks.json?zone_id=z1"]


async def test_keys_of_one_zone_are_refused_in_another(issuer: IssuerServer) -> None:
    first, second, harness = TokenSigner("k1"), TokenSigner("k2"), AuthenticatorHarness(issuer)
    issuer.keys = [first.jwk()]
    await harness.verify(first, zone_id="z1")
    issuer.keys = [second.jwk()]
    await harness.verify(second, zone_id="z2")
    assert (await harness.verify_refused(first, zone_id="z2")).code == "invalid_token"
    await harness.verify(first, zone_id="z1")


def with_alg(signer: TokenSigner, alg: str) -> TokenSigner:
    """The same key, with another algorithm in the header of its tokens."""
    forger = TokenSigner(signer.kid, signer.alg, signer.key)
    sign = forger.sign
    forger.sign = lambda claims, **header: sign(claims, alg=alg, **header)  # type: ignore[method-assign]  # a forged header
    return forger


@pytest.mark.parametrize("key", ["ES256", "EdDSA", "RS256"])
@pytest.mark.parametrize("alg", ["ES256", "EdDSA", "RS256", "PS256", "HS256", "none"])
async def test_fetched_key_is_accepted_for_its_own_algorithm_only(issuer: IssuerServer, key: str, alg: str) -> None:
    signer, harness = TokenSigner("k1", key), AuthenticatorHarness(issuer)
    issuer.keys = [signer.jwk()]
    if key == alg:
        await harness.verify(signer)
    else:
        assert (await harness.verify_refused(with_alg(signer, alg))).code == "invalid_token"


def jwks_of(signer: TokenSigner, **members: object) -> list[dict[str, object]]:
    return [signer.jwk(**members)]


def unusable_keys() -> list[tuple[TokenSigner, list[dict[str, object]]]]:
    weak, edwards = TokenSigner("k1", "RS256", rsa_key(1024)), ed448.Ed448PrivateKey.generate()
    # Signed with SHA-256, as ES256 requires, but on curves that ES256 does not allow.
    p384, k256 = (
        TokenSigner("k1", "ES256", ec.generate_private_key(curve)) for curve in (ec.SECP384R1(), ec.SECP256K1())
    )
    other_curve, es, rs = TokenSigner("k1", "ES384"), TokenSigner("k1"), TokenSigner("k1", "RS256")
    secret: dict[str, object] = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}
    return [
        (weak, jwks_of(weak)),
        (other_curve, jwks_of(other_curve)),
        (with_alg(TokenSigner("k1", "EdDSA", edwards), "EdDSA"), jwks_of(TokenSigner("k1", "EdDSA", edwards))),
        (p384, jwks_of(p384)),
        (k256, jwks_of(k256)),
        (es, jwks_of(es, use="enc")),
        (es, jwks_of(es, key_ops=["sign"])),
        (es, jwks_of(es, alg="ES384")),
        (rs, jwks_of(rs, alg="PS256")),
        (es, jwks_of(es, y=es.jwk()["x"])),
        (es, jwks_of(es, x="AA")),
        (es, jwks_of(es, x=7)),
        (es, jwks_of(es, crv="P-384")),
        (es, jwks_of(es, kty="RSA")),
        (es, jwks_of(es, kty="oct")),
        (rs, jwks_of(rs, e="Ag")),
        (rs, jwks_of(rs, n="_" * 200_000)),
        (with_alg(es, "HS256"), [secret]),
    ]


@pytest.mark.parametrize(("signer", "keys"), unusable_keys())
async def test_unusable_key_is_skipped_and_the_other_keys_work(
    issuer: IssuerServer, signer: TokenSigner, keys: list[dict[str, object]]
) -> None:
    valid = TokenSigner("valid")
    issuer.keys, harness = [*keys, valid.jwk()], AuthenticatorHarness(issuer)
    assert (await harness.verify_refused(signer)).code == "invalid_token"
    await harness.verify(valid)


async def test_published_private_key_still_verifies(issuer: IssuerServer) -> None:
    issuer.keys = [SIGNER.jwk(d="AAAA")]
    await AuthenticatorHarness(issuer).verify(SIGNER)


async def test_token_without_kid_is_accepted_only_if_there_is_one_key(issuer: IssuerServer) -> None:
    without_kid, harness = TokenSigner(None), AuthenticatorHarness(issuer)
    issuer.keys = [without_kid.jwk()]
    await harness.verify(without_kid)
    issuer.keys = [without_kid.jwk(), SIGNER.jwk()]
    harness.monotonic_clock.now += 600
    assert (await harness.verify_refused(without_kid)).code == "invalid_token"
    await harness.verify(SIGNER)


async def test_admin_scope_of_an_external_issuer_is_dropped(issuer: IssuerServer) -> None:
    harness = AuthenticatorHarness(issuer)
    issuer.keys = [SIGNER.jwk()]
    caller = await harness.verify(SIGNER, scope=f"{LIFECYCLE} {ADMIN}")
    assert not caller.is_admin
    assert caller.scopes == {LIFECYCLE}
    for scope, zone, code in ((ADMIN, None, "missing_scope"), (LIFECYCLE, "z2", "zone_mismatch")):
        with pytest.raises(Problem) as refusal:
            harness.authenticator.check_access(caller, scope, zone)
        assert refusal.value.code == code


async def test_admin_scope_of_the_admin_issuer_is_accepted(issuer: IssuerServer) -> None:
    issuer.keys = [SIGNER.jwk()]
    same = AuthenticatorHarness(issuer, admin_issuer=issuer.url)
    assert (await same.verify(SIGNER, scope=ADMIN)).is_admin
    async with run_issuer() as plain:
        other = TokenSigner("k1")
        plain.keys = [other.jwk()]
        harness = AuthenticatorHarness(plain, admin_issuer=issuer.url)
        assert not (await harness.verify(other, scope=ADMIN)).is_admin
        assert (await harness.verify(SIGNER, iss=issuer.url, aud=issuer.url, scope=ADMIN)).is_admin
        # Neither issuer's key can sign for the other, and neither accepts the other's audience.
        assert (await harness.verify_refused(other, iss=issuer.url, aud=issuer.url)).code == "invalid_token"
        assert (await harness.verify_refused(SIGNER, iss=issuer.url)).code == "invalid_token"


LOCAL = LocalIssuer(ec.generate_private_key(ec.SECP256R1()), None, FakeClock())
ADMIN_GRANT = Grant(zone_id="z1", client_id="local", subject="local", scopes=(LIFECYCLE, ADMIN))


async def test_local_and_external_issuer_each_accept_only_their_own_keys(issuer: IssuerServer) -> None:
    harness = AuthenticatorHarness(issuer, LOCAL)
    caller = await harness.authenticator.verify_token(authorization_header(LOCAL.mint(ADMIN_GRANT, 60)))
    assert caller.is_admin
    assert fetch_count(issuer) == 0, "the local key is never fetched"
    forger = TokenSigner(LOCAL.kid)
    issuer.keys = [forger.jwk()]
    assert (await harness.verify_refused(forger, iss=LOCAL.issuer, aud=LOCAL.issuer)).code == "invalid_token"
    local = TokenSigner(LOCAL.kid, "ES256", LOCAL._key)
    assert (await harness.verify_refused(local)).code == "invalid_token"
    without = AuthenticatorHarness(issuer, None)
    with pytest.raises(Unauthenticated):
        await without.authenticator.verify_token(authorization_header(LOCAL.mint(ADMIN_GRANT, 60)))


async def test_with_a_shared_issuer_name_the_key_decides_about_admin(issuer: IssuerServer) -> None:
    shared = LocalIssuer(LOCAL._key, issuer.url, FakeClock())
    harness = AuthenticatorHarness(issuer, shared)
    issuer.keys = [SIGNER.jwk()]
    assert (await harness.authenticator.verify_token(authorization_header(shared.mint(ADMIN_GRANT, 60)))).is_admin
    assert not (await harness.verify(SIGNER, scope=ADMIN)).is_admin
    forger = TokenSigner(shared.kid)
    issuer.keys = [forger.jwk()]
    harness.monotonic_clock.now += 600
    assert "signature" in (await harness.verify_refused(forger)).detail
