"""Zone isolation: a credential of one zone neither reveals nor changes anything in another zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from quarterdeck.core.caller import ADMIN
from tests.support.route_table import UNUSED_NUMBER, RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn


def normalized(response: httpx.Response, *ids: str) -> tuple[int, str]:
    """Status and text of a response, with the request id and the requested ids replaced."""
    text = response.text.replace(str(response.headers.get("x-request-id")), "REQUEST")
    for requested_id in ids:
        text = text.replace(requested_id, "ID")
    return response.status_code, text


async def zone_routes(zone: FreshZone) -> list[RouteRow]:
    return [row for row in await read_route_table(zone.server) if row.has_zone]


@dataclass(frozen=True)
class ForeignZone:
    """Another zone, with one resource of each kind."""

    zone: FreshZone
    ids: Mapping[str, str]

    def id_for(self, row: RouteRow) -> str:
        return self.ids[row.resource_name] if row.resource_name else ""


async def create_foreign_zone(server: ServerProcess) -> ForeignZone:
    zone = await create_zone(server)
    async with zone.client() as owner, server.client() as admin:
        session = (await spawn(owner, zone))["id"]
        key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))["id"]
        delegation_body = {"source_session_id": session, "target_session_id": (await spawn(owner, zone))["id"]}
        edge = json_object(await owner.post(f"{zone.path}/delegations", json=delegation_body))["id"]
        service_body = {"endpoint_url": "https://example.com/"}
        service = json_object(await owner.post(zone.session_path(session, "/services"), json=service_body))["id"]
        invocation_body = {"service_id": service, "method": "m", "idempotency_key": "k"}
        invocation = json_object(await owner.post(f"{zone.path}/invocations", json=invocation_body))["id"]
    return ForeignZone(
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
    """Headers for each kind of credential of a zone. All but the plain one have every scope that a zone can grant."""
    scopes = ["agent:lifecycle", "coordinator.admin"]
    async with zone.server.client() as admin:
        body = {"application_id": APP, "scopes": scopes}
        key = json_object(await admin.post(f"{zone.path}/keys", json=body))["key"]
    return {
        "a token": {"Authorization": f"Bearer {zone.token(*scopes)}"},
        "a token of a plain application": {"Authorization": f"Bearer {zone.token()}"},
        "a key": {"X-API-Key": key},
    }


ZONE_ERROR_CODES = {
    "agents": "agent_not_found",
    "keys": "key_not_found",
    "agent-services": "agent_service_not_found",
    "services": "agent_service_not_found",
    "invocations": "invocation_not_found",
    "delegations": "delegation_not_found",
    "inbound": "agent_not_found",
    "outbound": "agent_not_found",
}
"""The error code for an id that does not exist, by resource."""


async def test_every_route_of_another_zone_responds_as_if_the_zone_did_not_exist(zone: FreshZone) -> None:
    foreign = await create_foreign_zone(zone.server)
    before = await read_events(foreign.zone)
    rows = await zone_routes(zone)
    assert any(row.has_stream for row in rows)
    for kind, headers in (await credentials_of(zone)).items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                refusal = "missing_scope" if row.scope == ADMIN else "zone_mismatch"
                resource_id = foreign.id_for(row)
                for foreign_request, missing_request in zip(
                    row.requests_for(foreign.zone.id, resource_id),
                    row.requests_for("no-such-zone", resource_id),
                    strict=True,
                ):
                    responses = [await client.request(**request) for request in (foreign_request, missing_request)]
                    assert_problem(responses[0], 403, refusal)
                    assert normalized(responses[0], foreign.zone.id) == normalized(responses[1], "no-such-zone"), (
                        kind,
                        row,
                    )
    assert await read_events(foreign.zone) == before


async def test_id_of_another_zone_is_not_found_on_any_route_of_the_own_zone(zone: FreshZone) -> None:
    foreign = await create_foreign_zone(zone.server)
    before = await read_events(foreign.zone)
    absent = "00000000-0000-7000-8000-000000000000"
    credentials = await credentials_of(zone)
    credentials["an administrator's token"] = {"Authorization": f"Bearer {zone.server.admin_token}"}
    rows = [row for row in await zone_routes(zone) if row.resource_name]
    assert {row.resource_name for row in rows} == ZONE_ERROR_CODES.keys(), (
        "add the new resource to the table of error codes"
    )
    for kind, headers in credentials.items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                if row.scope == ADMIN and "administrator" not in kind:
                    continue
                requests = [row.request_for(zone.id, resource_id) for resource_id in (foreign.id_for(row), absent)]
                foreign_response, missing_response = [await client.request(**request) for request in requests]
                assert row.resource_name
                assert_problem(foreign_response, 404, ZONE_ERROR_CODES[row.resource_name])
                assert normalized(foreign_response, foreign.id_for(row)) == normalized(missing_response, absent), (
                    kind,
                    row,
                )
    assert await read_events(foreign.zone) == before
    async with foreign.zone.client() as owner:
        assert json_object(await owner.get(foreign.zone.session_path(foreign.ids["agents"])))["status"] == "active"


# -- routes that act in the token's zone, or in the one of a header


async def create_foreign_workspace(server: ServerProcess) -> ForeignZone:
    zone = await create_zone(server)
    async with zone.client(zone.token(role="OWNER")) as owner:
        agent, member = f"agent-{zone.id}", f"member-{zone.id}"
        assert (await owner.put(f"/api/v1/agents/{agent}", json={"name": "a"})).status_code == 201
        assert (await owner.put(f"/api/v1/members/{member}", json={"role": "OWNER"})).status_code == 201
        task_body = {"title": "t", "taskType": "development"}
        task = json_object(await owner.post("/api/v1/agent-tasks", json=task_body))["id"]
        webhook = json_object(await owner.post("/api/v1/webhooks", json={"url": "https://hooks.example.com/"}))["id"]
        fleet = json_object(await owner.post("/api/v1/fleets", json={}))
        message_body = {"from_agent_id": 2, "to_agent_id": 1, "text": "hello"}
        assert (await owner.post("/api/v1/fleets/1/messages", json=message_body)).status_code == 201
    # The fleet, its director and the first message have the same number.
    ids = {"members": member, "agent-tasks": task, "webhooks": webhook, "fleets": str(fleet["fleet_id"])}
    return ForeignZone(zone, {"agents": agent, **ids})


WORKSPACE_ERROR_CODES = {
    "fleets": "fleet_not_found",
    "agents": "agent_not_found",
    "members": "member_not_found",
    "agent-tasks": "task_not_found",
    "webhooks": "webhook_not_found",
}


async def test_id_of_another_workspace_is_not_found_on_any_route(zone: FreshZone) -> None:
    foreign = await create_foreign_workspace(zone.server)
    before = await read_events(foreign.zone)
    # PUT is left out: it creates the resource in the own workspace.
    rows = [
        row
        for row in await read_route_table(zone.server)
        if row.uses_caller_zone and row.resource_name and row.method != "PUT"
    ]
    assert {row.resource_name for row in rows} == WORKSPACE_ERROR_CODES.keys(), (
        "add the new resource to the table of error codes"
    )
    absent = "00000000-0000-7000-8000-000000000000"
    for token in (zone.token(role="OWNER"), zone.server.admin_token):
        async with zone.client(token) as client:
            # All tests share the administrator's own workspace, where a fleet may have the same small number.
            client.headers["X-Workspace-ID"] = zone.id
            for row in rows:
                missing_id = UNUSED_NUMBER if row.resource_name == "fleets" else absent
                requests = [row.request_for(zone.id, resource_id) for resource_id in (foreign.id_for(row), missing_id)]
                foreign_response, missing_response = [await client.request(**request) for request in requests]
                assert row.resource_name
                assert foreign_response.status_code == 404, (str(row), foreign_response.text)
                assert_problem(foreign_response, 404, WORKSPACE_ERROR_CODES[row.resource_name])
                assert normalized(foreign_response, foreign.id_for(row)) == normalized(missing_response, missing_id), (
                    str(row)
                )
    assert await read_events(foreign.zone) == before


async def test_workspace_header_of_another_zone_is_not_found_on_any_route(zone: FreshZone) -> None:
    foreign = await create_foreign_workspace(zone.server)
    before = await read_events(foreign.zone)
    rows = [row for row in await read_route_table(zone.server) if row.uses_caller_zone]
    for kind, headers in (await credentials_of(zone)).items():
        async with zone.server.client("") as client:
            client.headers.update(headers)
            for row in rows:
                request = row.request_for(zone.id, foreign.ids.get(row.resource_name or "", "x"))
                responses = [
                    await client.request(**request, headers={"X-Workspace-ID": other})
                    for other in (foreign.zone.id, "no-such-zone")
                ]
                assert_problem(responses[0], 404, "workspace_not_found")
                assert normalized(responses[0], foreign.zone.id) == normalized(responses[1], "no-such-zone"), (
                    kind,
                    row,
                )
    assert await read_events(foreign.zone) == before


async def test_session_of_another_zone_in_a_body_or_query_reads_as_missing(zone: FreshZone) -> None:
    session = (await create_foreign_zone(zone.server)).ids["agents"]
    requests: list[dict[str, Any]] = []
    for session_id in (session, "no-such-session"):
        requests += [
            {"method": "POST", "url": zone.sessions_path, "json": {"application_id": APP, "parent_id": session_id}},
            {"method": "POST", "url": f"{zone.path}/keys", "json": {"application_id": APP, "session_id": session_id}},
            {"url": f"{zone.path}/explain/spawn", "params": {"application_id": APP, "parent_id": session_id}},
            {"url": zone.sessions_path, "params": {"parent_id": session_id}},
            {"url": zone.sessions_path, "params": {"root_id": session_id}},
            {"url": f"{zone.path}/events", "params": {"subject": session_id}},
            {
                "method": "POST",
                "url": f"{zone.path}/agent-services",
                "json": {"application_id": APP, "endpoint_url": "https://example.com/", "agent_id": session_id},
            },
        ]
    async with zone.server.client() as admin:
        responses = [await admin.request(**{"method": "GET", **request}) for request in requests]
    foreign, missing = responses[: len(responses) // 2], responses[len(responses) // 2 :]
    for foreign_response, missing_response in zip(foreign, missing, strict=True):
        assert normalized(foreign_response, session) == normalized(missing_response, "no-such-session"), (
            foreign_response.request.url
        )
    assert_problem(foreign[0], 404, "parent_not_found")
    assert_problem(foreign[1], 404, "agent_not_found")
    assert_problem(foreign[-1], 404, "agent_not_found")


async def test_session_of_another_zone_is_no_parent_and_filters_lists_to_nothing(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with foreign.client() as owner:
        session = (await spawn(owner, foreign))["id"]
    async with zone.client() as client:
        await spawn(client, zone)
        responses = [
            await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": parent})
            for parent in (session, "no-such-session")
        ]
        assert_problem(responses[0], 404, "parent_not_found")
        assert normalized(responses[0], session) == normalized(responses[1], "no-such-session")
        for query in ({"parent_id": session}, {"root_id": session}):
            assert (await client.get(zone.sessions_path, params=query)).json()["items"] == []
        events = await client.get(f"{zone.path}/events", params={"subject": session})
        assert events.json()["items"] == []


async def test_administrator_cannot_reach_a_session_through_another_zone(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with zone.server.client() as admin:
        session = (await spawn(admin, foreign))["id"]
        assert_problem(await admin.get(zone.session_path(session)), 404, "agent_not_found")
        assert_problem(await admin.delete(zone.session_path(session)), 404, "agent_not_found")
        assert (await admin.get(foreign.session_path(session))).status_code == 200


async def test_idempotency_keys_quotas_and_cursors_are_separate_per_zone(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server, max_sessions=1)
    ids: list[Any] = []
    for one_zone in (zone, foreign):
        async with one_zone.client() as client:
            response = await client.post(
                one_zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": "k"}
            )
            assert response.status_code == 201
            ids.append(response.json()["id"])
    assert ids[0] != ids[1]
    async with zone.client() as client:
        await spawn(client, zone)
        cursor = (await client.get(zone.sessions_path, params={"limit": 1})).json()["next_cursor"]
    async with foreign.client() as client:
        refused = await client.post(foreign.sessions_path, json={"application_id": APP})
        assert_problem(refused, 429, "agent_zone_limit_exceeded")
        page = await client.get(foreign.sessions_path, params={"cursor": cursor})
        assert {item["zone_id"] for item in page.json()["items"]} <= {foreign.id}


# -- ownership inside a zone


async def test_application_can_spawn_only_for_itself(zone: FreshZone) -> None:
    async with zone.client() as client:
        refused = await client.post(zone.sessions_path, json={"application_id": "other"})
    assert_problem(refused, 403, "application_ownership_required")
    assert len(await read_events(zone)) == 1


async def test_spawn_for_scope_is_valid_only_for_that_application(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        assert (await spawn(client, zone, application_id="other"))["application_id"] == "other"
        for application in ("others", "othe", "third"):
            refused = await client.post(zone.sessions_path, json={"application_id": application})
            assert_problem(refused, 403, "application_ownership_required")


async def test_parent_of_another_application_needs_the_spawn_under_scope(zone: FreshZone) -> None:
    async with zone.client(zone.token(client_id="other")) as owner:
        parent = (await spawn(owner, zone, application_id="other"))["id"]
    body = {"application_id": APP, "parent_id": parent}
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        assert_problem(await client.post(zone.sessions_path, json=body), 403, "parent_ownership_required")
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_under:other")) as client:
        child = await client.post(zone.sessions_path, json=body)
        assert (child.status_code, child.json()["parent_id"]) == (201, parent)


async def test_only_the_owner_can_end_a_session(zone: FreshZone) -> None:
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        async with zone.client(zone.token(client_id="other")) as other:
            refused = await other.delete(zone.session_path(session))
            assert_problem(refused, 403, "application_ownership_required")
        assert json_object(await owner.get(zone.session_path(session)))["status"] == "active"
        await end(owner, zone, session)


async def test_zone_administrator_can_act_for_every_application_of_the_zone(zone: FreshZone) -> None:
    async with zone.client(zone.token(client_id="other")) as owner:
        parent = (await spawn(owner, zone, application_id="other"))["id"]
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin", client_id="console")) as admin:
        await spawn(admin, zone, application_id="third", parent_id=parent)
        await end(admin, zone, parent)


async def test_spawn_refused_for_ownership_does_not_reveal_used_keys(zone: FreshZone) -> None:
    async with zone.client() as owner:
        await owner.post(zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": "k"})
    async with zone.client(zone.token(client_id="other")) as other:
        for key in ("k", "unused"):
            refused = await other.post(
                zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": key}
            )
            assert_problem(refused, 403, "application_ownership_required")
