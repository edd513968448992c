"""The promise of the quotas: with any number of callers at once, exactly as many are admitted as there is room for."""

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

CALLERS, ROOM = 100, 8
MANY_ROUNDS = max(50, ROUNDS)
NAMED = {bound.name: bound for bound in BOUNDS}


def assert_exactly_the_room_was_given(answers: Sequence[RawResponse], bound: str, limit: int) -> None:
    """Eight admitted, ninety-two refused, and each refusal explains itself."""
    assert Counter(answer.status for answer in answers) == {201: ROOM, 429: CALLERS - ROOM}
    for answer in answers:
        if answer.status == 429:
            told = answer.json()
            assert told["error"] == NAMED[bound].code
            assert (told["bound"], told["limit"], told["used"]) == (bound, limit, limit)
            assert NAMED[bound].frees in told["frees"]
            assert answer.headers["content-type"] == "application/problem+json"
            assert (int(answer.headers.get("retry-after", 0)) > 0) is NAMED[bound].is_retryable


async def bombs(zone: FreshZone, callers: ClientPool, bound: str, limit: int, rounds: int) -> None:
    """In each round a new tree: everybody spawns under its root in the same instant, and the tree ends."""
    token = zone.token()
    async with zone.client(token) as client:
        for _ in range(rounds):
            root = (await spawn(client, zone))["id"]
            asked = build_request("POST", zone.sessions_path, token, {"application_id": APP, "parent_id": root})
            assert_exactly_the_room_was_given(await callers.send_all(asked), bound, limit)
            used = json_object(await client.get(f"{zone.path}/quotas"))["used"]
            assert used == {"sessions": ROOM + 1, "concurrent": ROOM}
            receipt = json_object(await client.delete(zone.session_path(root), params={"receipt": "true"}))
            assert (receipt["asked"], receipt["stopped"], receipt["left"]) == (ROOM + 1, ROOM + 1, [])


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        ("max_concurrent", ROOM),
        ("max_children", ROOM),
        ("max_tree_size", ROOM + 1),
        ("max_tree_spawns", ROOM + 1),
        ("max_sessions", ROOM + 1),
        ("max_sessions_per_application", ROOM + 1),
    ],
)
async def test_of_100_concurrent_spawns_at_a_limit_of_8_exactly_8_are_admitted_in_every_round(
    server: ServerProcess, bound: str, limit: int
) -> None:
    zone = await create_zone(server, **{bound: limit})
    async with open_clients([server], CALLERS) as callers:
        # One lock and one function decide them all: the one that is tried very often stands for the others.
        await bombs(zone, callers, bound, limit, MANY_ROUNDS if bound == "max_concurrent" else ROUNDS)
    assert_zone_counts_match_rows(server.launch.database_url, zone.id)


async def test_replicas_on_one_database_admit_exactly_8_together_in_every_round(
    servers: Servers, postgres_url: str
) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    zone = await create_zone(replicas[0], max_concurrent=ROOM)
    async with open_clients(replicas, CALLERS) as callers:
        await bombs(zone, callers, "max_concurrent", ROOM, MANY_ROUNDS)
    await assert_check_passes(servers, replicas[0].launch)


async def test_different_applications_and_trees_share_the_zones_room(zone: FreshZone) -> None:
    narrow = await create_zone(zone.server, max_sessions=ROOM)
    token = narrow.token("agent:lifecycle", "coordinator.admin")
    asked = [
        build_request("POST", narrow.sessions_path, token, {"application_id": f"app-{n % 7}", "session_sid": f"s{n}"})
        for n in range(CALLERS)
    ]
    answers = await send_all(zone.server.url, asked)
    assert_exactly_the_room_was_given(answers, "max_sessions", ROOM)
