"""Every workspace route responds to each role as the permission table of the tests allows."""

from __future__ import annotations

import httpx
import pytest

from quarterdeck.core.caller import LIFECYCLE, Role
from tests.support.permissions import ROLES_BY_PERMISSION
from tests.support.route_table import RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, read_events

REFUSALS = {"forbidden_role", "not_a_member", "workspace_not_found"}


async def workspace_routes(server: ServerProcess) -> list[RouteRow]:
    return [row for row in await read_route_table(server) if row.uses_caller_zone]


async def test_workspace_routes_and_no_others_require_a_permission(server: ServerProcess) -> None:
    for row in await read_route_table(server):
        assert (row.permission in ROLES_BY_PERMISSION) if row.uses_caller_zone else (row.permission is None), row
        assert not row.uses_caller_zone or row.scope == LIFECYCLE, row


def tokens_for(zone: FreshZone, role: Role) -> list[str]:
    """Every kind of token that gives its caller this role."""
    tokens = [zone.token(role=role)]
    return [*tokens, zone.token(agent_id="no-such-session")] if role is Role.AGENT else tokens


@pytest.mark.parametrize("role", Role)
async def test_every_route_enforces_the_permission_table(zone: FreshZone, role: Role) -> None:
    rows = await workspace_routes(zone.server)
    for token in tokens_for(zone, role):
        async with zone.client(token) as client:
            for row in rows:
                response = await client.request(**row.request_for(zone.id))
                assert_matches_permission_table(row, role, response)


def assert_matches_permission_table(row: RouteRow, role: Role, response: httpx.Response) -> None:
    assert row.permission is not None
    if role in ROLES_BY_PERMISSION[row.permission]:
        assert response.status_code < 500, (str(row), response.text)
        assert response.status_code < 400 or response.json()["error"] not in REFUSALS, (str(row), response.text)
    else:
        assert response.status_code == 403, (str(row), response.text)
        problem = assert_problem(response, 403, "forbidden_role")
        assert (problem["role"], problem["power"]) == (role, row.permission), str(row)


async def test_token_of_a_terminated_agent_is_401_on_every_route(zone: FreshZone) -> None:
    async with zone.client(zone.token(role=Role.OWNER)) as owner:
        created = await owner.put("/api/v1/agents/a1", json={"name": "a"})
        assert created.status_code == 201, created.text
        ended = await owner.post("/api/v1/agents/a1/terminate", json={"reason": "test", "graceful": False})
        assert ended.status_code == 200, ended.text
    before = await read_events(zone)
    async with zone.client(zone.token(agent_id="a1")) as agent:
        for row in await workspace_routes(zone.server):
            assert_problem(await agent.request(**row.request_for(zone.id, "a1")), 401, "agent_ended")
    assert await read_events(zone) == before
