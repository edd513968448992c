"""Every route of a workspace, asked by each role: it answers as the table of powers says, which is what the
documentation shows."""

from __future__ import annotations

import httpx
import pytest

from quarterdeck.core.caller import LIFECYCLE, Role
from quarterdeck.domain.zones.rules import PERMISSIONS
from tests.support.route_table import RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, read_events

REFUSALS = {"forbidden_role", "not_a_member", "workspace_not_found"}


async def rows_of(server: ServerProcess) -> list[RouteRow]:
    return [row for row in await read_route_table(server) if row.uses_caller_zone]


async def test_every_route_of_a_workspace_says_which_power_it_needs_and_no_other_route_does(
    server: ServerProcess,
) -> None:
    for row in await read_route_table(server):
        assert (row.permission in PERMISSIONS) if row.uses_caller_zone else (row.permission is None), row
        assert not row.uses_caller_zone or row.scope == LIFECYCLE, row


def tokens(zone: FreshZone, role: Role) -> list[str]:
    """Everything by which a token makes its bearer this."""
    said = [zone.token(role=role)]
    return [*said, zone.token(agent_id="no-such-session")] if role is Role.AGENT else said


@pytest.mark.parametrize("role", Role)
async def test_every_route_answers_a_role_as_the_table_of_powers_says(zone: FreshZone, role: Role) -> None:
    rows = await rows_of(zone.server)
    for token in tokens(zone, role):
        async with zone.client(token) as client:
            for row in rows:
                answer = await client.request(**row.request_for(zone.id))
                assert_as_the_table_says(row, role, answer)


def assert_as_the_table_says(row: RouteRow, role: Role, answer: httpx.Response) -> None:
    assert row.permission is not None
    if role in PERMISSIONS[row.permission]:
        assert answer.status_code < 500, (str(row), answer.text)
        assert answer.status_code < 400 or answer.json()["error"] not in REFUSALS, (str(row), answer.text)
    else:
        assert answer.status_code == 403, (str(row), answer.text)
        said = assert_problem(answer, 403, "forbidden_role")
        assert (said["role"], said["power"]) == (role, row.permission), str(row)


async def test_the_token_of_a_terminated_agent_is_401_on_every_route(zone: FreshZone) -> None:
    async with zone.client(zone.token(role=Role.OWNER)) as owner:
        made = await owner.put("/api/v1/agents/a1", json={"name": "a"})
        assert made.status_code == 201, made.text
        ended = await owner.post("/api/v1/agents/a1/terminate", json={"reason": "enough", "graceful": False})
        assert ended.status_code == 200, ended.text
    before = await read_events(zone)
    async with zone.client(zone.token(agent_id="a1")) as agent:
        for row in await rows_of(zone.server):
            assert_problem(await agent.request(**row.request_for(zone.id, "a1")), 401, "agent_ended")
    assert await read_events(zone) == before
