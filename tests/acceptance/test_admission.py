"""The promise of the quotas: with any number of callers at once, exactly as many are admitted as there is room for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.raw import Answer, at_once, request
from tests.support.replicas import replicas_of
from tests.support.rounds import ROUNDS
from tests.support.server import ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_counts_hold, end, fresh_zone, shown, spawn

CALLERS, ROOM = 100, 8


def assert_exactly_the_room_was_given(answers: list[Answer], bound: str, limit: int) -> list[str]:
    """Eight admitted, ninety-two refused, and each refusal explains itself. The ids of the admitted."""
    assert Counter(answer.status for answer in answers) == {201: ROOM, 429: CALLERS - ROOM}
    for answer in answers:
        if answer.status == 429:
            told = answer.json()
            assert (told["bound"], told["limit"], told["used"]) == (bound, limit, limit)
            assert "ends" in told["frees"]
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) > 0
    return [answer.json()["id"] for answer in answers if answer.status == 201]


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        ("max_concurrent", ROOM),
        ("max_children", ROOM),
        ("max_tree_size", ROOM + 1),
        ("max_sessions", ROOM + 1),
    ],
)
async def test_of_100_concurrent_spawns_at_a_limit_of_8_exactly_8_are_admitted_in_every_round(
    server: ServerProcess, bound: str, limit: int
) -> None:
    zone = await fresh_zone(server, **{bound: limit})
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        child = request("POST", zone.agents, zone.token(), {"application_id": APP, "parent_id": root})
        for _ in range(ROUNDS):
            answers = await at_once(server.url, [child] * CALLERS)
            admitted = assert_exactly_the_room_was_given(answers, bound, limit)
            used = shown(await client.get(f"{zone.path}/quotas"))["used"]
            assert used == {"sessions": ROOM + 1, "concurrent": ROOM}
            for session in admitted:
                await end(client, zone, session)
    assert_counts_hold(server.launch.database_url, zone.id)


async def test_replicas_on_one_database_admit_exactly_8_together_in_every_round(
    servers: Servers, postgres_url: str
) -> None:
    replicas = await replicas_of(servers, postgres_url, 3)
    zone = await fresh_zone(replicas[0], max_concurrent=ROOM)
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        child = request("POST", zone.agents, zone.token(), {"application_id": APP, "parent_id": root})
        for _ in range(ROUNDS):
            answers = await spread(replicas, child)
            for session in assert_exactly_the_room_was_given(answers, "max_concurrent", ROOM):
                await end(client, zone, session)
    assert_counts_hold(postgres_url, zone.id)


async def spread(replicas: list[ServerProcess], asked: bytes) -> list[Answer]:
    share, rest = divmod(CALLERS, len(replicas))
    numbers = [share + (index < rest) for index in range(len(replicas))]
    gathered = await asyncio.gather(
        *(at_once(replica.url, [asked] * number) for replica, number in zip(replicas, numbers, strict=True))
    )
    return [answer for answers in gathered for answer in answers]


async def test_different_applications_and_trees_share_the_zones_room(zone: FreshZone) -> None:
    narrow = await fresh_zone(zone.server, max_sessions=ROOM)
    token = narrow.token("agent:lifecycle", "coordinator.admin")
    asked = [
        request("POST", narrow.agents, token, {"application_id": f"app-{n % 7}", "session_sid": f"s{n}"})
        for n in range(CALLERS)
    ]
    answers = await at_once(zone.server.url, asked)
    assert_exactly_the_room_was_given(answers, "max_sessions", ROOM)
