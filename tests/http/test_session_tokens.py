"""A session's token is valid on every route while the session is live, and on none after it has ended."""

from __future__ import annotations

import pytest

from tests.support.route_table import read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, read_events, spawn

EVERY_SCOPE = ("agent:lifecycle", "coordinator.admin", "quarterdeck.admin")
ONE_SERVICE = ("/zones/{zone}/agents/{id}/services/{service}", "/zones/{zone}/agent-services/{id}")
FLEET_ROUTES = {
    "GET": ("members", "members/{member}", "members/{member}/capture", "members/{member}/inbox",
            "members/{member}/sent", "members/{member}/monitor", "messages", "messages/{message}", "timeline",
            "timeline/live", "monitor"),
    "POST": ("members", "members/{member}/send-input", "members/{member}/exec", "members/{member}/ping", "messages",
             "messages/{message}/ack", "messages/{message}/cancel", "monitor/claim", "monitor/beat", "monitor/release"),
    "PATCH": ("members/{member}/monitor",),
    "DELETE": ("members/{member}",),
}  # fmt: skip
EXPECTED_STATUS = {
    "POST /zones/{zone}/agents": 201,
    "DELETE /zones/{zone}/agents/{id}": 204,
    "POST /zones/{zone}/agents/{id}/resume": 409,  # it is not suspended
    "PATCH /zones/{zone}/agents/{id}/resume": 409,
    "DELETE /zones/{zone}": 204,
    "POST /zones/{zone}/delegations": 404,  # the named sessions do not exist
    **{f"GET /zones/{{zone}}/delegations/{{id}}{rest}": 404 for rest in ("", "/traverse", "/explain")},
    "DELETE /zones/{zone}/delegations/{id}": 404,
    "GET /sinks/{id}": 404,
    "POST /sinks/{id}/requeue": 404,
    "POST /redis/rebuild": 409,  # no Redis is configured
    "DELETE /secrets/keys/{id}": 404,
    "PATCH /zones/{zone}/delegations/{id}/revoke": 404,
    "POST /zones/{zone}/agents/{id}/services": 201,
    "POST /zones/{zone}/agent-services": 201,
    "POST /zones/{zone}/agents/{id}/heartbeat": 404,  # it has no services
    # The id is a session's, not a service's.
    **{f"{method} {path}": 404 for path in ONE_SERVICE for method in ("GET", "PATCH", "DELETE")},
    **{f"POST {path}/heartbeat": 404 for path in ONE_SERVICE},
    "POST /zones/{zone}/invocations": 404,  # there is no such service
    "POST /zones/{zone}/services/{service}/claim": 404,
    # The id is a session's, not an invocation's.
    **{f"GET /zones/{{zone}}/invocations/{{id}}{rest}": 404 for rest in ("", "/explain")},
    **{
        f"{method} /zones/{{zone}}/invocations/{{id}}/{verb}": 404
        for verb in ("start", "complete", "cancel", "heartbeat")
        for method in ("POST", "PATCH")
    },
    "PUT /api/v1/agents/{id}": 201,
    # The id is a session's, not an agent's.
    **{f"GET /api/v1/agents/{{id}}{rest}": 404 for rest in ("", "/health")},
    **{f"POST /api/v1/agents/{{id}}/{verb}": 404 for verb in ("heartbeat", "terminate", "token")},
    "GET /api/v1/members/{subject}": 404,  # the session is not a member
    "PUT /api/v1/members/{subject}": 201,
    "DELETE /api/v1/members/{subject}": 404,
    "GET /api/v1/agents/{id}/tasks": 404,
    "POST /api/v1/agents/{id}/claim": 404,
    "POST /api/v1/agent-tasks": 201,
    # The id is a session's, not a task's.
    **{f"{method} /api/v1/agent-tasks/{{id}}": 404 for method in ("GET", "PATCH")},
    "PATCH /api/v1/agent-tasks/{id}/progress": 404,
    **{
        f"POST /api/v1/agent-tasks/{{id}}/{verb}": 404
        for verb in ("cancel", "retry", "archive", "start", "complete", "fail", "release")
    },
    **{f"GET /api/v1/agent-tasks/{{id}}/{rest}": 404 for rest in ("logs", "explain", "tree")},
    "POST /api/v1/agent-tasks/{id}/logs": 404,
    "DELETE /api/v1/budgets": 404,  # there is none yet
    "POST /api/v1/webhooks": 201,
    # The id is a session's, not a webhook's.
    **{f"{method} /api/v1/webhooks/{{id}}": 404 for method in ("GET", "PATCH", "DELETE")},
    **{f"POST /api/v1/webhooks/{{id}}/{verb}": 404 for verb in ("rotate-secret", "test")},
    "GET /api/v1/webhooks/{id}/deliveries": 404,
    "POST /api/v1/webhooks/{id}/deliveries/{delivery}/replay": 404,
    "POST /api/v1/fleets": 201,
    # There is no other fleet in the zone.
    **{f"{method} /api/v1/fleets/{{fleet}}": 404 for method in ("GET", "DELETE")},
    **{f"{method} /api/v1/fleets/{{fleet}}/{rest}": 404 for method, rests in FLEET_ROUTES.items() for rest in rests},
    "POST /zones/{zone}/keys": 201,
    "DELETE /zones/{zone}/keys/{id}": 404,  # the id is a session's
}
"""The status of a valid request, for routes where it is not 200."""


