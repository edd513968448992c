"""Workspaces over HTTP: which one a request acts in, its members, and the role of each credential."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from quarterdeck.core.caller import LIFECYCLE, Role
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object, read_events

MEMBERS = "/api/v1/members"


def member_path(subject: str) -> str:
    return f"{MEMBERS}/{quote(subject, safe='')}"


def role_client(zone: FreshZone, role: str = "OWNER", subject: str = APP) -> httpx.AsyncClient:
    """A client of the zone whose token has this role."""
    return zone.client(zone.token(role=role, subject=subject))


async def put_role(client: httpx.AsyncClient, subject: str, role: str) -> httpx.Response:
    return await client.put(member_path(subject), json={"role": role})


# -- members


async def test_members_are_added_read_listed_changed_and_removed(zone: FreshZone) -> None:
    async with role_client(zone, subject="olga") as owner:
        created = await put_role(owner, "alice", "MEMBER")
        assert created.status_code == 201
        assert json_object(created) == {
            "subject": "alice",
            "workspaceId": zone.id,
            "role": "MEMBER",
            "addedBy": "olga",
            "createdAt": json_object(created)["createdAt"],
            "updatedAt": json_object(created)["createdAt"],
        }
        assert json_object(await owner.get(member_path("alice"))) == json_object(created)
        changed = await put_role(owner, "alice", "ADMIN")
        assert (changed.status_code, json_object(changed)["role"]) == (200, "ADMIN")
        assert (await put_role(owner, "bert", "OWNER")).status_code == 201
        first = await owner.get(MEMBERS, params={"limit": 1})
        assert [item["subject"] for item in first.json()["items"]] == ["alice"]
        rest = await owner.get(MEMBERS, params={"limit": 1, "cursor": first.json()["nextCursor"]})
        assert ([item["subject"] for item in rest.json()["items"]], rest.json()["nextCursor"]) == (["bert"], None)
        assert 'rel="next"' in first.headers["link"]
        assert (await owner.delete(member_path("alice"))).status_code == 204
        assert_problem(await owner.delete(member_path("alice")), 404, "member_not_found")
        assert_problem(await owner.get(member_path("alice")), 404, "member_not_found")
        assert_problem(await owner.get(MEMBERS, params={"cursor": "x"}), 400, "invalid_cursor")
    transitions = [(event["type"], event["subject"], event["from"], event["to"]) for event in await read_events(zone)]
    assert transitions[1:] == [
        ("member.added", "alice", None, "MEMBER"),
        ("member.changed", "alice", "MEMBER", "ADMIN"),
        ("member.added", "bert", None, "OWNER"),
        ("member.removed", "alice", "ADMIN", None),
    ]


@pytest.mark.parametrize("subject", ["auth0|5f7c", "ann@example.com", "Zoë", "a b", "key:1", "%", "x" * 255])
async def test_member_subject_is_any_text_that_an_issuer_uses(zone: FreshZone, subject: str) -> None:
    async with role_client(zone) as owner:
        assert json_object(await put_role(owner, subject, "ADMIN"))["subject"] == subject
        assert [item["subject"] for item in (await owner.get(MEMBERS)).json()["items"]] == [subject]
    async with zone.client(zone.token(subject=subject)) as client:
        assert json_object(await client.get(member_path(subject)))["role"] == "ADMIN"


@pytest.mark.parametrize(
    "body", [{}, {"role": "owner"}, {"role": "ROOT"}, {"role": None}, {"role": "ADMIN", "x": 1}, []]
)
async def test_body_without_a_valid_role_is_400(zone: FreshZone, body: object) -> None:
    async with role_client(zone) as owner:
        assert_problem(await owner.put(member_path("alice"), json=body), 400, "invalid_body")
        assert (await owner.get(MEMBERS)).json()["items"] == []


async def test_last_owner_cannot_be_removed_and_only_owners_change_owners(zone: FreshZone) -> None:
    async with role_client(zone) as owner, role_client(zone, "ADMIN") as admin:
        await put_role(owner, "olga", "OWNER")
        await put_role(admin, "alice", "MEMBER")
        assert_problem(await put_role(admin, "alice", "OWNER"), 403, "forbidden_role")
        assert_problem(await put_role(admin, "olga", "ADMIN"), 403, "forbidden_role")
        assert_problem(await admin.delete(member_path("olga")), 403, "forbidden_role")
        assert_problem(await put_role(owner, "olga", "ADMIN"), 409, "last_owner")
        assert_problem(await owner.delete(member_path("olga")), 409, "last_owner")
        assert (await admin.delete(member_path("alice"))).status_code == 204
        assert (await owner.delete(member_path("olga"))).status_code == 204


# -- the role of a credential


async def test_local_tokens_and_api_keys_have_role_member_by_default(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))
    credentials = [{"Authorization": f"Bearer {zone.token()}"}, {"X-API-Key": key["key"]}]
    for headers in credentials:
        async with zone.server.client("") as client:
            problem = assert_problem(await client.get(MEMBERS, headers=headers), 403, "forbidden_role")
            assert (problem["role"], problem["allowed"]) == ("MEMBER", ["OWNER", "ADMIN"])
    async with role_client(zone) as owner, zone.server.client("") as client:
        await put_role(owner, f"key:{key['id']}", "ADMIN")
        assert (await client.get(MEMBERS, headers=credentials[1])).status_code == 200


async def test_stored_role_takes_precedence_over_the_token_role(zone: FreshZone) -> None:
    async with role_client(zone) as owner, role_client(zone, "ADMIN", subject="alice") as alice:
        assert (await alice.get(MEMBERS)).status_code == 200
        await put_role(owner, "alice", "MEMBER")
        assert_problem(await alice.get(MEMBERS), 403, "forbidden_role")
        await owner.delete(member_path("alice"))
        assert (await alice.get(MEMBERS)).status_code == 200


async def test_zone_administrator_is_admin_and_server_administrator_is_owner(zone: FreshZone) -> None:
    async with zone.client(zone.token(LIFECYCLE, "coordinator.admin")) as admin, role_client(zone) as owner:
        await put_role(owner, "olga", "OWNER")
        assert (await put_role(admin, "alice", "MEMBER")).status_code == 201
        assert_problem(await put_role(admin, "alice", "OWNER"), 403, "forbidden_role")
    async with zone.server.client() as server_admin:
        headers = {"X-Workspace-ID": zone.id}
        assert (
            await server_admin.put(member_path("alice"), json={"role": "OWNER"}, headers=headers)
        ).status_code == 200


async def test_agent_token_has_role_agent_whatever_else_it_claims(zone: FreshZone) -> None:
    async with role_client(zone) as owner:
        await put_role(owner, APP, "OWNER")
    scopes = (LIFECYCLE, "coordinator.admin", "quarterdeck.admin")
    async with zone.client(zone.token(*scopes, agent_id="a1", role="OWNER")) as agent:
        problem = assert_problem(await agent.get(MEMBERS), 403, "forbidden_role")
        assert problem["role"] == Role.AGENT
        foreign = await create_zone(zone.server)
        in_foreign = await agent.get(MEMBERS, headers={"X-Workspace-ID": foreign.id})
        assert_problem(in_foreign, 404, "workspace_not_found")


# -- the workspace of a request


async def test_header_may_name_the_own_workspace_and_any_other_is_404(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with role_client(zone) as owner:
        assert (await owner.get(MEMBERS, headers={"X-Workspace-ID": zone.id})).status_code == 200
        problems = [
            assert_problem(await owner.get(MEMBERS, headers={"X-Workspace-ID": other}), 404, "workspace_not_found")
            for other in (foreign.id, "nowhere")
        ]
        assert {problem["detail"].replace(foreign.id, "X").replace("nowhere", "X") for problem in problems} == {
            "Workspace 'X' does not exist, or this token cannot access it."
        }


async def test_administrator_acts_in_the_workspace_of_the_header(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        zone_header = {"X-Workspace-ID": zone.id}
        created = await admin.put(member_path("alice"), json={"role": "MEMBER"}, headers=zone_header)
        assert (created.status_code, json_object(created)["workspaceId"]) == (201, zone.id)
        assert_problem(await admin.get(member_path("alice")), 404, "member_not_found")
        unknown_header = {"X-Workspace-ID": "nowhere"}
        assert_problem(await admin.get(MEMBERS, headers=unknown_header), 404, "workspace_not_found")
        refused = await admin.put(member_path("alice"), json={"role": "MEMBER"}, headers=unknown_header)
        assert_problem(refused, 404, "workspace_not_found")


@pytest.mark.parametrize("header", ["", "a b", "a/b", "é", "x" * 129, "a,b"])
async def test_invalid_workspace_id_is_400(zone: FreshZone, header: str) -> None:
    async with role_client(zone) as owner:
        response = await owner.get(MEMBERS, headers={b"X-Workspace-ID": header.encode()})
        assert_problem(response, 400, "invalid_workspace_id")


async def test_two_workspace_headers_are_400(zone: FreshZone) -> None:
    headers = [("Authorization", f"Bearer {zone.token(role='OWNER')}"), *[("X-Workspace-ID", zone.id)] * 2]
    async with zone.server.client("") as client:
        assert_problem(await client.get(MEMBERS, headers=headers), 400, "invalid_workspace_id")


async def test_credential_is_checked_before_the_workspace_header(zone: FreshZone) -> None:
    headers = {"X-Workspace-ID": "a b"}
    async with zone.server.client("") as client:
        assert_problem(await client.get(MEMBERS, headers=headers), 401, "missing_token")
    async with zone.client(zone.token("other")) as client:
        assert_problem(await client.get(MEMBERS, headers=headers), 403, "missing_scope")


async def test_route_with_the_zone_in_its_path_ignores_the_workspace_header(zone: FreshZone) -> None:
    async with zone.client() as client:
        assert (await client.get(zone.sessions_path, headers={"X-Workspace-ID": "nowhere"})).status_code == 200
