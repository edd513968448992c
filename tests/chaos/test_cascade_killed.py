"""Killed while a tree ends: what was stamped stays ended for everybody, and whoever lives or comes back finishes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.support.callers import callers_of
from tests.support.checking import assert_check_finds_nothing
from tests.support.raw import Unanswered, at_once, request
from tests.support.replay import assert_children_ended_before_their_parents, whole_log
from tests.support.replicas import another, replicas_of
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, Servers
from tests.support.trees import TEN_DEEP, grow, in_the_middle, intruders_in, progress, settled_within, spawning_in
from tests.support.zone import FreshZone, fresh_zone, shown

MANY_CHUNKS = {"QD_CASCADE_CHUNK": "10"}
"""For the one that is killed, so that there is a middle to be killed in. Whoever finishes has its usual chunks."""
SWEPT_WITHIN = 5.0
"""Seconds, by the contract, with the interval of the sweep that a server has by itself."""


async def killed_in_the_middle(zone: FreshZone, root: str) -> None:
    """The zone's server is told to end a tree, and dies when a part of it has been settled."""
    asked = request("DELETE", zone.agent(root) + "?reason=enough", zone.token())
    ending = asyncio.create_task(at_once(zone.server.url, [asked]))
    await in_the_middle(zone)
    zone.server.kill()
    try:
        await ending
    except Unanswered:
        assert progress(zone).is_in_the_middle
        return
    raise AssertionError("the server was done before it could be killed")


async def assert_all_is_over(servers: Servers, zone: FreshZone, tree: set[str]) -> None:
    """The whole tree ended, children before parents, each once; and the counts agree with the rows."""
    log = await whole_log(zone)
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
        assert shown(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 0, "concurrent": 0}
    await assert_check_finds_nothing(servers, zone.server.launch)


async def test_a_server_killed_in_the_middle_finishes_the_tree_when_it_is_back(
    servers: Servers, launch: Launch
) -> None:
    for _ in range(max(1, ROUNDS // 3)):
        server = await servers.start(launch.told(**MANY_CHUNKS))
        zone = await fresh_zone(server)
        async with callers_of([server], 32) as callers:
            tree = await grow(callers, TEN_DEEP, spawning_in(zone))
        async with intruders_in(zone, tree, [server]) as intruders:
            await intruders.reach(admitted=20)
            await killed_in_the_middle(zone, tree[0])
        again = await servers.start(launch)
        zone = replace(zone, server=again)
        async with intruders_in(zone, tree, [again]) as late:
            await settled_within(zone, SWEPT_WITHIN)
        assert not late.admitted, "what was stamped before the end of the server stays ended after it"
        await assert_all_is_over(servers, zone, {*tree, *intruders.admitted})
        assert await again.stop() == 0


async def test_when_the_replica_that_ends_a_tree_is_killed_the_others_finish_it(
    servers: Servers, postgres_url: str
) -> None:
    others = await replicas_of(servers, postgres_url, 2)
    victim = await another(others[0], servers, **MANY_CHUNKS)
    replicas = [victim, *others]
    zone = await fresh_zone(victim)
    async with callers_of(replicas, 32) as callers:
        tree = await grow(callers, TEN_DEEP, spawning_in(zone))
    async with intruders_in(zone, tree, replicas) as intruders:
        await intruders.reach(admitted=20)
        await killed_in_the_middle(zone, tree[0])
        zone = replace(zone, server=others[0])
        await settled_within(zone, SWEPT_WITHIN)
    assert intruders.refusals.keys() == {(404, "parent_not_found")}
    await assert_all_is_over(servers, zone, {*tree, *intruders.admitted})
