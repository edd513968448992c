"""The promise of the cascade: one DELETE ends a whole tree, children before parents, and nothing slips in or stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.support.client_pool import open_clients
from tests.support.consistency import assert_check_passes
from tests.support.http_trees import (
    TEN_LEVELS,
    read_progress,
    spawn_request_builder,
    spawn_tree,
    start_concurrent_spawners,
    wait_until_partial,
)
from tests.support.log_replay import Event, assert_children_ended_before_their_parents, read_full_log, sessions_alive
from tests.support.replicas import start_all_replicas
from tests.support.route_table import read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object

SIZE = sum(TEN_LEVELS)
BUILDERS, INTRUDERS = 32, 20
ENDPOINT = "https://agents.example.com/"
MANY_CHUNKS = {"QD_CASCADE_CHUNK": "10"}


async def receipt_of(zone: FreshZone, server: ServerProcess, session_id: str) -> dict[str, Any]:
    """What the DELETE of a session answers, by any replica."""
    async with FreshZone(server, zone.id).client() as client:
        answer = await client.delete(
            zone.session_path(session_id), params={"reason": "enough", "receipt": "true"}, timeout=60
        )
    assert answer.status_code == 200, answer.text
    return json_object(answer)


def assert_ended_by(log: list[Event], root: str, tree: set[str]) -> None:
    """All of it, each once, children first, each told by whom and why; and nobody came after the first had ended."""
    ends = [event for event in log if event["type"] == "session.terminate"]
    spawns = [event for event in log if event["type"] == "session.spawn"]
    assert {event["subject"] for event in ends} == {event["subject"] for event in spawns} == tree
    assert len(ends) == len(spawns) == len(tree)
    assert_children_ended_before_their_parents(log)
    assert {(event["data"]["reason"], event["data"]["cause"]) for event in ends} == {("enough", root)}
    assert spawns[-1]["pos"] < ends[0]["pos"]


async def test_one_delete_ends_a_tree_of_1000_ten_deep_though_20_clients_spawn_in_it_throughout(
    servers: Servers, launch: Launch
) -> None:
    replicas = await start_all_replicas(servers, launch, **MANY_CHUNKS)
    zone = await create_zone(replicas[0])
    async with open_clients(replicas, BUILDERS) as callers:
        tree = await spawn_tree(callers, TEN_LEVELS, spawn_request_builder(zone))
    async with start_concurrent_spawners(zone, tree, replicas, INTRUDERS) as intruders:
        await intruders.wait_for(admitted=INTRUDERS)
        first = asyncio.create_task(receipt_of(zone, replicas[0], tree[0]))
        await wait_until_partial(zone)
        second = asyncio.create_task(receipt_of(zone, replicas[-1], tree[0]))
        began, joined = await first, await second
        assert read_progress(zone).is_finished, "both are answered when all of it is over"
        await intruders.wait_for(refused=intruders.refusals.total() + 2 * INTRUDERS)
    assert intruders.refusals.keys() == {(404, "parent_not_found")}
    whole = SIZE + len(intruders.admitted)
    assert (began["asked"], began["stopped"], began["already_stopped"]) == (whole, whole, 0)
    assert (joined["asked"], joined["stopped"], joined["already_stopped"]) == (whole, 0, whole)
    assert (began["joined"], joined["joined"]) == (False, True)
    assert began["cascade_id"] == joined["cascade_id"] is not None
    assert began["left"] == joined["left"] == []
    assert read_progress(zone).terminated == whole
    log = await read_full_log(zone)
    assert_ended_by(log, tree[0], {*tree, *intruders.admitted})
    assert not sessions_alive(log)
    await assert_check_passes(servers, launch)


ASKED_OF_A_STAMPED_SESSION = {
    "GET /zones/{zone}/agents/{id}",
    "GET /zones/{zone}/agents/{id}/children",
    "GET /zones/{zone}/agents/{id}/tree",
    "GET /zones/{zone}/agents/{id}/authority",
    "GET /zones/{zone}/agents/{id}/explain",
    "POST /zones/{zone}/agents/{id}/suspend",
    "PATCH /zones/{zone}/agents/{id}/suspend",
    "POST /zones/{zone}/agents/{id}/resume",
    "PATCH /zones/{zone}/agents/{id}/resume",
    "DELETE /zones/{zone}/agents/{id}",
    "POST /zones/{zone}/agents/{id}/services",
    "GET /zones/{zone}/agents/{id}/services",
    "GET /zones/{zone}/agents/{id}/services/{service}",
    "PATCH /zones/{zone}/agents/{id}/services/{service}",
    "DELETE /zones/{zone}/agents/{id}/services/{service}",
    "POST /zones/{zone}/agents/{id}/services/{service}/heartbeat",
    "POST /zones/{zone}/agents/{id}/heartbeat",
}


async def stamped_and_unsettled(servers: Servers, launch: Launch) -> tuple[FreshZone, list[str]]:
    """A tree whose end was cut short by that of the server, on a new server that leaves it as it is: every sweep of it
    is a day away. What is stamped can be looked at for as long as a test likes."""
    server = await servers.start(launch.with_environment(QD_CASCADE_CHUNK="1"))
    zone = await create_zone(server)
    async with open_clients([server], BUILDERS) as callers:
        tree = await spawn_tree(callers, (1, 1, 3, 50, 50), spawn_request_builder(zone))
    async with zone.client() as client:
        await client.post(zone.session_path(tree[1], "/services"), json={"endpoint_url": ENDPOINT})
        ending = asyncio.create_task(client.delete(zone.session_path(tree[0]), params={"reason": "enough"}))
        await wait_until_partial(zone)
        server.kill()
        with pytest.raises(httpx.TransportError):
            await ending
    never = {f"QD_{sweep}_SWEEP_INTERVAL_MS": "86400000" for sweep in ("CASCADE", "TTL", "ORPHAN")}
    zone = replace(zone, server=await servers.start(launch.with_environment(**never)))
    assert read_progress(zone).is_partial
    return zone, tree


async def test_what_is_stamped_reads_as_terminated_on_every_route_before_it_is_settled(
    servers: Servers, launch: Launch
) -> None:
    zone, tree = await stamped_and_unsettled(servers, launch)
    # The root is settled last, and its only child next to last: both are surely still to come.
    root, child = tree[0], tree[1]
    service = str(DirectDatabase(launch.database_url).scalar("select id from agent_services"))
    rows = [row for row in await read_route_table(zone.server) if row.path.startswith("/zones/{zone}/agents/{id}")]
    assert {str(row) for row in rows} == ASKED_OF_A_STAMPED_SESSION, "a new route: ask it, too"
    async with zone.client() as client:
        await assert_it_is_shown_as_terminated(client, zone, child, tree)
        await assert_nothing_is_counted_or_admitted(client, zone, child)
        await assert_its_services_are_gone(client, zone, child, service)
        for method in ("POST", "PATCH"):
            for verb, refusal in (
                ("suspend", "agent_not_found_or_not_active"),
                ("resume", "agent_not_found_or_not_suspended"),
            ):
                answer = await client.request(method, zone.session_path(child, f"/{verb}"))
                assert_problem(answer, 409, refusal)
    async with zone.client(zone.token(session_id=child)) as speaks_for_it:
        for path in (zone.sessions_path, zone.session_path(root), f"{zone.path}/quotas", f"{zone.path}/events"):
            assert_problem(await speaks_for_it.get(path), 401, "session_ended")
    assert read_progress(zone).is_partial, "all of this was before it was settled"
    joined = await receipt_of(zone, zone.server, root)
    assert (joined["joined"], joined["asked"], joined["stopped"]) == (True, len(tree), 0)
    assert read_progress(zone).is_finished
    assert_ended_by(await read_full_log(zone), root, {*tree})


async def assert_it_is_shown_as_terminated(
    client: httpx.AsyncClient, zone: FreshZone, session_id: str, tree: list[str]
) -> None:
    one = json_object(await client.get(zone.session_path(session_id)))
    assert (one["status"], one["termination_reason"]) == ("terminated", "enough")
    assert one["terminated_at"] is not None
    explained = json_object(await client.get(zone.session_path(session_id, "/explain")))
    assert explained["session"] == one
    assert explained["spawn"]["admitted"] is False
    held = json_object(await client.get(zone.session_path(session_id, "/authority")))
    assert (held["scopes"], held["edges"]) == ([], [])
    below = json_object(await client.get(zone.session_path(session_id, "/tree")))["items"]
    assert {item["status"] for item in below} == {"terminated"}
    assert {item["id"] for item in below} == {*tree[1:]}
    for path in (
        f"{zone.sessions_path}?limit=500",
        f"{zone.sessions_path}?limit=500&application_id={APP}",
        f"{zone.sessions_path}?limit=500&parent_id={session_id}",
        f"{zone.sessions_path}?limit=500&root_id={tree[0]}",
        zone.session_path(session_id, "/children?limit=500"),
    ):
        everything = json_object(await client.get(path))["items"]
        assert {item["status"] for item in everything} == {"terminated"}
        assert json_object(await client.get(f"{path}&status=terminated"))["items"] == everything
        for status in ("active", "suspended"):
            assert json_object(await client.get(f"{path}&status={status}"))["items"] == []


async def assert_its_services_are_gone(
    client: httpx.AsyncClient, zone: FreshZone, session_id: str, service_id: str
) -> None:
    own, one = zone.session_path(session_id, "/services"), zone.session_path(session_id, f"/services/{service_id}")
    assert_problem(await client.post(own, json={"endpoint_url": ENDPOINT}), 404, "agent_not_found")
    assert json_object(await client.get(own))["items"] == []
    for path in (one, f"{zone.path}/agent-services/{service_id}"):
        for answer in (
            await client.get(path),
            await client.patch(path, json={"health": "healthy"}),
            await client.post(f"{path}/heartbeat"),
            await client.post(zone.session_path(session_id, "/heartbeat")),
        ):
            assert_problem(answer, 404, "agent_service_not_found")
    assert json_object(await client.get(f"{zone.path}/agent-services"))["items"] == []


async def assert_nothing_is_counted_or_admitted(client: httpx.AsyncClient, zone: FreshZone, session_id: str) -> None:
    assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 0, "concurrent": 0}
    under = {"application_id": APP, "parent_id": session_id}
    assert_problem(await client.post(zone.sessions_path, json=under), 404, "parent_not_found")
    would = json_object(await client.get(f"{zone.path}/explain/spawn", params=under))
    assert (would["admitted"], would["refused_by"][0]["error"]) == (False, "parent_not_found")
