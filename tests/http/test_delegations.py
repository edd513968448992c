"""Delegations over HTTP: the routes of the contract and their aliases, views and refusals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

SCOPES = ("agent:lifecycle", "read", "write")
"""Scopes of the application's token in these tests, and so the most that it can delegate."""


def scoped_client(zone: FreshZone, *scopes: str, **grant: str) -> httpx.AsyncClient:
    """A client whose token has these scopes, by default SCOPES. `grant` changes its other claims."""
    return zone.client(zone.token(*(scopes or SCOPES), ttl=3600, **grant))


def delegations_path(zone: FreshZone, rest: str = "") -> str:
    return f"{zone.path}/delegations{rest}"


async def spawn_sessions(client: httpx.AsyncClient, zone: FreshZone, number: int) -> list[str]:
    return [(await spawn(client, zone))["id"] for _ in range(number)]


async def delegate(
    client: httpx.AsyncClient, zone: FreshZone, source: str, target: str, **fields: Any
) -> dict[str, Any]:
    """Creates a delegation and returns its view."""
    body = {"source_session_id": source, "target_session_id": target, **fields}
    response = await client.post(delegations_path(zone), json=body)
    assert response.status_code == 201, response.text
    return json_object(response)


async def create_chain(client: httpx.AsyncClient, zone: FreshZone, number: int) -> tuple[list[str], list[str]]:
    """Creates `number` sessions and the edges from each to the next."""
    nodes = await spawn_sessions(client, zone, number)
    edges = [(await delegate(client, zone, nodes[n], nodes[n + 1]))["id"] for n in range(number - 1)]
    return nodes, edges


# -- create ------------------------------------------------------------------------------------------------------


