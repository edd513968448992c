"""Quotas are exact: concurrent spawns fill a limit and never exceed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from quarterdeck.domain.sessions.rules import BOUNDS
from tests.support.client_pool import ClientPool, open_clients
from tests.support.consistency import assert_check_passes
from tests.support.raw_http import RawResponse, build_request, send_all
from tests.support.replicas import start_replicas
from tests.support.rounds import ROUNDS
from tests.support.server import ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_zone_counts_match_rows, create_zone, json_object, spawn

CLIENTS, SLOTS = 100, 8
MANY_ROUNDS = max(50, ROUNDS)
BOUNDS_BY_NAME = {bound.name: bound for bound in BOUNDS}


def assert_slots_filled(responses: Sequence[RawResponse], bound: str, limit: int) -> None:
    """Assert that 8 spawns were admitted and that each of the 92 refusals names the bound."""
    assert Counter(response.status for response in responses) == {201: SLOTS, 429: CLIENTS - SLOTS}
    for response in responses:
        if response.status == 429:
            problem = response.json()
            assert problem["error"] == BOUNDS_BY_NAME[bound].code
            assert (problem["bound"], problem["limit"], problem["used"]) == (bound, limit, limit)
            assert BOUNDS_BY_NAME[bound].frees in problem["frees"]
            assert response.headers["content-type"] == "application/problem+json"
            assert (int(response.headers.get("retry-after", 0)) > 0) is BOUNDS_BY_NAME[bound].is_retryable


async def run_spawn_rounds(zone: FreshZone, clients: ClientPool, bound: str, limit: int, rounds: int) -> None:
    """In each round, spawn a root, let all clients spawn below it at once, then terminate the tree."""
    token = zone.token()
    async with zone.client(token) as client:
        for _ in range(rounds):
            root = (await spawn(client, zone))["id"]
            request = build_request("POST", zone.sessions_path, token, {"application_id": APP, "parent_id": root})
            assert_slots_filled(await clients.send_all(request), bound, limit)
            used = json_object(await client.get(f"{zone.path}/quotas"))["used"]
            assert used == {"sessions": SLOTS + 1, "concurrent": SLOTS}
            receipt = json_object(await client.delete(zone.session_path(root), params={"receipt": "true"}))
            assert (receipt["asked"], receipt["stopped"], receipt["left"]) == (SLOTS + 1, SLOTS + 1, [])


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        ("max_concurrent", SLOTS),
        ("max_children", SLOTS),
        ("max_tree_size", SLOTS + 1),
        ("max_tree_spawns", SLOTS + 1),
        ("max_sessions", SLOTS + 1),
        ("max_sessions_per_application", SLOTS + 1),
    ],
)
async def test_limit_of_8_admits_exactly_8_of_100_concurrent_spawns(
    server: ServerProcess, bound: str, limit: int
) -> None:
    zone = await create_zone(server, **{bound: limit})
    async with open_clients([server], CLIENTS) as clients:
        # One lock and one function check all bounds, so only one bound gets many rounds.
        await run_spawn_rounds(zone, clients, bound, limit, MANY_ROUNDS if bound == "max_concurrent" else ROUNDS)
    assert_zone_counts_match_rows(server.launch.database_url, zone.id)


async def test_replicas_together_admit_exactly_8_of_100_concurrent_spawns(servers: Servers, postgres_url: str) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    zone = await create_zone(replicas[0], max_concurrent=SLOTS)
    async with open_clients(replicas, CLIENTS) as clients:
        await run_spawn_rounds(zone, clients, "max_concurrent", SLOTS, MANY_ROUNDS)
    await assert_check_passes(servers, replicas[0].launch)


async def test_max_sessions_is_shared_by_all_applications_and_trees_of_a_zone(zone: FreshZone) -> None:
    limited_zone = await create_zone(zone.server, max_sessions=SLOTS)
    token = limited_zone.token("agent:lifecycle", "coordinator.admin")
    requests = [
        build_request(
            "POST", limited_zone.sessions_path, token, {"application_id": f"app-{n % 7}", "session_sid": f"s{n}"}
        )
        for n in range(CLIENTS)
    ]
    responses = await send_all(zone.server.url, requests)
    assert_slots_filled(responses, "max_sessions", SLOTS)
