"""Every route responds to every kind of credential as the table of this module says.

The expected response depends only on the credential, and on the route's scope, zone and permission. New routes are
included, because the routes are read from the server.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx
import pytest

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, LIFECYCLE, METRICS, Role
from quarterdeck.http.auth import Grant
from tests.http.auth_support import TokenSigner, own_signer
from tests.support.permissions import ROLES_BY_PERMISSION
from tests.support.route_table import RouteRow, read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

EVERY_SCOPE = (LIFECYCLE, COORDINATOR_ADMIN, ADMIN)
ENDS_ZONE = {"POST /zones/{zone}/stop", "DELETE /zones/{zone}"}
"""Routes after which a zone accepts less. They are requested last."""
Refusal = tuple[int, str]
INVALID_TOKEN = (401, "invalid_token")
SESSION_ENDED, AGENT_ENDED = (401, "session_ended"), (401, "agent_ended")
REFUSALS = {
    "missing_token",
    "invalid_token",
    "missing_scope",
    "zone_mismatch",
    "session_ended",
    "agent_ended",
    "workspace_not_found",
    "not_a_member",
    "forbidden_role",
}
"""The error codes of callers that may not use a route. A caller that may use it gets none of them."""


@dataclass(frozen=True)
class Credential:
    headers: Mapping[str, str]
    invalid: Refusal | None = None
    """The refusal on every route, if the credential itself is refused."""
    scopes: tuple[str, ...] = (LIFECYCLE,)
    is_foreign: bool = False
    """Whether it is for another zone."""
    bearer_ended: Refusal | None = None
    """The refusal on every route that its scopes allow, if its session or agent has ended."""
    role: Role = Role.MEMBER


def expected_refusal(credential: Credential, row: RouteRow) -> Refusal | None:
    if row.scope is None:
        return None
    if credential.invalid:
        return credential.invalid
    if row.scope not in credential.scopes:
        return 403, "missing_scope"
    if credential.is_foreign and row.has_zone:
        return 403, "zone_mismatch"
    if credential.is_foreign and row.uses_caller_zone:
        return 404, "workspace_not_found"
    if credential.bearer_ended:
        return credential.bearer_ended
    if row.permission is not None and credential.role not in ROLES_BY_PERMISSION[row.permission]:
        return 403, "forbidden_role"
    return None


# -- credentials -------------------------------------------------------------------------------------------------


def bearer_headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def create_session(zone: FreshZone) -> str:
    async with zone.client() as client:
        return str((await spawn(client, zone))["id"])


async def create_ended_session(zone: FreshZone) -> str:
    session_id = await create_session(zone)
    async with zone.client() as client:
        await end(client, zone, session_id)
    return session_id


async def create_expired_session(zone: FreshZone) -> str:
    session_id = await create_session(zone)
    DirectDatabase(zone.server.launch.database_url).execute(
        "update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session_id
    )
    return session_id


async def register_agent(zone: FreshZone) -> str:
    """Register the agent `a` and return a token that names this registration."""
    async with zone.client(zone.token(role=Role.OWNER)) as owner:
        assert (await owner.put("/api/v1/agents/a", json={"name": "a"})).status_code in (200, 201)
    database = DirectDatabase(zone.server.launch.database_url)
    [(since,)] = database.execute("select created_at from agents where zone_id = ? and id = 'a'", zone.id)
    grant = Grant(
        zone_id=zone.id,
        client_id=APP,
        subject="agent:a",
        scopes=(LIFECYCLE,),
        sid="sid",
        agent_id="a",
        agent_since=int(str(since)),
    )
    return zone.server.issuer.mint(grant, 600)


async def terminate_agent(zone: FreshZone) -> None:
    async with zone.client(zone.token(role=Role.OWNER)) as owner:
        assert (await owner.post("/api/v1/agents/a/terminate", json={})).status_code == 200


async def create_key(zone: FreshZone, **fields: object) -> tuple[str, str]:
    """Return the id and the secret of a new API key."""
    async with zone.server.client() as admin:
        created = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP, **fields}))
        return created["id"], created["key"]


async def anonymous(zone: FreshZone) -> Credential:
    return Credential({}, (401, "missing_token"))


async def garbage(zone: FreshZone) -> Credential:
    return Credential(bearer_headers("let-me-in"), INVALID_TOKEN)


async def expired_token(zone: FreshZone) -> Credential:
    issuer = zone.server.issuer.issuer
    claims = {"iss": issuer, "aud": issuer, "exp": time.time() - 60, "zone_id": zone.id, "sub": APP, "client_id": APP}
    token = own_signer(zone.server).sign({**claims, "scope": " ".join(EVERY_SCOPE)})
    return Credential(bearer_headers(token), INVALID_TOKEN)


async def token_of_another_issuer(zone: FreshZone) -> Credential:
    url = "https://elsewhere.example"
    claims = {"iss": url, "aud": url, "exp": time.time() + 600, "zone_id": zone.id, "sub": APP, "client_id": APP}
    token = TokenSigner("elsewhere").sign({**claims, "scope": " ".join(EVERY_SCOPE)})
    return Credential(bearer_headers(token), INVALID_TOKEN)


async def token_with_a_forged_signature(zone: FreshZone) -> Credential:
    issuer = zone.server.issuer
    claims = {"iss": issuer.issuer, "aud": issuer.issuer, "exp": time.time() + 600, "zone_id": zone.id}
    token = TokenSigner(issuer.kid).sign({**claims, "sub": APP, "client_id": APP, "scope": " ".join(EVERY_SCOPE)})
    return Credential(bearer_headers(token), INVALID_TOKEN)


async def token_and_key(zone: FreshZone) -> Credential:
    _, key = await create_key(zone)
    return Credential({**bearer_headers(zone.token(*EVERY_SCOPE)), "X-API-Key": key}, INVALID_TOKEN)


async def token_of_another_zone(zone: FreshZone) -> Credential:
    token = (await create_zone(zone.server)).token(LIFECYCLE, COORDINATOR_ADMIN)
    return Credential({**bearer_headers(token), "X-Workspace-ID": zone.id}, is_foreign=True)


async def agent_token_of_another_zone(zone: FreshZone) -> Credential:
    token = await register_agent(await create_zone(zone.server))
    return Credential({**bearer_headers(token), "X-Workspace-ID": zone.id}, is_foreign=True)


async def token_without_the_scope(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token(COORDINATOR_ADMIN)), scopes=())


async def metrics_token(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token(METRICS)), scopes=())


async def application_token(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token()))


async def coordinator_admin_token(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token(LIFECYCLE, COORDINATOR_ADMIN)), role=Role.ADMIN)


async def live_session(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token(session_id=await create_session(zone))))


async def ended_session(zone: FreshZone) -> Credential:
    token = zone.token(*EVERY_SCOPE, session_id=await create_ended_session(zone))
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=SESSION_ENDED)


async def ended_session_without_admin(zone: FreshZone) -> Credential:
    token = zone.token(session_id=await create_ended_session(zone))
    return Credential(bearer_headers(token), bearer_ended=SESSION_ENDED)


async def expired_session(zone: FreshZone) -> Credential:
    token = zone.token(*EVERY_SCOPE, session_id=await create_expired_session(zone))
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=SESSION_ENDED)


async def unknown_session(zone: FreshZone) -> Credential:
    token = zone.token(*EVERY_SCOPE, session_id="never-spawned")
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=SESSION_ENDED)


async def administrator_of_an_ended_session_elsewhere(zone: FreshZone) -> Credential:
    home = await create_zone(zone.server)
    token = home.token(*EVERY_SCOPE, session_id=await create_ended_session(home))
    headers = {**bearer_headers(token), "X-Workspace-ID": zone.id}
    return Credential(headers, scopes=EVERY_SCOPE, bearer_ended=SESSION_ENDED)


async def live_agent(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(await register_agent(zone)), role=Role.AGENT)


async def unregistered_agent(zone: FreshZone) -> Credential:
    return Credential(bearer_headers(zone.token(agent_id="unregistered")), role=Role.AGENT)


async def terminated_agent(zone: FreshZone) -> Credential:
    token = await register_agent(zone)
    await terminate_agent(zone)
    return Credential(bearer_headers(token), bearer_ended=AGENT_ENDED)


async def terminated_agent_with_every_scope(zone: FreshZone) -> Credential:
    await register_agent(zone)
    await terminate_agent(zone)
    token = zone.token(*EVERY_SCOPE, agent_id="a")
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=AGENT_ENDED)


async def terminated_agent_with_a_live_session(zone: FreshZone) -> Credential:
    await register_agent(zone)
    await terminate_agent(zone)
    token = zone.token(*EVERY_SCOPE, agent_id="a", session_id=await create_session(zone))
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=AGENT_ENDED)


async def terminated_agent_with_an_ended_session(zone: FreshZone) -> Credential:
    await register_agent(zone)
    await terminate_agent(zone)
    token = zone.token(*EVERY_SCOPE, agent_id="a", session_id=await create_ended_session(zone))
    return Credential(bearer_headers(token), scopes=EVERY_SCOPE, bearer_ended=SESSION_ENDED)


async def agent_registered_again(zone: FreshZone) -> Credential:
    token = await register_agent(zone)
    await terminate_agent(zone)
    await register_agent(zone)
    return Credential(bearer_headers(token), bearer_ended=AGENT_ENDED)


def role_claim(role: Role) -> Callable[[FreshZone], Awaitable[Credential]]:
    async def build(zone: FreshZone) -> Credential:
        return Credential(bearer_headers(zone.token(role=role)), role=role)

    return build


def stored_role(role: Role) -> Callable[[FreshZone], Awaitable[Credential]]:
    """The stored role takes precedence over the role claim."""

    async def build(zone: FreshZone) -> Credential:
        async with zone.client(zone.token(role=Role.OWNER, subject="owner")) as owner:
            added = await owner.put("/api/v1/members/subject-1", json={"role": role})
            assert added.status_code == 201, added.text
        claim = Role.MEMBER if role is Role.OWNER else Role.OWNER
        return Credential(bearer_headers(zone.token(subject="subject-1", role=claim)), role=role)

    return build


async def removed_member(zone: FreshZone) -> Credential:
    credential = await stored_role(Role.OWNER)(zone)
    async with zone.client(zone.token(role=Role.OWNER, subject="owner")) as owner:
        assert (await owner.delete("/api/v1/members/subject-1")).status_code == 204
    return Credential(credential.headers, role=Role.MEMBER)


async def live_key(zone: FreshZone) -> Credential:
    _, key = await create_key(zone)
    return Credential({"X-API-Key": key})


async def revoked_key(zone: FreshZone) -> Credential:
    key_id, key = await create_key(zone, scopes=[LIFECYCLE, COORDINATOR_ADMIN])
    async with zone.server.client() as admin:
        assert (await admin.delete(f"{zone.path}/keys/{key_id}")).status_code == 204
    return Credential({"X-API-Key": key}, INVALID_TOKEN)


async def key_with_a_wrong_secret(zone: FreshZone) -> Credential:
    _, key = await create_key(zone)
    return Credential({"X-API-Key": key[:-4] + ("AAAA" if key[-4:] != "AAAA" else "BBBB")}, INVALID_TOKEN)


async def key_of_an_ended_session(zone: FreshZone) -> Credential:
    session_id = await create_session(zone)
    _, key = await create_key(zone, session_id=session_id)
    async with zone.client() as client:
        await end(client, zone, session_id)
    return Credential({"X-API-Key": key}, bearer_ended=SESSION_ENDED)


async def administrator(zone: FreshZone) -> Credential:
    headers = {**bearer_headers(zone.server.admin_token), "X-Workspace-ID": zone.id}
    return Credential(headers, scopes=EVERY_SCOPE, role=Role.OWNER)


CREDENTIALS: dict[str, Callable[[FreshZone], Awaitable[Credential]]] = {
    build.__name__.replace("_", " "): build
    for build in (
        anonymous, garbage, expired_token, token_of_another_issuer, token_with_a_forged_signature, token_and_key,
        token_of_another_zone, agent_token_of_another_zone, token_without_the_scope, metrics_token, application_token,
        coordinator_admin_token, live_session, ended_session, ended_session_without_admin, expired_session,
        unknown_session, administrator_of_an_ended_session_elsewhere, live_agent, unregistered_agent, terminated_agent,
        terminated_agent_with_every_scope, terminated_agent_with_a_live_session,
        terminated_agent_with_an_ended_session, agent_registered_again, removed_member, live_key, revoked_key,
        key_with_a_wrong_secret, key_of_an_ended_session, administrator,
    )
} | {
    f"{kind.__name__.replace('_', ' ')} {role}": kind(role) for kind in (role_claim, stored_role) for role in Role
}  # fmt: skip


# -- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_every_route_refuses_or_accepts_the_credential(zone: FreshZone, name: str) -> None:
    credential = await CREDENTIALS[name](zone)
    rows = sorted(await read_route_table(zone.server), key=lambda row: str(row) in ENDS_ZONE)
    refusals = {str(row): expected_refusal(credential, row) for row in rows}
    before = await read_events(zone)
    async with zone.server.client("") as client:
        client.headers.update(credential.headers)
        for row in rows:
            if refusal := refusals[str(row)]:
                for request in row.requests_for(zone.id, "no-such-id"):
                    assert_problem(await client.request(**request), *refusal)
            else:
                assert_accepted(row, await client.request(**row.request_for(zone.id, "no-such-id")))
    if all(refusals[str(row)] for row in rows if row.scope):
        assert await read_events(zone) == before, "refused requests change nothing"


def assert_accepted(row: RouteRow, response: httpx.Response) -> None:
    assert response.status_code < 500 and response.status_code != 401, (str(row), response.text)
    if response.status_code >= 400:
        assert response.json()["error"] not in REFUSALS, (str(row), response.text)
