"""A token that speaks for a session is good while that session lives, and from its end on no longer, on any route."""

from __future__ import annotations

import pytest

from tests.support.keel import Side
from tests.support.table import table_of
from tests.support.zone import APP, FreshZone, assert_problem, end, events_of, spawn

EVERY_SCOPE = ("agent:lifecycle", "coordinator.admin", "quarterdeck.admin")


async def token_of_new_session(zone: FreshZone, *scopes: str) -> tuple[str, str]:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
    return session, zone.token(*(scopes or EVERY_SCOPE), session_id=session)


async def test_it_works_on_every_route_while_its_session_lives(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone)
    async with zone.client(token) as client:
        for row in await table_of(zone.server):
            body = {"application_id": APP} if row.method == "POST" else {} if row.has_body else None
            path = row.at(zone.id, "no-such-session" if row.method == "DELETE" else session)
            answer = await client.request(row.method, path, json=body)
            assert answer.status_code in (200, 201) or row.method == "DELETE", (str(row), answer.text)
            assert answer.status_code != 401, row


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
            side = Side(zone.server.launch.database_url)
            side.run(
                "update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session
            )
    before = await events_of(zone)
    async with zone.client(token) as client:
        for row in await table_of(zone.server):
            if row.scope is None:
                continue
            body = {"application_id": APP} if row.method == "POST" else {} if row.has_body else None
            answer = await client.request(row.method, row.at(zone.id, other), json=body)
            assert answer.status_code == 401, (str(row), answer.text)
            assert_problem(answer, 401, "session_ended")
    assert await events_of(zone) == before


async def test_a_session_may_end_itself_and_is_then_refused(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        await end(client, zone, session)
        assert_problem(await client.delete(zone.agent(session)), 401, "session_ended")


async def test_an_ended_session_learns_nothing_by_replaying_its_key(zone: FreshZone) -> None:
    session, token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client(token) as client:
        client.headers["idempotency-key"] = "k"
        await spawn(client, zone)
        async with zone.client() as owner:
            await end(owner, zone, session)
        assert_problem(await client.post(zone.agents, json={"application_id": APP}), 401, "session_ended")


async def test_one_sessions_end_is_not_anothers(zone: FreshZone) -> None:
    first, first_token = await token_of_new_session(zone, "agent:lifecycle")
    _, second_token = await token_of_new_session(zone, "agent:lifecycle")
    async with zone.client() as client:
        await end(client, zone, first)
    async with zone.client(second_token) as client:
        assert (await client.get(zone.agents)).status_code == 200
    async with zone.client(first_token) as client:
        assert (await client.get(zone.agents)).status_code == 401
