"""Killed while a tree ends: what was stamped stays ended for everybody, and whoever lives or comes back finishes it."""

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
"""For the one that is killed, so that there is a middle to be killed in. Whoever finishes has its usual chunks."""
SWEPT_WITHIN = 5.0
"""Seconds, by the contract, with the interval of the sweep that a server has by itself."""


async def killed_in_the_middle(zone: FreshZone, root: str) -> None:
    """The zone's server is told to end a tree, and dies when a part of it has been settled."""
    asked = build_request("DELETE", zone.session_path(root) + "?reason=enough", zone.token())
    ending = asyncio.create_task(send_all(zone.server.url, [asked]))
    await wait_until_partial(zone)
    zone.server.kill()
    try:
        await ending
    except NoResponse:
        assert read_progress(zone).is_partial
        return
    raise AssertionError("the server was done before it could be killed")


async def assert_all_is_over(servers: Servers, zone: FreshZone, tree: set[str]) -> None:
    """The whole tree ended, children before parents, each once; and the counts agree with the rows."""
    log = await read_full_log(zone)
    assert {event["subject"] for event in log if event["type"] == "session.spawn"} >= tree
    ended = [event for event in log if event["type"] == "session.terminate"]
    assert {event["subject"] for event in ended} == {
        event["subject"] for event in log if event["type"] == "session.spawn"
    }
    assert_children_ended_before_their_parents(log)
    assert {(event["actor"], event["data"]["reason"]) for event in ended} == {("app", "enough")}, (
        "whoever finished it, it was the first who asked for it"
    )
    async with zone.client() as client:
        assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 0, "concurrent": 0}
    await assert_check_passes(servers, zone.server.launch)


async def test_a_server_killed_in_the_middle_finishes_the_tree_when_it_is_back(
    servers: Servers, launch: Launch
) -> None:
    for _ in range(max(1, ROUNDS // 3)):
        server = await servers.start(launch.with_environment(**MANY_CHUNKS))
        zone = await create_zone(server)
        async with open_clients([server], 32) as callers:
            tree = await spawn_tree(callers, TEN_LEVELS, spawn_request_builder(zone))
        async with start_concurrent_spawners(zone, tree, [server]) as intruders:
            await intruders.wait_for(admitted=20)
            await killed_in_the_middle(zone, tree[0])
        again = await servers.start(launch)
        zone = replace(zone, server=again)
        async with start_concurrent_spawners(zone, tree, [again]) as late:
            await wait_until_finished(zone, SWEPT_WITHIN)
        assert not late.admitted, "what was stamped before the end of the server stays ended after it"
        await assert_all_is_over(servers, zone, {*tree, *intruders.admitted})
        assert await again.stop() == 0


async def test_when_the_replica_that_ends_a_tree_is_killed_the_others_finish_it(
    servers: Servers, postgres_url: str
) -> None:
    others = await start_replicas(servers, postgres_url, 2)
    victim = await start_replica(others[0], servers, **MANY_CHUNKS)
    replicas = [victim, *others]
    zone = await create_zone(victim)
    async with open_clients(replicas, 32) as callers:
        tree = await spawn_tree(callers, TEN_LEVELS, spawn_request_builder(zone))
    async with start_concurrent_spawners(zone, tree, replicas) as intruders:
        await intruders.wait_for(admitted=20)
        await killed_in_the_middle(zone, tree[0])
        zone = replace(zone, server=others[0])
        await wait_until_finished(zone, SWEPT_WITHIN)
    assert intruders.refusals.keys() == {(404, "parent_not_found")}
    await assert_all_is_over(servers, zone, {*tree, *intruders.admitted})
