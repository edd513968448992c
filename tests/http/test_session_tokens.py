"""A token that speaks for a session is good while that session lives, and from its end on no longer, on any route."""

from __future__ import annotations

import pytest

from tests.support.route_table import read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, read_events, spawn

EVERY_SCOPE = ("agent:lifecycle", "coordinator.admin", "quarterdeck.admin")
ONE_SERVICE = ("/zones/{zone}/agents/{id}/services/{service}", "/zones/{zone}/agent-services/{id}")
FLEETS = {
    "GET": ("members", "members/{member}", "members/{member}/capture", "members/{member}/inbox",
            "members/{member}/sent", "members/{member}/monitor", "messages", "messages/{message}", "timeline",
            "timeline/live", "monitor"),
    "POST": ("members", "members/{member}/send-input", "members/{member}/exec", "members/{member}/ping", "messages",
             "messages/{message}/ack", "messages/{message}/cancel", "monitor/claim", "monitor/beat", "monitor/release"),
    "PATCH": ("members/{member}/monitor",),
    "DELETE": ("members/{member}",),
}  # fmt: skip
NOT_200 = {
    "POST /zones/{zone}/agents": 201,
    "DELETE /zones/{zone}/agents/{id}": 204,
    "POST /zones/{zone}/agents/{id}/resume": 409,  # it is not suspended
    "PATCH /zones/{zone}/agents/{id}/resume": 409,
    "DELETE /zones/{zone}": 204,
    "POST /zones/{zone}/delegations": 404,  # its sessions are nobody's
    **{f"GET /zones/{{zone}}/delegations/{{id}}{rest}": 404 for rest in ("", "/traverse", "/explain")},
    "DELETE /zones/{zone}/delegations/{id}": 404,
    "GET /sinks/{id}": 404,
    "POST /sinks/{id}/requeue": 404,
    "POST /redis/rebuild": 409,  # the server was told of none
    "DELETE /secrets/keys/{id}": 404,
    "PATCH /zones/{zone}/delegations/{id}/revoke": 404,
    "POST /zones/{zone}/agents/{id}/services": 201,
    "POST /zones/{zone}/agent-services": 201,
    "POST /zones/{zone}/agents/{id}/heartbeat": 404,  # it has no services
    # The id is a session's, and no service's.
    **{f"{method} {path}": 404 for path in ONE_SERVICE for method in ("GET", "PATCH", "DELETE")},
    **{f"POST {path}/heartbeat": 404 for path in ONE_SERVICE},
    "POST /zones/{zone}/invocations": 404,  # there is no such service
    "POST /zones/{zone}/services/{service}/claim": 404,
    # The id is a session's, and no invocation's.
    **{f"GET /zones/{{zone}}/invocations/{{id}}{rest}": 404 for rest in ("", "/explain")},
    **{
        f"{method} /zones/{{zone}}/invocations/{{id}}/{verb}": 404
        for verb in ("start", "complete", "cancel", "heartbeat")
        for method in ("POST", "PATCH")
    },
    "PUT /api/v1/agents/{id}": 201,
    # The id is a session's, and no agent's.
    **{f"GET /api/v1/agents/{{id}}{rest}": 404 for rest in ("", "/health")},
    **{f"POST /api/v1/agents/{{id}}/{verb}": 404 for verb in ("heartbeat", "terminate", "token")},
    "GET /api/v1/members/{subject}": 404,  # the session is no member
    "PUT /api/v1/members/{subject}": 201,
    "DELETE /api/v1/members/{subject}": 404,
    "GET /api/v1/agents/{id}/tasks": 404,
    "POST /api/v1/agents/{id}/claim": 404,
    "POST /api/v1/agent-tasks": 201,
    # The id is a session's, and no task's.
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
    # The id is a session's, and no webhook's.
    **{f"{method} /api/v1/webhooks/{{id}}": 404 for method in ("GET", "PATCH", "DELETE")},
    **{f"POST /api/v1/webhooks/{{id}}/{verb}": 404 for verb in ("rotate-secret", "test")},
    "GET /api/v1/webhooks/{id}/deliveries": 404,
    "POST /api/v1/webhooks/{id}/deliveries/{delivery}/replay": 404,
    "POST /api/v1/fleets": 201,
    # There is no other fleet in the zone.
    **{f"{method} /api/v1/fleets/{{fleet}}": 404 for method in ("GET", "DELETE")},
    **{f"{method} /api/v1/fleets/{{fleet}}/{rest}": 404 for method, rests in FLEETS.items() for rest in rests},
    "POST /zones/{zone}/keys": 201,
    "DELETE /zones/{zone}/keys/{id}": 404,  # the id is a session's
}
"""What routes answer whose request is good, where that is not 200."""


async def token_of_new_session(zone: FreshZone, *scopes: str) -> tuple[str, str]:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
    return session, zone.token(*(scopes or EVERY_SCOPE), session_id=session)


async def test_it_works_on_every_route_while_its_session_lives(server: ServerProcess) -> None:
    for row in await read_route_table(server):
        # In a zone of its own each time: some of these end the session, or the zone.
        zone = await create_zone(server)
        session, token = await token_of_new_session(zone)
        async with zone.client(token) as client:
            answer = await client.request(**row.request_for(zone.id, session))
        assert answer.status_code == NOT_200.get(str(row), 200), (str(row), answer.text)


@pytest.mark.parametrize("how", ["ended", "ended with its parent", "expired", "never there"])
async def test_from_the_end_of_its_session_on_it_is_401_on_every_route(zone: FreshZone, how: str) -> None:
    async with zone.client() as client:
        parent = (await spawn(client, zone))["id"]
        session = (await spawn(client, zone, parent_id=parent))["id"]
        other = (await spawn(client, zone))["id"]
        token = zone.token(*EVERY_SCOPE, session_id="no-such-session" if how == "never there" else session)
        if how == "ended":
            await end(client, zone, session)
        elif how == "ended with its parent":
            await end(client, zone, parent)
        elif how == "expired":
            side = DirectDatabase(zone.server.launch.database_url)
            side.execute("update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session)
    before = await read_events(zone)
    async with zone.client(token) as client:
        for row in await read_route_table(zone.server):
            if row.scope is None:
                continue
            for asked in row.requests_for(zone.id, other):
                answer = await client.request(**asked)
                assert answer.status_code == 401, (str(row), answer.text)
                assert_problem(answer, 401, "session_ended")
    assert await read_events(zone) == before


async def test_a_session_may_end_itself_and_is_then_refused(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        await end(client, zone, session)
        assert_problem(await client.delete(zone.session_path(session)), 401, "session_ended")


async def test_an_ended_session_learns_nothing_by_replaying_its_key(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        client.headers["idempotency-key"] = "k"
        await spawn(client, zone)
        async with zone.client() as owner:
            await end(owner, zone, session)
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 401, "session_ended")


async def test_one_sessions_end_is_not_anothers(zone: FreshZone) -> None:
    first, first_token = await token_of_new_session(zone, "agent:lifecycle")
    _, second_token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client() as client:
        await end(client, zone, first)
    async with zone.client(second_token) as client:
        assert (await client.get(zone.sessions_path)).status_code == 200
    async with zone.client(first_token) as client:
        assert (await client.get(zone.sessions_path)).status_code == 401
