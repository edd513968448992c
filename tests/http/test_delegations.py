"""Delegations over HTTP: the contract's routes and their aliases, what they show and what they refuse."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

SCOPES = ("agent:lifecycle", "read", "write")
"""What the application's token holds here, and so may lend."""


def lending_client(zone: FreshZone, *scopes: str, **grant: str) -> httpx.AsyncClient:
    """A client whose token holds these scopes, or those above; `grant` changes what else it says."""
    return zone.client(zone.token(*(scopes or SCOPES), ttl=3600, **grant))


def at(zone: FreshZone, rest: str = "") -> str:
    return f"{zone.path}/delegations{rest}"


async def sessions(client: httpx.AsyncClient, zone: FreshZone, number: int) -> list[str]:
    return [(await spawn(client, zone))["id"] for _ in range(number)]


async def lend(client: httpx.AsyncClient, zone: FreshZone, source: str, target: str, **asked: Any) -> dict[str, Any]:
    """A delegation that must be made, as the server shows it."""
    body = {"source_session_id": source, "target_session_id": target, **asked}
    answer = await client.post(at(zone), json=body)
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def chain(client: httpx.AsyncClient, zone: FreshZone, number: int) -> tuple[list[str], list[str]]:
    """So many sessions, and the edges from each to the next."""
    nodes = await sessions(client, zone, number)
    edges = [(await lend(client, zone, nodes[n], nodes[n + 1]))["id"] for n in range(number - 1)]
    return nodes, edges


# -- making ------------------------------------------------------------------------------------------------------


