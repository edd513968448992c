"""A server is killed during a cascade: marked sessions stay ended, and another or the restarted server finishes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.support.client_pool import open_clients
from tests.support.consistency import assert_check_passes
from tests.support.http_trees import (
    TEN_LEVELS,
    read_progress,
    spawn_request_builder,
    spawn_tree,
    start_concurrent_spawners,
    wait_until_finished,
    wait_until_partial,
)
from tests.support.log_replay import assert_children_ended_before_their_parents, read_full_log
from tests.support.raw_http import NoResponse, build_request, send_all
from tests.support.replicas import start_replica, start_replicas
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, Servers
from tests.support.zone import FreshZone, create_zone, json_object

MANY_CHUNKS = {"QD_CASCADE_CHUNK": "10"}
"""Small chunks for the server that is killed, so that its cascade takes many transactions. Others use the default."""
SWEPT_WITHIN = 5.0
"""Seconds: the guarantee with the default interval of the cascade sweep."""


async def kill_during_cascade(zone: FreshZone, root: str) -> None:
    """Terminate a tree and kill the zone's server when some of its sessions have ended."""
    request = build_request("DELETE", zone.session_path(root) + "?reason=obsolete", zone.token())
    deletion = asyncio.create_task(send_all(zone.server.url, [request]))
    await wait_until_partial(zone)
    zone.server.kill()
    try:
        await deletion
    except NoResponse:
        assert read_progress(zone).is_partial
        return
    raise AssertionError("the cascade finished before the server was killed")


async def assert_all_ended(servers: Servers, zone: FreshZone, tree: set[str]) -> None:
    """Assert that every session ended once, children before parents, and that the counts match the rows."""
    log = await read_full_log(zone)
    assert {event["subject"] for event in log if event["type"] == "session.spawn"} >= tree
    ended = [event for event in log if event["type"] == "session.terminate"]
    assert {event["subject"] for event in ended} == {
        event["subject"] for event in log if event["type"] == "session.spawn"
    }
    assert_children_ended_before_their_parents(log)
    assert {(event["actor"], event["data"]["reason"]) for event in ended} == {("app", "obsolete")}, (
        "actor and reason are those of the first request"
    )
    async with zone.client() as client:
        assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 0, "concurrent": 0}
    await assert_check_passes(servers, zone.server.launch)


async def test_restarted_server_finishes_the_cascade_it_was_killed_in(servers: Servers, launch: Launch) -> None:
    for _ in range(max(1, ROUNDS // 3)):
        server = await servers.start(launch.with_environment(**MANY_CHUNKS))
        zone = await create_zone(server)
        async with open_clients([server], 32) as clients:
            tree = await spawn_tree(clients, TEN_LEVELS, spawn_request_builder(zone))
        async with start_concurrent_spawners(zone, tree, [server]) as spawners:
            await spawners.wait_for(admitted=20)
            await kill_during_cascade(zone, tree[0])
        restarted = await servers.start(launch)
        zone = replace(zone, server=restarted)
        async with start_concurrent_spawners(zone, tree, [restarted]) as late_spawners:
            await wait_until_finished(zone, SWEPT_WITHIN)
        assert not late_spawners.admitted, "sessions marked before the kill stay ended"
        await assert_all_ended(servers, zone, {*tree, *spawners.admitted})
        assert await restarted.stop() == 0


async def test_other_replicas_finish_the_cascade_of_a_killed_replica(servers: Servers, postgres_url: str) -> None:
    others = await start_replicas(servers, postgres_url, 2)
    victim = await start_replica(others[0], servers, **MANY_CHUNKS)
    replicas = [victim, *others]
    zone = await create_zone(victim)
    async with open_clients(replicas, 32) as clients:
        tree = await spawn_tree(clients, TEN_LEVELS, spawn_request_builder(zone))
    async with start_concurrent_spawners(zone, tree, replicas) as spawners:
        await spawners.wait_for(admitted=20)
        await kill_during_cascade(zone, tree[0])
        zone = replace(zone, server=others[0])
        await wait_until_finished(zone, SWEPT_WITHIN)
    assert spawners.refusals.keys() == {(404, "parent_not_found")}
    await assert_all_ended(servers, zone, {*tree, *spawners.admitted})
