"""Zones are apart: whoever holds a token of one learns nothing of another, and changes nothing in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from quarterdeck.core.caller import ADMIN
from tests.support.route_table import UNUSED_NUMBER, RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn


def told(answer: httpx.Response, *ids: str) -> tuple[int, str]:
    """An answer without what differs between any two requests, and without the ids that were asked for."""
    text = answer.text.replace(str(answer.headers.get("x-request-id")), "REQUEST")
    for asked in ids:
        text = text.replace(asked, "ASKED")
    return answer.status_code, text


async def zone_routes(zone: FreshZone) -> list[RouteRow]:
    return [row for row in await read_route_table(zone.server) if row.has_zone]


@dataclass(frozen=True)
class Foreign:
    """Another zone, with one of everything that has an id."""

    zone: FreshZone
    ids: Mapping[str, str]

    def one(self, row: RouteRow) -> str:
        return self.ids[row.resource_name] if row.resource_name else ""


async def somebody_elses(server: ServerProcess) -> Foreign:
    zone = await create_zone(server)
    async with zone.client() as owner, server.client() as admin:
        session = (await spawn(owner, zone))["id"]
        key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))["id"]
        lent = {"source_session_id": session, "target_session_id": (await spawn(owner, zone))["id"]}
        edge = json_object(await owner.post(f"{zone.path}/delegations", json=lent))["id"]
        asked = {"endpoint_url": "https://example.com/"}
        service = json_object(await owner.post(zone.session_path(session, "/services"), json=asked))["id"]
        called = {"service_id": service, "method": "m", "idempotency_key": "k"}
        invocation = json_object(await owner.post(f"{zone.path}/invocations", json=called))["id"]
    return Foreign(
        zone,
        {
            "agents": session,
            "keys": key,
            "agent-services": service,
            "services": service,
            "invocations": invocation,
            "delegations": edge,
            "inbound": session,
            "outbound": session,
        },
    )


async def credentials_of(zone: FreshZone) -> dict[str, dict[str, str]]:
    """What a program of the zone may come with, each holding all that a zone can give."""
    scopes = ["agent:lifecycle", "coordinator.admin"]
    async with zone.server.client() as admin:
        asked = {"application_id": APP, "scopes": scopes}
        key = json_object(await admin.post(f"{zone.path}/keys", json=asked))["key"]
    return {
        "a token": {"Authorization": f"Bearer {zone.token(*scopes)}"},
        "a token of a plain application": {"Authorization": f"Bearer {zone.token()}"},
        "a key": {"X-API-Key": key},
    }


MISSING = {
    "agents": "agent_not_found",
    "keys": "key_not_found",
    "agent-services": "agent_service_not_found",
    "services": "agent_service_not_found",
    "invocations": "invocation_not_found",
    "delegations": "delegation_not_found",
    "inbound": "agent_not_found",
    "outbound": "agent_not_found",
}
"""What is said of an id that is not there, by what it is an id of."""


async def test_every_route_of_a_foreign_zone_answers_as_if_there_were_none(zone: FreshZone) -> None:
    foreign = await somebody_elses(zone.server)
    before = await read_events(foreign.zone)
    rows = await zone_routes(zone)
    assert any(row.has_stream for row in rows)
    for kind, headers in (await credentials_of(zone)).items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                refusal = "missing_scope" if row.scope == ADMIN else "zone_mismatch"
                one = foreign.one(row)
                for real, none in zip(
                    row.requests_for(foreign.zone.id, one), row.requests_for("no-such-zone", one), strict=True
                ):
                    answers = [await client.request(**asked) for asked in (real, none)]
                    assert_problem(answers[0], 403, refusal)
                    assert told(answers[0], foreign.zone.id) == told(answers[1], "no-such-zone"), (kind, row)
    assert await read_events(foreign.zone) == before


async def test_what_is_in_a_foreign_zone_is_not_found_by_its_id_on_any_route_of_ones_own(zone: FreshZone) -> None:
    foreign = await somebody_elses(zone.server)
    before = await read_events(foreign.zone)
    absent = "00000000-0000-7000-8000-000000000000"
    credentials = await credentials_of(zone)
    credentials["an administrator's token"] = {"Authorization": f"Bearer {zone.server.admin_token}"}
    rows = [row for row in await zone_routes(zone) if row.resource_name]
    assert {row.resource_name for row in rows} == MISSING.keys(), "tell this test what else has an id"
    for kind, headers in credentials.items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                if row.scope == ADMIN and "administrator" not in kind:
                    continue
                asked = [row.request_for(zone.id, one) for one in (foreign.one(row), absent)]
                real, none = [await client.request(**each) for each in asked]
                assert row.resource_name
                assert_problem(real, 404, MISSING[row.resource_name])
                assert told(real, foreign.one(row)) == told(none, absent), (kind, row)
    assert await read_events(foreign.zone) == before
    async with foreign.zone.client() as owner:
        assert json_object(await owner.get(foreign.zone.session_path(foreign.ids["agents"])))["status"] == "active"


# -- where the zone is the token's own, and a header may name another


async def in_somebody_elses_workspace(server: ServerProcess) -> Foreign:
    zone = await create_zone(server)
    async with zone.client(zone.token(role="OWNER")) as owner:
        agent, member = f"agent-{zone.id}", f"member-{zone.id}"
        assert (await owner.put(f"/api/v1/agents/{agent}", json={"name": "a"})).status_code == 201
        assert (await owner.put(f"/api/v1/members/{member}", json={"role": "OWNER"})).status_code == 201
        asked = {"title": "t", "taskType": "development"}
        task = json_object(await owner.post("/api/v1/agent-tasks", json=asked))["id"]
        hook = json_object(await owner.post("/api/v1/webhooks", json={"url": "https://hooks.example.com/"}))["id"]
        fleet = json_object(await owner.post("/api/v1/fleets", json={}))
        spoken = {"from_agent_id": 2, "to_agent_id": 1, "text": "hello"}
        assert (await owner.post("/api/v1/fleets/1/messages", json=spoken)).status_code == 201
    # The same number names the fleet, its director, and the first message.
    ids = {"members": member, "agent-tasks": task, "webhooks": hook, "fleets": str(fleet["fleet_id"])}
    return Foreign(zone, {"agents": agent, **ids})


NOT_THERE = {
    "fleets": "fleet_not_found",
    "agents": "agent_not_found",
    "members": "member_not_found",
    "agent-tasks": "task_not_found",
    "webhooks": "webhook_not_found",
}


async def test_what_is_in_a_foreign_workspace_is_not_found_by_its_id_on_any_route(zone: FreshZone) -> None:
    foreign = await in_somebody_elses_workspace(zone.server)
    before = await read_events(foreign.zone)
    # Whoever puts something under an id makes it in its own workspace.
    rows = [
        row
        for row in await read_route_table(zone.server)
        if row.uses_caller_zone and row.resource_name and row.method != "PUT"
    ]
    assert {row.resource_name for row in rows} == NOT_THERE.keys(), "tell this test what else has an id"
    absent = "00000000-0000-7000-8000-000000000000"
    for token in (zone.token(role="OWNER"), zone.server.admin_token):
        async with zone.client(token) as client:
            # In the administrator's own workspace, which all tests share, a fleet may have the same small number.
            client.headers["X-Workspace-ID"] = zone.id
            for row in rows:
                nobody = UNUSED_NUMBER if row.resource_name == "fleets" else absent
                asked = [row.request_for(zone.id, one) for one in (foreign.one(row), nobody)]
                real, none = [await client.request(**each) for each in asked]
                assert row.resource_name
                assert real.status_code == 404, (str(row), real.text)
                assert_problem(real, 404, NOT_THERE[row.resource_name])
                assert told(real, foreign.one(row)) == told(none, nobody), str(row)
    assert await read_events(foreign.zone) == before


async def test_a_foreign_workspace_is_there_on_no_route_also_for_what_is_in_it(zone: FreshZone) -> None:
    foreign = await in_somebody_elses_workspace(zone.server)
    before = await read_events(foreign.zone)
    rows = [row for row in await read_route_table(zone.server) if row.uses_caller_zone]
    for kind, headers in (await credentials_of(zone)).items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                asked = row.request_for(zone.id, foreign.ids.get(row.resource_name or "", "x"))
                answers = [
                    await client.request(**asked, headers={"X-Workspace-ID": other})
                    for other in (foreign.zone.id, "no-such-zone")
                ]
                assert_problem(answers[0], 404, "workspace_not_found")
                assert told(answers[0], foreign.zone.id) == told(answers[1], "no-such-zone"), (kind, row)
    assert await read_events(foreign.zone) == before


async def test_a_foreign_session_is_named_in_no_body_and_no_query_as_if_it_were_there(zone: FreshZone) -> None:
    session = (await somebody_elses(zone.server)).ids["agents"]
    asks: list[dict[str, Any]] = []
    for one in (session, "no-such-session"):
        asks += [
            {"method": "POST", "url": zone.sessions_path, "json": {"application_id": APP, "parent_id": one}},
            {"method": "POST", "url": f"{zone.path}/keys", "json": {"application_id": APP, "session_id": one}},
            {"url": f"{zone.path}/explain/spawn", "params": {"application_id": APP, "parent_id": one}},
            {"url": zone.sessions_path, "params": {"parent_id": one}},
            {"url": zone.sessions_path, "params": {"root_id": one}},
            {"url": f"{zone.path}/events", "params": {"subject": one}},
            {
                "method": "POST",
                "url": f"{zone.path}/agent-services",
                "json": {"application_id": APP, "endpoint_url": "https://example.com/", "agent_id": one},
            },
        ]
    async with zone.server.client() as admin:
        answers = [await admin.request(**{"method": "GET", **asked}) for asked in asks]
    real, none = answers[: len(answers) // 2], answers[len(answers) // 2 :]
    for first, second in zip(real, none, strict=True):
        assert told(first, session) == told(second, "no-such-session"), first.request.url
    assert_problem(real[0], 404, "parent_not_found")
    assert_problem(real[1], 404, "agent_not_found")
    assert_problem(real[-1], 404, "agent_not_found")


async def test_a_foreign_session_parents_nothing_and_narrows_every_list_to_nothing(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with foreign.client() as owner:
        session = (await spawn(owner, foreign))["id"]
    async with zone.client() as client:
        await spawn(client, zone)
        answers = [
            await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": parent})
            for parent in (session, "no-such-session")
        ]
        assert_problem(answers[0], 404, "parent_not_found")
        assert told(answers[0], session) == told(answers[1], "no-such-session")
        for query in ({"parent_id": session}, {"root_id": session}):
            assert (await client.get(zone.sessions_path, params=query)).json()["items"] == []
        events = await client.get(f"{zone.path}/events", params={"subject": session})
        assert events.json()["items"] == []


async def test_an_administrator_does_not_reach_one_zones_session_through_another(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with zone.server.client() as admin:
        session = (await spawn(admin, foreign))["id"]
        assert_problem(await admin.get(zone.session_path(session)), 404, "agent_not_found")
        assert_problem(await admin.delete(zone.session_path(session)), 404, "agent_not_found")
        assert (await admin.get(foreign.session_path(session))).status_code == 200


async def test_idempotency_keys_quotas_and_cursors_of_two_zones_do_not_meet(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server, max_sessions=1)
    ids: list[Any] = []
    for each in (zone, foreign):
        async with each.client() as client:
            answer = await client.post(
                each.sessions_path, json={"application_id": APP}, headers={"idempotency-key": "k"}
            )
            assert answer.status_code == 201
            ids.append(answer.json()["id"])
    assert ids[0] != ids[1]
    async with zone.client() as client:
        await spawn(client, zone)
        cursor = (await client.get(zone.sessions_path, params={"limit": 1})).json()["next_cursor"]
    async with foreign.client() as client:
        refused = await client.post(foreign.sessions_path, json={"application_id": APP})
        assert_problem(refused, 429, "agent_zone_limit_exceeded")
        page = await client.get(foreign.sessions_path, params={"cursor": cursor})
        assert {item["zone_id"] for item in page.json()["items"]} <= {foreign.id}


# -- ownership, inside a zone


async def test_an_application_spawns_for_itself_and_for_no_other(zone: FreshZone) -> None:
    async with zone.client() as client:
        refused = await client.post(zone.sessions_path, json={"application_id": "other"})
    assert_problem(refused, 403, "application_ownership_required")
    assert len(await read_events(zone)) == 1


async def test_a_power_to_spawn_for_an_application_is_for_that_application_alone(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        assert (await spawn(client, zone, application_id="other"))["application_id"] == "other"
        for application in ("others", "othe", "third"):
            refused = await client.post(zone.sessions_path, json={"application_id": application})
            assert_problem(refused, 403, "application_ownership_required")


async def test_a_parent_of_another_application_needs_the_power_to_spawn_under_it(zone: FreshZone) -> None:
    async with zone.client(zone.token(client_id="other")) as owner:
        parent = (await spawn(owner, zone, application_id="other"))["id"]
    asked = {"application_id": APP, "parent_id": parent}
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        assert_problem(await client.post(zone.sessions_path, json=asked), 403, "parent_ownership_required")
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_under:other")) as client:
        child = await client.post(zone.sessions_path, json=asked)
        assert (child.status_code, child.json()["parent_id"]) == (201, parent)


async def test_only_the_owner_ends_a_session(zone: FreshZone) -> None:
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        async with zone.client(zone.token(client_id="other")) as other:
            refused = await other.delete(zone.session_path(session))
            assert_problem(refused, 403, "application_ownership_required")
        assert json_object(await owner.get(zone.session_path(session)))["status"] == "active"
        await end(owner, zone, session)


async def test_the_zones_administrator_acts_for_every_application_of_it(zone: FreshZone) -> None:
    async with zone.client(zone.token(client_id="other")) as owner:
        parent = (await spawn(owner, zone, application_id="other"))["id"]
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin", client_id="console")) as admin:
        await spawn(admin, zone, application_id="third", parent_id=parent)
        await end(admin, zone, parent)


async def test_a_spawn_refused_for_its_owner_does_not_tell_whether_its_key_is_used(zone: FreshZone) -> None:
    async with zone.client() as owner:
        await owner.post(zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": "k"})
    async with zone.client(zone.token(client_id="other")) as other:
        for key in ("k", "unused"):
            refused = await other.post(
                zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": key}
            )
            assert_problem(refused, 403, "application_ownership_required")
