"""Workspaces over HTTP: which one is acted in, who is a member of it, and what a token says of its bearer."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from quarterdeck.core.caller import LIFECYCLE, Role
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object, read_events

MEMBERS = "/api/v1/members"


def one(subject: str) -> str:
    return f"{MEMBERS}/{quote(subject, safe='')}"


def ruled(zone: FreshZone, role: str = "OWNER", subject: str = APP) -> httpx.AsyncClient:
    """A client of the zone whose token gives it this role."""
    return zone.client(zone.token(role=role, subject=subject))


async def put(client: httpx.AsyncClient, subject: str, role: str) -> httpx.Response:
    return await client.put(one(subject), json={"role": role})


# -- members


async def test_members_are_made_shown_listed_changed_and_removed(zone: FreshZone) -> None:
    async with ruled(zone, subject="olga") as owner:
        made = await put(owner, "alice", "MEMBER")
        assert made.status_code == 201
        assert json_object(made) == {
            "subject": "alice",
            "workspaceId": zone.id,
            "role": "MEMBER",
            "addedBy": "olga",
            "createdAt": json_object(made)["createdAt"],
            "updatedAt": json_object(made)["createdAt"],
        }
        assert json_object(await owner.get(one("alice"))) == json_object(made)
        changed = await put(owner, "alice", "ADMIN")
        assert (changed.status_code, json_object(changed)["role"]) == (200, "ADMIN")
        assert (await put(owner, "bert", "OWNER")).status_code == 201
        first = await owner.get(MEMBERS, params={"limit": 1})
        assert [item["subject"] for item in first.json()["items"]] == ["alice"]
        rest = await owner.get(MEMBERS, params={"limit": 1, "cursor": first.json()["nextCursor"]})
        assert ([item["subject"] for item in rest.json()["items"]], rest.json()["nextCursor"]) == (["bert"], None)
        assert 'rel="next"' in first.headers["link"]
        assert (await owner.delete(one("alice"))).status_code == 204
        assert_problem(await owner.delete(one("alice")), 404, "member_not_found")
        assert_problem(await owner.get(one("alice")), 404, "member_not_found")
        assert_problem(await owner.get(MEMBERS, params={"cursor": "x"}), 400, "invalid_cursor")
    told = [(event["type"], event["subject"], event["from"], event["to"]) for event in await read_events(zone)]
    assert told[1:] == [
        ("member.added", "alice", None, "MEMBER"),
        ("member.changed", "alice", "MEMBER", "ADMIN"),
        ("member.added", "bert", None, "OWNER"),
        ("member.removed", "alice", "ADMIN", None),
    ]


@pytest.mark.parametrize("subject", ["auth0|5f7c", "ann@example.com", "Zoë", "a b", "key:1", "%", "x" * 255])
async def test_a_member_is_called_what_its_issuer_calls_it(zone: FreshZone, subject: str) -> None:
    async with ruled(zone) as owner:
        assert json_object(await put(owner, subject, "ADMIN"))["subject"] == subject
        assert [item["subject"] for item in (await owner.get(MEMBERS)).json()["items"]] == [subject]
    async with zone.client(zone.token(subject=subject)) as client:
        assert json_object(await client.get(one(subject)))["role"] == "ADMIN"


@pytest.mark.parametrize(
    "body", [{}, {"role": "owner"}, {"role": "ROOT"}, {"role": None}, {"role": "ADMIN", "x": 1}, []]
)
async def test_a_body_that_names_none_of_the_roles_is_400(zone: FreshZone, body: object) -> None:
    async with ruled(zone) as owner:
        assert_problem(await owner.put(one("alice"), json=body), 400, "invalid_body")
        assert (await owner.get(MEMBERS)).json()["items"] == []


async def test_the_last_owner_stays_and_only_owners_touch_owners(zone: FreshZone) -> None:
    async with ruled(zone) as owner, ruled(zone, "ADMIN") as admin:
        await put(owner, "olga", "OWNER")
        await put(admin, "alice", "MEMBER")
        assert_problem(await put(admin, "alice", "OWNER"), 403, "forbidden_role")
        assert_problem(await put(admin, "olga", "ADMIN"), 403, "forbidden_role")
        assert_problem(await admin.delete(one("olga")), 403, "forbidden_role")
        assert_problem(await put(owner, "olga", "ADMIN"), 409, "last_owner")
        assert_problem(await owner.delete(one("olga")), 409, "last_owner")
        assert (await admin.delete(one("alice"))).status_code == 204
        assert (await owner.delete(one("olga"))).status_code == 204


# -- what a bearer is


async def test_a_token_of_the_local_issuer_and_a_key_are_members_if_nothing_else_is_said(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))
    credentials = [{"Authorization": f"Bearer {zone.token()}"}, {"X-API-Key": key["key"]}]
    for headers in credentials:
        async with zone.server.client("") as client:
            refused = assert_problem(await client.get(MEMBERS, headers=headers), 403, "forbidden_role")
            assert (refused["role"], refused["allowed"]) == ("MEMBER", ["OWNER", "ADMIN"])
    async with ruled(zone) as owner, zone.server.client("") as client:
        await put(owner, f"key:{key['id']}", "ADMIN")
        assert (await client.get(MEMBERS, headers=credentials[1])).status_code == 200


async def test_a_members_row_counts_before_the_role_in_its_token(zone: FreshZone) -> None:
    async with ruled(zone) as owner, ruled(zone, "ADMIN", subject="alice") as alice:
        assert (await alice.get(MEMBERS)).status_code == 200
        await put(owner, "alice", "MEMBER")
        assert_problem(await alice.get(MEMBERS), 403, "forbidden_role")
        await owner.delete(one("alice"))
        assert (await alice.get(MEMBERS)).status_code == 200


async def test_the_zones_administrator_is_an_admin_and_who_crosses_zones_an_owner(zone: FreshZone) -> None:
    async with zone.client(zone.token(LIFECYCLE, "coordinator.admin")) as admin, ruled(zone) as owner:
        await put(owner, "olga", "OWNER")
        assert (await put(admin, "alice", "MEMBER")).status_code == 201
        assert_problem(await put(admin, "alice", "OWNER"), 403, "forbidden_role")
    async with zone.server.client() as root:
        there = {"X-Workspace-ID": zone.id}
        assert (await root.put(one("alice"), json={"role": "OWNER"}, headers=there)).status_code == 200


async def test_an_agents_token_is_an_agents_whatever_else_it_says(zone: FreshZone) -> None:
    async with ruled(zone) as owner:
        await put(owner, APP, "OWNER")
    scopes = (LIFECYCLE, "coordinator.admin", "quarterdeck.admin")
    async with zone.client(zone.token(*scopes, agent_id="a1", role="OWNER")) as agent:
        refused = assert_problem(await agent.get(MEMBERS), 403, "forbidden_role")
        assert refused["role"] == Role.AGENT
        foreign = await create_zone(zone.server)
        away = await agent.get(MEMBERS, headers={"X-Workspace-ID": foreign.id})
        assert_problem(away, 404, "workspace_not_found")


# -- which workspace


async def test_ones_own_workspace_may_be_named_and_another_is_not_there(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with ruled(zone) as owner:
        assert (await owner.get(MEMBERS, headers={"X-Workspace-ID": zone.id})).status_code == 200
        refusals = [
            assert_problem(await owner.get(MEMBERS, headers={"X-Workspace-ID": other}), 404, "workspace_not_found")
            for other in (foreign.id, "nowhere")
        ]
        assert {said["detail"].replace(foreign.id, "X").replace("nowhere", "X") for said in refusals} == {
            "There is no workspace 'X' for this token."
        }


async def test_an_administrator_acts_in_the_workspace_it_names(zone: FreshZone) -> None:
    async with zone.server.client() as root:
        there = {"X-Workspace-ID": zone.id}
        made = await root.put(one("alice"), json={"role": "MEMBER"}, headers=there)
        assert (made.status_code, json_object(made)["workspaceId"]) == (201, zone.id)
        assert_problem(await root.get(one("alice")), 404, "member_not_found")
        nowhere = {"X-Workspace-ID": "nowhere"}
        assert_problem(await root.get(MEMBERS, headers=nowhere), 404, "workspace_not_found")
        refused = await root.put(one("alice"), json={"role": "MEMBER"}, headers=nowhere)
        assert_problem(refused, 404, "workspace_not_found")


@pytest.mark.parametrize("header", ["", "a b", "a/b", "é", "x" * 129, "a,b"])
async def test_a_workspace_that_is_no_id_is_400(zone: FreshZone, header: str) -> None:
    async with ruled(zone) as owner:
        answer = await owner.get(MEMBERS, headers={b"X-Workspace-ID": header.encode()})
        assert_problem(answer, 400, "invalid_workspace_id")


async def test_two_workspaces_named_at_once_are_400(zone: FreshZone) -> None:
    headers = [("Authorization", f"Bearer {zone.token(role='OWNER')}"), *[("X-Workspace-ID", zone.id)] * 2]
    async with zone.server.client("") as client:
        assert_problem(await client.get(MEMBERS, headers=headers), 400, "invalid_workspace_id")


async def test_who_one_is_is_asked_before_which_workspace_is_meant(zone: FreshZone) -> None:
    there = {"X-Workspace-ID": "a b"}
    async with zone.server.client("") as client:
        assert_problem(await client.get(MEMBERS, headers=there), 401, "missing_token")
    async with zone.client(zone.token("other")) as client:
        assert_problem(await client.get(MEMBERS, headers=there), 403, "missing_scope")


async def test_a_route_that_names_its_zone_does_not_heed_the_header(zone: FreshZone) -> None:
    async with zone.client() as client:
        assert (await client.get(zone.sessions_path, headers={"X-Workspace-ID": "nowhere"})).status_code == 200
