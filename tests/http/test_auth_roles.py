"""What a token says of its bearer beyond who it is: a role, an attempt, an agent. Whose word it is, stays known."""

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


async def believed(**claims: object) -> Caller:
    """Who a token of the local issuer with these claims is."""
    judge = Authenticator(AuthSettings(), LOCAL, FakeClock())
    return await judge.verify_token(authorization_header(SIGNER.sign(build_claims(LOCAL.issuer, **claims))))


async def test_a_role_and_an_attempt_are_believed_as_the_issuers_word() -> None:
    caller = await believed(agent_id="a1", role="AGENT", attempt="t")
    assert (caller.agent_id, caller.role, caller.attempt) == ("a1", Role.AGENT, "t")
    assert caller.is_local


@pytest.mark.parametrize("role", ["owner", "ROOT", "", " OWNER", None, 1, ["OWNER"], {"OWNER": True}])
async def test_a_role_that_is_none_of_ours_is_no_role_and_no_reason_to_refuse(role: object) -> None:
    assert (await believed(role=role)).role is None


@pytest.mark.parametrize("attempt", ["", "a\n", "a" * 256, 7, ["t"]])
async def test_an_attempt_that_is_not_of_the_form_of_a_name_is_none(attempt: object) -> None:
    assert (await believed(attempt=attempt)).attempt is None


async def test_of_a_token_is_known_by_when_it_was_made_and_without_that_it_counts_as_the_oldest() -> None:
    assert (await believed(iat=NOW)).issued_at == (NOW + 6) * 1000
    assert (await believed(iat=NOW - 60.5)).issued_at == (NOW - 54.5) * 1000
    assert (await believed()).issued_at == 0
    assert (await believed(agent_since="7")).agent_since is None


async def test_the_local_issuer_mints_what_agents_are_given() -> None:
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


async def test_an_external_issuer_gives_roles_and_is_not_taken_for_the_local_one() -> None:
    async with run_issuer() as issuer:
        signer, bench = TokenSigner("k1"), AuthenticatorHarness(issuer)
        issuer.keys = [signer.jwk()]
        said = await bench.verify(signer, role="ADMIN")
        silent = await bench.verify(signer, role="administrator")
    assert (said.role, said.is_local) == (Role.ADMIN, False)
    assert (silent.role, silent.is_local) == (None, False)
