"""Tokens of the local issuer, genuine and forged: what is accepted, what is refused and in which order."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, LIFECYCLE, Caller, Role
from quarterdeck.core.errors import Forbidden, Invalid, Problem, Unauthenticated
from quarterdeck.http.auth import Authenticator, AuthSettings, Grant, LocalIssuer
from tests.http.auth_support import (
    NOW,
    FakeClock,
    TokenSigner,
    authorization_header,
    base64url,
    build_claims,
    build_jws,
    rsa_key,
)

KEY = ec.generate_private_key(ec.SECP256R1())
LOCAL = LocalIssuer(KEY, None, FakeClock())
SIGNER = TokenSigner(LOCAL.kid, "ES256", KEY)


def build_authenticator(clock: FakeClock | None = None, **changes: Any) -> Authenticator:
    return Authenticator(AuthSettings(**changes), LOCAL, clock or FakeClock())


def local_claims(**changes: object) -> dict[str, object]:
    return build_claims(LOCAL.issuer, **changes)


def verify(header: bytes | None, authenticator: Authenticator | None = None) -> Caller:
    """Verifying a local token never waits, so the coroutine ends at its first step."""
    steps = (authenticator or build_authenticator()).verify_token(header)
    try:
        steps.send(None)
    except StopIteration as end:
        caller: Caller = end.value
        return caller
    raise AssertionError("verifying a local token must not wait")


def verify_refused(header: bytes | None, authenticator: Authenticator | None = None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as refusal:
        verify(header, authenticator)
    return refusal.value


def test_valid_token_yields_the_caller() -> None:
    claims = local_claims(sid="s", agent_session_id="session-1", delegation_edge_id="edge-1", scope="a b  c")
    assert verify(authorization_header(SIGNER.sign(claims))) == Caller(
        subject="user-1",
        client_id="app-1",
        zone_id="z1",
        scopes=frozenset({"a", "b", "c"}),
        sid="s",
        session_id="session-1",
        delegation_edge_id="edge-1",
        is_admin=False,
        is_local=True,
        issued_at=0,
    )


@pytest.mark.parametrize("absent", [..., None, ""])
def test_optional_claims_may_be_absent_null_or_empty(absent: object) -> None:
    claims = local_claims(sid=absent, agent_session_id=absent, delegation_edge_id=absent, scope=absent)
    caller = verify(authorization_header(SIGNER.sign(claims)))
    assert (caller.sid, caller.session_id, caller.delegation_edge_id) == (None, None, None)
    assert caller.scopes == frozenset()


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"Bearer    ", b"Basic dTpw", b"Bearerx y"])
def test_header_without_a_bearer_token_is_missing_token(header: bytes | None) -> None:
    assert verify_refused(header).code == "missing_token"


def test_bearer_scheme_is_case_insensitive() -> None:
    token = SIGNER.sign(local_claims())
    assert verify(b"bEARER  " + token.encode()).subject == "user-1"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"exp": NOW - 5}, "expired"),
        ({"exp": 0}, "expired"),
        ({"nbf": NOW + 6}, "not valid yet"),
        ({"iat": NOW + 6}, "future"),
        ({"aud": "urn:another"}, "audience"),
        ({"aud": ["urn:another", "urn:third"]}, "audience"),
        ({"aud": []}, "audience"),
        ({"iss": "urn:quarterdeck:another"}, "issuer"),
        ({"iss": LOCAL.issuer + "x"}, "issuer"),
        ({"zone_id": "a/b"}, "zone_id"),
        ({"zone_id": "z1\n"}, "zone_id"),
        ({"zone_id": "z" * 129}, "zone_id"),
        ({"sub": "a\x00b"}, "control"),
        ({"sid": "a\nb"}, "control"),
    ],
)
def test_token_with_an_invalid_claim_is_refused(change: dict[str, object], expected: str) -> None:
    refusal = verify_refused(authorization_header(SIGNER.sign(local_claims(**change))))
    assert refusal.code == "invalid_token"
    assert expected in refusal.detail


@pytest.mark.parametrize(
    "change", [{"exp": NOW - 4}, {"nbf": NOW + 5}, {"iat": NOW + 5}, {"aud": ["x", LOCAL.issuer]}, {"exp": NOW + 0.5}]
)
def test_clock_leeway_and_several_audiences_are_accepted(change: dict[str, object]) -> None:
    assert verify(authorization_header(SIGNER.sign(local_claims(**change)))).subject == "user-1"


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "zone_id", "sub", "client_id"])
@pytest.mark.parametrize("value", [..., None, "", 7, True, {}, [7]])
def test_missing_empty_or_mistyped_required_claim_is_refused(name: str, value: object) -> None:
    if (name, value) == ("exp", 7):
        value = "7"
    assert verify_refused(authorization_header(SIGNER.sign(local_claims(**{name: value})))).code == "invalid_token"


@pytest.mark.parametrize("name", ["sub", "client_id", "sid", "agent_session_id", "delegation_edge_id"])
def test_name_longer_than_255_characters_is_refused(name: str) -> None:
    verify(authorization_header(SIGNER.sign(local_claims(**{name: "x" * 255}))))
    assert name in verify_refused(authorization_header(SIGNER.sign(local_claims(**{name: "x" * 256})))).detail


@pytest.mark.parametrize("exp", [1e300, 10**30, -1, "1800000300", True, [], 2**63])
def test_exp_that_is_not_a_timestamp_is_refused(exp: object) -> None:
    assert verify_refused(authorization_header(SIGNER.sign(local_claims(exp=exp)))).code == "invalid_token"


def test_signature_by_another_key_is_refused() -> None:
    forger = TokenSigner(LOCAL.kid, "ES256")
    assert "signature" in verify_refused(authorization_header(forger.sign(local_claims()))).detail


@pytest.mark.parametrize("kid", ["unknown", None, ""])
def test_local_token_must_name_the_local_kid(kid: str | None) -> None:
    assert (
        verify_refused(authorization_header(TokenSigner(kid, "ES256", KEY).sign(local_claims()))).code
        == "invalid_token"
    )


def test_signature_of_other_claims_is_refused() -> None:
    head, _, tail = SIGNER.sign(local_claims()).split(".")
    body = base64url(json.dumps(local_claims(zone_id="z2")).encode()).decode()
    assert "signature" in verify_refused(authorization_header(f"{head}.{body}.{tail}")).detail


@pytest.mark.parametrize("alg", ["none", "None", "nOnE", "", "ES384", "HS256", "RS256", "EdDSA", "ES256K", "es256"])
def test_only_the_algorithm_of_the_key_is_accepted(alg: str) -> None:
    header = {"alg": alg, "kid": LOCAL.kid}
    for sign in (SIGNER.signature, lambda _: b"\0"):
        assert verify_refused(authorization_header(build_jws(header, local_claims(), sign))).code == "invalid_token"
    unsigned = build_jws(header, local_claims(), lambda _: b"")
    assert verify_refused(authorization_header(unsigned)).code == "invalid_token"


def public_key_encodings() -> list[bytes]:
    public = KEY.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return [pem, pem.strip(), der, point, json.dumps(LOCAL.jwks()["keys"][0]).encode(), b""]


@pytest.mark.parametrize("secret", public_key_encodings(), ids=["pem", "stripped", "der", "point", "jwk", "empty"])
def test_public_key_is_refused_as_hmac_secret(secret: bytes) -> None:
    def sign(signed: bytes) -> bytes:
        return hmac.digest(secret, signed, "sha256")

    for alg in ("HS256", "ES256"):
        forged = build_jws({"alg": alg, "kid": LOCAL.kid}, local_claims(), sign)
        assert verify_refused(authorization_header(forged)).code == "invalid_token"


def test_rsa_signature_is_refused_for_the_local_key() -> None:
    for alg in ("RS256", "ES256"):
        forger = TokenSigner(LOCAL.kid, "RS256", rsa_key(2048))
        assert verify_refused(authorization_header(forger.sign(local_claims(), alg=alg))).code == "invalid_token"


def test_key_in_the_token_header_is_ignored() -> None:
    forger = TokenSigner(LOCAL.kid, "ES256")
    for header in (
        {"jwk": forger.jwk()},
        {"jku": "http://127.0.0.1:1/jwks.json"},
        {"x5u": "http://127.0.0.1:1/cert.pem"},
        {"x5c": ["AAAA"]},
    ):
        assert "signature" in verify_refused(authorization_header(forger.sign(local_claims(), **header))).detail
        assert verify(authorization_header(SIGNER.sign(local_claims(), **header))).subject == "user-1"


@pytest.mark.parametrize("crit", [["b64"], ["exp"], [], None])
def test_header_with_critical_extensions_is_refused(crit: object) -> None:
    assert "crit" in verify_refused(authorization_header(SIGNER.sign(local_claims(), crit=crit))).detail


def test_token_longer_than_8_kib_is_refused() -> None:
    token = SIGNER.sign(local_claims(padding="x" * 8192))
    assert "longer" in verify_refused(authorization_header(token)).detail
    assert build_authenticator().cached_caller(authorization_header(token)) is None


def test_signature_must_be_canonical_base64url() -> None:
    token = SIGNER.sign(local_claims())
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # 64 bytes encode to 86 characters. The last one carries two bits, so 15 others decode to the same bytes.
    last = alphabet.index(token[-1].encode())
    variants = [token[:-1] + chr(alphabet[last ^ bits]) for bits in range(1, 16)]
    data = {base64.urlsafe_b64decode(variant.rsplit(".", 1)[1] + "==") for variant in [*variants, token]}
    assert len(data) == 1
    for variant in [*variants, token + "=", token + "=="]:
        assert verify_refused(authorization_header(variant)).code == "invalid_token"


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "claims",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"{",
        b'{"iss":"\\ud800"}',
        nested(3000),
        b'{"x":' + nested(2500) + b"}",
    ],
)
def test_claims_that_are_not_a_json_object_are_refused(claims: bytes) -> None:
    head = base64url(json.dumps({"alg": "ES256", "kid": LOCAL.kid}).encode())
    signed = head + b"." + base64url(claims)
    header = b"Bearer " + signed + b"." + base64url(SIGNER.signature(signed))
    assert verify_refused(header).code == "invalid_token"
    swapped = b"Bearer " + base64url(claims) + b"." + head + b".AAAA"
    assert verify_refused(swapped).code == "invalid_token"


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda raw: b"Bearer " + raw)))
def test_random_header_bytes_are_refused(header: bytes) -> None:
    assert verify_refused(header).code in ("missing_token", "invalid_token")
    assert build_authenticator().cached_caller(header) is None


SEGMENT = st.text("ABCab01-_=. +/", max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.lists(SEGMENT, max_size=5))
def test_random_dotted_text_is_refused(segments: list[str]) -> None:
    verify_refused(authorization_header(".".join(segments)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["iss", "aud", "exp", "nbf", "iat", "zone_id", "sub", "client_id", "scope", "sid", "agent_session_id"]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), st.dictionaries(st.sampled_from(["kid", "alg"]), JSON)
)
def test_random_signed_claims_are_accepted_or_refused(claims: dict[str, object], header: dict[str, object]) -> None:
    token = SIGNER.sign(local_claims(**claims), **header)
    try:
        caller = verify(authorization_header(token))
    except Unauthenticated:
        return
    assert caller.zone_id and caller.subject and caller.client_id


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_token_with_one_changed_byte_is_refused(data: st.DataObject) -> None:
    token = SIGNER.sign(local_claims()).encode()
    at = data.draw(st.integers(0, len(token) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != token[at]))
    verify_refused(b"Bearer " + token[:at] + bytes([byte]) + token[at + 1 :])


def test_scope_must_match_exactly_and_is_checked_before_the_zone() -> None:
    authenticator = build_authenticator()
    for scope in ("agent:lifecycle2", "agent", "xagent:lifecycle", "agent:lifecycle,x", "", "agent:lifecycle\tx"):
        caller = verify(authorization_header(SIGNER.sign(local_claims(scope=scope))), authenticator)
        with pytest.raises(Forbidden) as refusal:
            authenticator.check_access(caller, LIFECYCLE, "another zone")
        assert refusal.value.code == "missing_scope"
    caller = verify(authorization_header(SIGNER.sign(local_claims(scope="x agent:lifecycle"))), authenticator)
    authenticator.check_access(caller, LIFECYCLE, "z1")
    authenticator.check_access(caller, LIFECYCLE, None)
    with pytest.raises(Forbidden) as refusal:
        authenticator.check_access(caller, LIFECYCLE, "z2")
    assert refusal.value.code == "zone_mismatch"


def test_lifecycle_scope_is_configurable() -> None:
    authenticator = build_authenticator(lifecycle_scope="fleet:run")
    renamed_scope = verify(authorization_header(SIGNER.sign(local_claims(scope="fleet:run"))), authenticator)
    authenticator.check_access(renamed_scope, LIFECYCLE, "z1")
    default_scope = verify(authorization_header(SIGNER.sign(local_claims())), authenticator)
    with pytest.raises(Forbidden) as refusal:
        authenticator.check_access(default_scope, LIFECYCLE, "z1")
    assert refusal.value.members["scope"] == "fleet:run"


def test_local_admin_crosses_zones_but_still_needs_the_scope() -> None:
    authenticator = build_authenticator()
    caller = verify(authorization_header(SIGNER.sign(local_claims(scope=f"{LIFECYCLE} {ADMIN}"))), authenticator)
    assert caller.is_admin
    authenticator.check_access(caller, LIFECYCLE, "z2")
    authenticator.check_access(caller, ADMIN, None)
    with pytest.raises(Forbidden):
        authenticator.check_access(caller, COORDINATOR_ADMIN, "z1")


def test_verified_token_is_cached_until_it_expires() -> None:
    clock = FakeClock()
    authenticator = build_authenticator(clock)
    header = authorization_header(SIGNER.sign(local_claims(exp=NOW + 10)))
    assert authenticator.cached_caller(header) is None
    caller = verify(header, authenticator)
    assert authenticator.cached_caller(header) is caller
    clock.now = NOW + 9.999
    assert authenticator.cached_caller(header) is caller
    clock.now = NOW + 10
    assert authenticator.cached_caller(header) is None
    # Within the leeway the full check still accepts the token but does not cache it.
    verify(header, authenticator)
    assert authenticator.cached_caller(header) is None
    clock.now = NOW + 15
    assert "expired" in verify_refused(header, authenticator).detail


def test_refused_token_is_not_cached() -> None:
    authenticator = build_authenticator()
    header = authorization_header(TokenSigner(LOCAL.kid).sign(local_claims()))
    for _ in range(3):
        verify_refused(header, authenticator)
        assert authenticator.cached_caller(header) is None


def test_token_cache_evicts_the_oldest() -> None:
    authenticator = build_authenticator(token_cache_max=3)
    headers = [authorization_header(SIGNER.sign(local_claims(sub=f"user-{n}"))) for n in range(5)]
    for header in headers:
        verify(header, authenticator)
    assert [authenticator.cached_caller(header) is not None for header in headers] == [False, False, True, True, True]


def test_one_token_takes_one_cache_entry() -> None:
    authenticator = build_authenticator(token_cache_max=2)
    token = SIGNER.sign(local_claims()).encode()
    other = authorization_header(SIGNER.sign(local_claims(sub="other")))
    verify(other, authenticator)
    for spelling in (b"Bearer ", b"bearer ", b"BEARER ", b"Bearer  ", b"Bearer   "):
        verify(spelling + token, authenticator)
    assert authenticator.cached_caller(other) is not None
    assert authenticator.cached_caller(b"Bearer " + token) is not None
    assert authenticator.cached_caller(b"bearer " + token) is None


async def test_closed_authenticator_has_an_empty_cache() -> None:
    authenticator = build_authenticator()
    header = authorization_header(SIGNER.sign(local_claims()))
    await authenticator.verify_token(header)
    await authenticator.close()
    assert authenticator.cached_caller(header) is None


def corrupt_variants(token: str) -> list[str]:
    head, body, tail = token.split(".")
    return [
        f"{head}.{body}.{tail[:-6]}AAAAAA",
        f"{head}.{body}",
        f"{head}.{body}.{tail}.{tail}",
        f"{body}.{head}.{tail}",
    ]


def test_errors_and_logs_contain_no_part_of_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ["s3cret-subject", "s3cret-client", "s3cret-scope"]
    good = local_claims(sub=secrets[0], client_id=secrets[1], scope=secrets[2])
    bad = [
        {**good, "exp": 1},
        {**good, "aud": "s3cret-aud"},
        {**good, "sub": {"s3cret": 1}},
        {**good, "zone_id": "s3cret/"},
    ]
    tokens = [*corrupt_variants(SIGNER.sign(good)), *[SIGNER.sign(claims) for claims in bad]]
    for token in tokens:
        refusal: Problem = verify_refused(authorization_header(token))
        output = f"{refusal!r} {refusal} {refusal.detail} {refusal.members} {caplog.text}"
        assert "s3cret" not in output
        assert not any(part in output for part in token.split("."))
        assert refusal.__suppress_context__ or refusal.__context__ is None


def test_minted_token_verifies_to_its_grant() -> None:
    grant = Grant(
        zone_id="z9",
        client_id="app",
        subject="user-2",
        scopes=("a", ADMIN),
        sid="s",
        session_id="x",
        delegation_edge_id="e",
        agent_id="a1",
        role=Role.AGENT,
        attempt="t",
    )
    caller = verify(authorization_header(LOCAL.mint(grant, 60)))
    assert caller == Caller(
        subject="user-2",
        client_id="app",
        zone_id="z9",
        scopes=frozenset({"a", ADMIN}),
        sid="s",
        session_id="x",
        delegation_edge_id="e",
        is_admin=True,
        agent_id="a1",
        role=Role.AGENT,
        attempt="t",
        is_local=True,
        issued_at=(NOW + 6) * 1000,
    )
    clock = FakeClock(NOW + 64)
    verify(authorization_header(LOCAL.mint(grant, 60)), build_authenticator(clock))
    clock.now += 1
    verify_refused(authorization_header(LOCAL.mint(grant, 60)), build_authenticator(clock))


GRANT = Grant(zone_id="z", client_id="c", subject="s")


@pytest.mark.parametrize(
    "mint",
    [
        lambda: LOCAL.mint(GRANT, 0),
        lambda: LOCAL.mint(GRANT, 10**15),
        lambda: LOCAL.mint(Grant(zone_id="a b", client_id="c", subject="s"), 60),
        lambda: LOCAL.mint(Grant(zone_id="z", client_id="", subject="s"), 60),
        lambda: LOCAL.mint(Grant(zone_id="z", client_id="c", subject="\ud800"), 60),
        lambda: LOCAL.mint(Grant(zone_id="z", client_id="c", subject="s", scopes=("a b",)), 60),
        lambda: LOCAL.mint(Grant(zone_id="z", client_id="c", subject="s", scopes=("",)), 60),
        lambda: LOCAL.mint(Grant(zone_id="z", client_id="c", subject="s", scopes=("x" * 9000,)), 60),
    ],
)
def test_local_issuer_mints_no_token_that_would_be_refused(mint: Callable[[], str]) -> None:
    with pytest.raises(Invalid):
        mint()


def test_local_issuer_name_derives_from_its_key() -> None:
    (jwk,) = LOCAL.jwks()["keys"]
    assert {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": LOCAL.kid}.items() <= jwk.items()
    assert "d" not in jwk
    required = f'{{"crv":"P-256","kty":"EC","x":"{jwk["x"]}","y":"{jwk["y"]}"}}'
    assert base64url(hashlib.sha256(required.encode()).digest()).decode() == LOCAL.kid
    assert LOCAL.issuer == f"urn:quarterdeck:{LOCAL.kid}"
    assert len(base64.urlsafe_b64decode(jwk["x"] + "=")) == 32