async def test_a_delegation_is_shown_with_everything_that_was_asked_for(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        source, target = await sessions(client, zone, 2)
        made = await lend(
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
        assert made["id"] == made["delegation_edge_id"]
        assert made["source_session_id"] == made["source_agent_id"] == source
        assert made["target_session_id"] == made["target_agent_id"] == target
        assert made["scopes"] == ["read", "write"]
        assert made["resources"] == ["doc:1", "doc:2"]
        assert made["constraints_json"] == {"resources": ["doc:2"], "max_depth": 3, "budget": 10, "team": {"x": [1]}}
        assert (made["status"], made["edge_version"], made["parent_edge_id"]) == ("active", 1, None)
        assert made["created_at"] < made["expires_at"]
        assert made["expires_at"].endswith("Z")
        assert json_object(await client.get(at(zone, f"/{made['id']}"))) == made


async def test_a_line_of_delegations_only_narrows(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        a, b, c = await sessions(client, zone, 3)
        first = await lend(
            client, zone, a, b, scopes=["read"], constraints={"resources": ["r"], "max_hops": 2}, ttl_seconds=600
        )
        second = await lend(client, zone, b, c, scopes=["read"], constraints={"resources": ["r"]})
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
            refused = assert_problem(await client.post(at(zone), json=body), 403, "delegation_exceeds_authority")
            assert len(refused["exceeds"]) == 1
            assert refused["parent_edge_id"] == first["id"]


async def test_out_of_a_token_no_more_is_lent_than_it_holds(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        source, target = await sessions(client, zone, 2)
        body = {"source_session_id": source, "target_session_id": target, "scopes": ["delete"]}
        assert_problem(await client.post(at(zone), json=body), 403, "delegation_exceeds_authority")
        async with lending_client(zone, "agent:lifecycle", "coordinator.admin", client_id="console") as admin:
            made = await admin.post(at(zone), json=body)
            assert made.status_code == 201


async def test_a_token_that_names_an_edge_lends_by_that_edge(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        a, b, c = await sessions(client, zone, 3)
        narrow = await lend(client, zone, a, b, scopes=["read"])
        await lend(client, zone, a, b, scopes=["read", "write"], ttl_seconds=3000)
        async with lending_client(zone, delegation_edge_id=narrow["id"]) as held:
            assert (await lend(held, zone, b, c, scopes=["read"]))["parent_edge_id"] == narrow["id"]
            body = {"source_session_id": b, "target_session_id": c, "scopes": ["write"]}
            assert_problem(await held.post(at(zone), json=body), 403, "delegation_exceeds_authority")


async def test_what_cannot_be_delegated_is_refused_in_the_contracts_words(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        a, b, gone, asleep = await sessions(client, zone, 4)
        edge = await lend(client, zone, a, b)
        await end(client, zone, gone)
        await client.post(zone.session_path(asleep, "/suspend"))
        for body, status, code in (
            ({"target_session_id": a}, 400, "self_delegation_denied"),
            ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "delegation_expired"),
            ({"constraints": {"max_hops": 11}}, 400, "invalid_constraints"),
            ({"constraints": {}, "constraints_json": {"x": 1}}, 400, "invalid_constraints"),
            ({"issuer_application_id": "other"}, 400, "invalid_issuer_application"),
            ({"receiver_application_id": "other"}, 400, "invalid_receiver_application"),
            ({"parent_edge_id": edge["id"]}, 400, "invalid_parent_edge"),
            ({"parent_edge_id": "none"}, 404, "delegation_not_found"),
            ({"target_session_id": gone}, 404, "delegation_endpoint_not_found"),
            ({"source_session_id": "none"}, 404, "delegation_endpoint_not_found"),
            ({"target_session_id": asleep}, 409, "agent_suspended"),
            ({"source_session_id": asleep}, 409, "agent_suspended"),
            ({"source_session_id": b, "target_session_id": a}, 409, "delegation_cycle_denied"),
            ({"scopes": ["quarterdeck.admin"]}, 400, "invalid_scope"),
        ):
            asked = {"source_session_id": a, "target_session_id": b, **body}
            assert_problem(await client.post(at(zone), json=asked), status, code)
        events = await read_events(zone, types="delegation.create")
        assert [event["subject"] for event in events] == [edge["id"]], "what was refused wrote nothing"


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
async def test_a_field_of_the_wrong_kind_is_refused_by_its_name(zone: FreshZone, field: str, value: Any) -> None:
    async with lending_client(zone) as client:
        body = {"source_session_id": "a", "target_session_id": "b", field: value}
        refused = assert_problem(await client.post(at(zone), json=body), 400)
    assert refused["field"].split("[")[0] == field


async def test_another_applications_sessions_need_both_powers(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        [own] = await sessions(client, zone, 1)
        async with lending_client(zone, client_id="other") as other:
            theirs = (await spawn(other, zone, application_id="other"))["id"]
            body = {"source_session_id": own, "target_session_id": theirs}
            for asking in (client, other):
                assert_problem(await asking.post(at(zone), json=body), 403, "application_ownership_required")
        async with lending_client(zone, "agent:lifecycle", "coordinator.delegate_to:other") as lender:
            made = await lend(lender, zone, own, theirs)
        assert (made["issuer_application_id"], made["receiver_application_id"]) == (APP, "other")
        async with lending_client(zone, client_id="third") as third:
            assert_problem(await third.delete(at(zone, f"/{made['id']}")), 403, "application_ownership_required")
        async with lending_client(zone, client_id="other") as receiver:
            assert (await receiver.delete(at(zone, f"/{made['id']}"))).status_code == 200


async def test_repeating_with_a_key_gives_the_same_delegation_while_it_is_active(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        source, target = await sessions(client, zone, 2)
        body = {"source_session_id": source, "target_session_id": target, "constraints": {"x": 1}}
        same = {"source_session_id": source, "target_session_id": target, "constraints_json": {"x": 1}}
        headers = {"idempotency-key": "k"}
        first = await client.post(at(zone), json=body, headers=headers)
        again = await client.post(at(zone), json={**same, "idempotency_key": "k"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        other = await client.post(at(zone), json={**body, "scopes": ["read"]}, headers=headers)
        assert_problem(other, 422, "idempotency_key_conflict")
        differing = await client.post(at(zone), json={**body, "idempotency_key": "x"}, headers=headers)
        assert_problem(differing, 400, "idempotency_key_mismatch")
        await client.delete(at(zone, f"/{first.json()['id']}"), params={"keep_sessions": "true"})
        anew = await client.post(at(zone), json=body, headers=headers)
        assert anew.status_code == 201


# -- revoking ----------------------------------------------------------------------------------------------------


async def test_revoking_the_head_of_a_chain_ends_everybody_behind_it_and_repeats_with_zeros(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        nodes, edges = await chain(client, zone, 12)
        answer = await client.delete(at(zone, f"/{edges[0]}"))
        assert answer.status_code == 200
        assert answer.json() == {"revoked_edges": 11, "affected_sessions": 11, "terminated_agents": 11}
        states = [json_object(await client.get(zone.session_path(node)))["status"] for node in nodes]
        assert states == ["active"] + ["terminated"] * 11
        for again in (
            await client.delete(at(zone, f"/{edges[0]}")),
            await client.patch(at(zone, f"/{edges[5]}/revoke")),
        ):
            assert again.status_code == 200
            assert set(again.json().values()) == {0}
        assert_problem(await client.delete(at(zone, "/none")), 404, "delegation_not_found")


async def test_both_spellings_revoke_and_sessions_are_kept_if_asked(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        for method, rest in (("DELETE", ""), ("PATCH", "/revoke")):
            nodes, edges = await chain(client, zone, 3)
            answer = await client.request(method, at(zone, f"/{edges[0]}{rest}"), params={"keep_sessions": "true"})
            assert answer.json() == {"revoked_edges": 2, "affected_sessions": 2, "terminated_agents": 0}
            assert json_object(await client.get(zone.session_path(nodes[2])))["status"] == "active"
            edge = json_object(await client.get(at(zone, f"/{edges[1]}")))
            assert (edge["status"], edge["ended_reason"], edge["edge_version"]) == ("revoked", "parent_revoked", 2)


async def test_an_ended_session_takes_its_delegations_and_ends_nobody_else(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        nodes, edges = await chain(client, zone, 3)
        await end(client, zone, nodes[1])
        states = [json_object(await client.get(at(zone, f"/{edge}")))["ended_reason"] for edge in edges]
        assert states == ["session_ended", "session_ended"]
        assert json_object(await client.get(zone.session_path(nodes[2])))["status"] == "active"


# -- looking -----------------------------------------------------------------------------------------------------


async def test_lists_page_newest_first_and_the_aliases_are_the_same_lists(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        a, b, c = await sessions(client, zone, 3)
        edges = [(await lend(client, zone, a, target))["id"] for target in (b, c, b)]

        async def ids(rest: str = "", **query: Any) -> list[str]:
            answer = await client.get(at(zone, rest), params=query)
            assert answer.status_code == 200, answer.text
            return [item["id"] for item in answer.json()["items"]]

        assert await ids() == edges[::-1]
        assert await ids(source=a) == await ids(f"/outbound/{a}") == edges[::-1]
        assert await ids(target=b) == await ids(f"/inbound/{b}") == [edges[2], edges[0]]
        assert await ids(source=b) == await ids(f"/outbound/{b}") == []
        await client.delete(at(zone, f"/{edges[2]}"))
        assert await ids(status="active") == edges[1::-1]
        assert await ids(f"/inbound/{b}", status="revoked") == [edges[2]]
        page = await client.get(at(zone), params={"limit": 2})
        assert 'rel="next"' in page.headers["link"]
        rest = await client.get(at(zone), params={"limit": 2, "cursor": page.json()["next_cursor"]})
        assert [item["id"] for item in (page.json()["items"] + rest.json()["items"])] == edges[::-1]
        assert rest.json()["next_cursor"] is None
        for way in ("inbound", "outbound"):
            assert_problem(await client.get(at(zone, f"/{way}/nobody")), 404, "agent_not_found")
        agents = (await client.get(zone.sessions_path, params={"limit": 1})).json()["next_cursor"]
        assert_problem(await client.get(at(zone), params={"cursor": agents}), 400, "invalid_cursor")


async def test_authority_traversal_and_explanation_tell_one_story(zone: FreshZone) -> None:
    async with lending_client(zone) as client:
        a, b, c = await sessions(client, zone, 3)
        first = await lend(client, zone, a, b, scopes=["read", "write"])
        second = await lend(client, zone, b, c, scopes=["read"], constraints={"resources": ["r"]})
        held = json_object(await client.get(zone.session_path(c, "/authority")))
        assert (held["scopes"], held["resources"], held["epoch"]) == (["read"], ["r"], 2)
        assert [edge["id"] for edge in held["edges"]] == [second["id"]]
        ahead = json_object(await client.get(at(zone, f"/{first['id']}/traverse")))
        assert [(item["level"], item["edge"]["id"]) for item in ahead["items"]] == [(0, first["id"]), (1, second["id"])]
        assert ahead["truncated"] is False
        cut = json_object(await client.get(at(zone, f"/{first['id']}/traverse"), params={"limit": 1}))
        assert (len(cut["items"]), cut["truncated"]) == (1, True)
        told = json_object(await client.get(at(zone, f"/{second['id']}/explain")))
        assert [edge["id"] for edge in told["chain"]] == [first["id"]]
        assert told["refuses"]
        await client.post(zone.session_path(c, "/suspend"))
        asleep = json_object(await client.get(zone.session_path(c, "/authority")))
        assert (asleep["scopes"], asleep["edges"]) == ([], [])
        assert "suspended" in asleep["why_none"]
        assert_problem(await client.get(zone.session_path("nobody", "/authority")), 404, "agent_not_found")


async def test_a_foreign_session_or_edge_is_named_in_no_body_as_if_it_were_there(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with lending_client(foreign) as owner:
        theirs, other = await sessions(owner, foreign, 2)
        edge = (await lend(owner, foreign, theirs, other))["id"]
    async with zone.server.client() as admin:
        own, second = await sessions(admin, zone, 2)
        for body, code in (
            ({"source_session_id": theirs, "target_session_id": own}, "delegation_endpoint_not_found"),
            ({"source_session_id": own, "target_session_id": theirs}, "delegation_endpoint_not_found"),
            ({"source_session_id": own, "target_session_id": second, "parent_edge_id": edge}, "delegation_not_found"),
        ):
            assert_problem(await admin.post(at(zone), json=body), 404, code)