async def test_delegation_view_has_every_requested_field(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        source, target = await spawn_sessions(client, zone, 2)
        created = await delegate(
            client,
            zone,
            source,
            target,
            issuer_application_id=APP,
            receiver_application_id=APP,
            scopes=["write", "read", "read"],
            resource_id="doc:1",
            constraints={"resources": ["doc:2"], "max_depth": 3, "budget": 10, "team": {"x": [1]}},
            ttl_seconds=60,
        )
        assert created["id"] == created["delegation_edge_id"]
        assert created["source_session_id"] == created["source_agent_id"] == source
        assert created["target_session_id"] == created["target_agent_id"] == target
        assert created["scopes"] == ["read", "write"]
        assert created["resources"] == ["doc:1", "doc:2"]
        assert created["constraints_json"] == {"resources": ["doc:2"], "max_depth": 3, "budget": 10, "team": {"x": [1]}}
        assert (created["status"], created["edge_version"], created["parent_edge_id"]) == ("active", 1, None)
        assert created["created_at"] < created["expires_at"]
        assert created["expires_at"].endswith("Z")
        assert json_object(await client.get(delegations_path(zone, f"/{created['id']}"))) == created


async def test_chained_delegation_can_only_narrow(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        a, b, c = await spawn_sessions(client, zone, 3)
        first = await delegate(
            client, zone, a, b, scopes=["read"], constraints={"resources": ["r"], "max_hops": 2}, ttl_seconds=600
        )
        second = await delegate(client, zone, b, c, scopes=["read"], constraints={"resources": ["r"]})
        assert (second["parent_edge_id"], second["max_hops"]) == (first["id"], 1)
        assert second["expires_at"] <= first["expires_at"]
        for wider in (
            {"scopes": ["write"], "constraints": {"resources": ["r"]}},
            {"scopes": ["read"], "constraints": {"resources": ["q"]}},
            {"scopes": ["read"]},
            {"scopes": ["read"], "constraints": {"resources": ["r"], "max_hops": 2}},
            {"scopes": ["read"], "constraints": {"resources": ["r"]}, "ttl_seconds": 86_400},
        ):
            body = {"source_session_id": b, "target_session_id": c, **wider}
            refused = assert_problem(
                await client.post(delegations_path(zone), json=body), 403, "delegation_exceeds_authority"
            )
            assert len(refused["exceeds"]) == 1
            assert refused["parent_edge_id"] == first["id"]


async def test_token_cannot_delegate_a_scope_it_lacks(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        source, target = await spawn_sessions(client, zone, 2)
        body = {"source_session_id": source, "target_session_id": target, "scopes": ["delete"]}
        assert_problem(await client.post(delegations_path(zone), json=body), 403, "delegation_exceeds_authority")
        async with scoped_client(zone, "agent:lifecycle", "coordinator.admin", client_id="console") as admin:
            created = await admin.post(delegations_path(zone), json=body)
            assert created.status_code == 201


async def test_token_with_an_edge_delegates_from_that_edge(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        a, b, c = await spawn_sessions(client, zone, 3)
        narrow = await delegate(client, zone, a, b, scopes=["read"])
        await delegate(client, zone, a, b, scopes=["read", "write"], ttl_seconds=3000)
        async with scoped_client(zone, delegation_edge_id=narrow["id"]) as edge_client:
            assert (await delegate(edge_client, zone, b, c, scopes=["read"]))["parent_edge_id"] == narrow["id"]
            body = {"source_session_id": b, "target_session_id": c, "scopes": ["write"]}
            assert_problem(
                await edge_client.post(delegations_path(zone), json=body), 403, "delegation_exceeds_authority"
            )


async def test_invalid_delegation_is_refused_with_its_error_code(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        a, b, ended, suspended = await spawn_sessions(client, zone, 4)
        edge = await delegate(client, zone, a, b)
        await end(client, zone, ended)
        await client.post(zone.session_path(suspended, "/suspend"))
        for changes, status, code in (
            ({"target_session_id": a}, 400, "self_delegation_denied"),
            ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "delegation_expired"),
            ({"constraints": {"max_hops": 11}}, 400, "invalid_constraints"),
            ({"constraints": {}, "constraints_json": {"x": 1}}, 400, "invalid_constraints"),
            ({"issuer_application_id": "other"}, 400, "invalid_issuer_application"),
            ({"receiver_application_id": "other"}, 400, "invalid_receiver_application"),
            ({"parent_edge_id": edge["id"]}, 400, "invalid_parent_edge"),
            ({"parent_edge_id": "none"}, 404, "delegation_not_found"),
            ({"target_session_id": ended}, 404, "delegation_endpoint_not_found"),
            ({"source_session_id": "none"}, 404, "delegation_endpoint_not_found"),
            ({"target_session_id": suspended}, 409, "agent_suspended"),
            ({"source_session_id": suspended}, 409, "agent_suspended"),
            ({"source_session_id": b, "target_session_id": a}, 409, "delegation_cycle_denied"),
            ({"scopes": ["quarterdeck.admin"]}, 400, "invalid_scope"),
        ):
            request = {"source_session_id": a, "target_session_id": b, **changes}
            assert_problem(await client.post(delegations_path(zone), json=request), status, code)
        events = await read_events(zone, types="delegation.create")
        assert [event["subject"] for event in events] == [edge["id"]], "a refused delegation writes no event"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source_session_id", None), ("source_session_id", "a b"), ("target_session_id", 7), ("target_session_id", ""),
        ("scopes", "read"), ("scopes", ["a b"]), ("scopes", [""]), ("scopes", ["x"] * 65), ("scopes", ["s" * 129]),
        ("resource_id", ""), ("resource_id", "r" * 257), ("constraints", []), ("constraints_json", "x"),
        ("expires_at", "tomorrow"), ("expires_at", 5), ("expires_at", "2030-01-01T00:00:00"),
        ("ttl_seconds", 0), ("ttl_seconds", 86_401), ("ttl_seconds", "60"), ("parent_edge_id", "a/b"),
        ("issuer_application_id", ""), ("idempotency_key", 1),
    ],
)  # fmt: skip
async def test_invalid_field_is_named_in_the_refusal(zone: FreshZone, field: str, value: Any) -> None:
    async with scoped_client(zone) as client:
        body = {"source_session_id": "a", "target_session_id": "b", field: value}
        refused = assert_problem(await client.post(delegations_path(zone), json=body), 400)
    assert refused["field"].split("[")[0] == field


async def test_delegation_to_another_application_needs_its_own_scope(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        [own] = await spawn_sessions(client, zone, 1)
        async with scoped_client(zone, client_id="other") as other:
            theirs = (await spawn(other, zone, application_id="other"))["id"]
            body = {"source_session_id": own, "target_session_id": theirs}
            for requester in (client, other):
                assert_problem(
                    await requester.post(delegations_path(zone), json=body), 403, "application_ownership_required"
                )
        async with scoped_client(zone, "agent:lifecycle", "coordinator.delegate_to:other") as delegator:
            created = await delegate(delegator, zone, own, theirs)
        assert (created["issuer_application_id"], created["receiver_application_id"]) == (APP, "other")
        async with scoped_client(zone, client_id="third") as third:
            assert_problem(
                await third.delete(delegations_path(zone, f"/{created['id']}")), 403, "application_ownership_required"
            )
        async with scoped_client(zone, client_id="other") as receiver:
            assert (await receiver.delete(delegations_path(zone, f"/{created['id']}"))).status_code == 200


async def test_idempotency_key_returns_the_delegation_while_it_is_active(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        source, target = await spawn_sessions(client, zone, 2)
        body = {"source_session_id": source, "target_session_id": target, "constraints": {"x": 1}}
        same = {"source_session_id": source, "target_session_id": target, "constraints_json": {"x": 1}}
        headers = {"idempotency-key": "k"}
        first = await client.post(delegations_path(zone), json=body, headers=headers)
        again = await client.post(delegations_path(zone), json={**same, "idempotency_key": "k"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        other = await client.post(delegations_path(zone), json={**body, "scopes": ["read"]}, headers=headers)
        assert_problem(other, 422, "idempotency_key_conflict")
        differing = await client.post(delegations_path(zone), json={**body, "idempotency_key": "x"}, headers=headers)
        assert_problem(differing, 400, "idempotency_key_mismatch")
        await client.delete(delegations_path(zone, f"/{first.json()['id']}"), params={"keep_sessions": "true"})
        recreated = await client.post(delegations_path(zone), json=body, headers=headers)
        assert recreated.status_code == 201


# -- revoke ------------------------------------------------------------------------------------------------------


async def test_revoking_a_chain_terminates_its_targets_and_is_idempotent(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        nodes, edges = await create_chain(client, zone, 12)
        response = await client.delete(delegations_path(zone, f"/{edges[0]}"))
        assert response.status_code == 200
        assert response.json() == {"revoked_edges": 11, "affected_sessions": 11, "terminated_agents": 11}
        states = [json_object(await client.get(zone.session_path(node)))["status"] for node in nodes]
        assert states == ["active"] + ["terminated"] * 11
        for again in (
            await client.delete(delegations_path(zone, f"/{edges[0]}")),
            await client.patch(delegations_path(zone, f"/{edges[5]}/revoke")),
        ):
            assert again.status_code == 200
            assert set(again.json().values()) == {0}
        assert_problem(await client.delete(delegations_path(zone, "/none")), 404, "delegation_not_found")


async def test_both_revoke_routes_honor_keep_sessions(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        for method, rest in (("DELETE", ""), ("PATCH", "/revoke")):
            nodes, edges = await create_chain(client, zone, 3)
            response = await client.request(
                method, delegations_path(zone, f"/{edges[0]}{rest}"), params={"keep_sessions": "true"}
            )
            assert response.json() == {"revoked_edges": 2, "affected_sessions": 2, "terminated_agents": 0}
            assert json_object(await client.get(zone.session_path(nodes[2])))["status"] == "active"
            edge = json_object(await client.get(delegations_path(zone, f"/{edges[1]}")))
            assert (edge["status"], edge["ended_reason"], edge["edge_version"]) == ("revoked", "parent_revoked", 2)


async def test_ended_session_ends_its_delegations_and_no_other_session(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        nodes, edges = await create_chain(client, zone, 3)
        await end(client, zone, nodes[1])
        states = [json_object(await client.get(delegations_path(zone, f"/{edge}")))["ended_reason"] for edge in edges]
        assert states == ["session_ended", "session_ended"]
        assert json_object(await client.get(zone.session_path(nodes[2])))["status"] == "active"


# -- read --------------------------------------------------------------------------------------------------------


async def test_lists_page_newest_first_and_aliases_return_the_same(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        a, b, c = await spawn_sessions(client, zone, 3)
        edges = [(await delegate(client, zone, a, target))["id"] for target in (b, c, b)]

        async def ids(rest: str = "", **query: Any) -> list[str]:
            response = await client.get(delegations_path(zone, rest), params=query)
            assert response.status_code == 200, response.text
            return [item["id"] for item in response.json()["items"]]

        assert await ids() == edges[::-1]
        assert await ids(source=a) == await ids(f"/outbound/{a}") == edges[::-1]
        assert await ids(target=b) == await ids(f"/inbound/{b}") == [edges[2], edges[0]]
        assert await ids(source=b) == await ids(f"/outbound/{b}") == []
        await client.delete(delegations_path(zone, f"/{edges[2]}"))
        assert await ids(status="active") == edges[1::-1]
        assert await ids(f"/inbound/{b}", status="revoked") == [edges[2]]
        page = await client.get(delegations_path(zone), params={"limit": 2})
        assert 'rel="next"' in page.headers["link"]
        rest = await client.get(delegations_path(zone), params={"limit": 2, "cursor": page.json()["next_cursor"]})
        assert [item["id"] for item in (page.json()["items"] + rest.json()["items"])] == edges[::-1]
        assert rest.json()["next_cursor"] is None
        for direction in ("inbound", "outbound"):
            assert_problem(
                await client.get(delegations_path(zone, f"/{direction}/no-such-session")), 404, "agent_not_found"
            )
        sessions_cursor = (await client.get(zone.sessions_path, params={"limit": 1})).json()["next_cursor"]
        assert_problem(
            await client.get(delegations_path(zone), params={"cursor": sessions_cursor}), 400, "invalid_cursor"
        )


async def test_authority_traverse_and_explain_agree(zone: FreshZone) -> None:
    async with scoped_client(zone) as client:
        a, b, c = await spawn_sessions(client, zone, 3)
        first = await delegate(client, zone, a, b, scopes=["read", "write"])
        second = await delegate(client, zone, b, c, scopes=["read"], constraints={"resources": ["r"]})
        authority = json_object(await client.get(zone.session_path(c, "/authority")))
        assert (authority["scopes"], authority["resources"], authority["epoch"]) == (["read"], ["r"], 2)
        assert [edge["id"] for edge in authority["edges"]] == [second["id"]]
        traversal = json_object(await client.get(delegations_path(zone, f"/{first['id']}/traverse")))
        assert [(item["level"], item["edge"]["id"]) for item in traversal["items"]] == [
            (0, first["id"]),
            (1, second["id"]),
        ]
        assert traversal["truncated"] is False
        truncated = json_object(
            await client.get(delegations_path(zone, f"/{first['id']}/traverse"), params={"limit": 1})
        )
        assert (len(truncated["items"]), truncated["truncated"]) == (1, True)
        explanation = json_object(await client.get(delegations_path(zone, f"/{second['id']}/explain")))
        assert [edge["id"] for edge in explanation["chain"]] == [first["id"]]
        assert explanation["refuses"]
        await client.post(zone.session_path(c, "/suspend"))
        suspended = json_object(await client.get(zone.session_path(c, "/authority")))
        assert (suspended["scopes"], suspended["edges"]) == ([], [])
        assert "suspended" in suspended["why_none"]
        assert_problem(await client.get(zone.session_path("no-such-session", "/authority")), 404, "agent_not_found")


async def test_session_or_edge_of_another_zone_is_not_found(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with scoped_client(foreign) as owner:
        theirs, other = await spawn_sessions(owner, foreign, 2)
        edge = (await delegate(owner, foreign, theirs, other))["id"]
    async with zone.server.client() as admin:
        own, second = await spawn_sessions(admin, zone, 2)
        for body, code in (
            ({"source_session_id": theirs, "target_session_id": own}, "delegation_endpoint_not_found"),
            ({"source_session_id": own, "target_session_id": theirs}, "delegation_endpoint_not_found"),
            ({"source_session_id": own, "target_session_id": second, "parent_edge_id": edge}, "delegation_not_found"),
        ):
            assert_problem(await admin.post(delegations_path(zone), json=body), 404, code)