async def token_of_new_session(zone: FreshZone, *scopes: str) -> tuple[str, str]:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
    return session, zone.token(*(scopes or EVERY_SCOPE), session_id=session)


async def test_token_of_a_live_session_works_on_every_route(server: ServerProcess) -> None:
    for row in await read_route_table(server):
        # Each request gets its own zone: some of them end the session or the zone.
        zone = await create_zone(server)
        session, token = await token_of_new_session(zone)
        async with zone.client(token) as client:
            response = await client.request(**row.request_for(zone.id, session))
        assert response.status_code == EXPECTED_STATUS.get(str(row), 200), (str(row), response.text)


@pytest.mark.parametrize("state", ["ended", "ended with its parent", "expired", "never existed"])
async def test_token_of_an_ended_session_is_401_on_every_route(zone: FreshZone, state: str) -> None:
    async with zone.client() as client:
        parent = (await spawn(client, zone))["id"]
        session = (await spawn(client, zone, parent_id=parent))["id"]
        other = (await spawn(client, zone))["id"]
        token = zone.token(*EVERY_SCOPE, session_id="no-such-session" if state == "never existed" else session)
        if state == "ended":
            await end(client, zone, session)
        elif state == "ended with its parent":
            await end(client, zone, parent)
        elif state == "expired":
            database = DirectDatabase(zone.server.launch.database_url)
            database.execute("update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session)
    before = await read_events(zone)
    async with zone.client(token) as client:
        for row in await read_route_table(zone.server):
            if row.scope is None:
                continue
            for request in row.requests_for(zone.id, other):
                response = await client.request(**request)
                assert response.status_code == 401, (str(row), response.text)
                assert_problem(response, 401, "session_ended")
    assert await read_events(zone) == before


async def test_session_can_end_itself_and_is_refused_afterwards(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        await end(client, zone, session)
        assert_problem(await client.delete(zone.session_path(session)), 401, "session_ended")


async def test_ended_session_cannot_replay_its_idempotency_key(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        client.headers["idempotency-key"] = "k"
        await spawn(client, zone)
        async with zone.client() as owner:
            await end(owner, zone, session)
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 401, "session_ended")


async def test_token_stays_valid_when_another_session_ends(zone: FreshZone) -> None:
    first, first_token = await token_of_new_session(zone, "agent:lifecycle")
    _, second_token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client() as client:
        await end(client, zone, first)
    async with zone.client(second_token) as client:
        assert (await client.get(zone.sessions_path)).status_code == 200
    async with zone.client(first_token) as client:
        assert (await client.get(zone.sessions_path)).status_code == 401
