"""Role, attempt and agent claims of a token, and whether the local issuer signed them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from quarterdeck.core.caller import LIFECYCLE, Caller, Role
from quarterdeck.http.auth import Authenticator, AuthSettings, Grant, LocalIssuer
from tests.http.auth_support import (
    NOW,
    AuthenticatorHarness,
    FakeClock,
    TokenSigner,
    authorization_header,
    build_claims,
    run_issuer,
)

KEY = generate_private_key(SECP256R1())
LOCAL = LocalIssuer(KEY, None, FakeClock())
SIGNER = TokenSigner(LOCAL.kid, "ES256", KEY)


async def verify(**claims: object) -> Caller:
    """The caller of a local token with these claims."""
    authenticator = Authenticator(AuthSettings(), LOCAL, FakeClock())
    return await authenticator.verify_token(authorization_header(SIGNER.sign(build_claims(LOCAL.issuer, **claims))))


async def test_role_and_attempt_claims_are_accepted() -> None:
    caller = await verify(agent_id="a1", role="AGENT", attempt="t")
    assert (caller.agent_id, caller.role, caller.attempt) == ("a1", Role.AGENT, "t")
    assert caller.is_local


@pytest.mark.parametrize("role", ["owner", "ROOT", "", " OWNER", None, 1, ["OWNER"], {"OWNER": True}])
async def test_unknown_role_claim_is_ignored(role: object) -> None:
    assert (await verify(role=role)).role is None


@pytest.mark.parametrize("attempt", ["", "a\n", "a" * 256, 7, ["t"]])
async def test_malformed_attempt_claim_is_ignored(attempt: object) -> None:
    assert (await verify(attempt=attempt)).attempt is None


async def test_issued_at_follows_the_iat_claim_and_defaults_to_zero() -> None:
    assert (await verify(iat=NOW)).issued_at == (NOW + 6) * 1000
    assert (await verify(iat=NOW - 60.5)).issued_at == (NOW - 54.5) * 1000
    assert (await verify()).issued_at == 0
    assert (await verify(agent_since="7")).agent_since is None


async def test_local_issuer_mints_agent_tokens() -> None:
    grant = Grant(
        zone_id="z",
        client_id="app",
        subject="agent:a1",
        scopes=(LIFECYCLE,),
        agent_id="a1",
        role=Role.AGENT,
        attempt="t",
        agent_since=7,
    )
    caller = await Authenticator(AuthSettings(), LOCAL, FakeClock()).verify_token(
        authorization_header(LOCAL.mint(grant, 60))
    )
    assert (caller.agent_id, caller.role, caller.attempt, caller.is_local) == ("a1", Role.AGENT, "t", True)
    assert caller.agent_since == 7


async def test_external_issuer_grants_roles_but_is_not_local() -> None:
    async with run_issuer() as issuer:
        signer, harness = TokenSigner("k1"), AuthenticatorHarness(issuer)
        issuer.keys = [signer.jwk()]
        with_role = await harness.verify(signer, role="ADMIN")
        without_role = await harness.verify(signer, role="administrator")
    assert (with_role.role, with_role.is_local) == (Role.ADMIN, False)
    assert (without_role.role, without_role.is_local) == (None, False)
