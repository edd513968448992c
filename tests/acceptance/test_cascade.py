"""A cascade terminates a whole tree with one DELETE, children before parents. Concurrent spawns cannot escape it."""

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

TREE_SIZE = sum(TEN_LEVELS)
CLIENTS, SPAWNERS = 32, 20
ENDPOINT = "https://agents.example.com/"
MANY_CHUNKS = {"QD_CASCADE_CHUNK": "10"}


async def delete_session(zone: FreshZone, server: ServerProcess, session_id: str) -> dict[str, Any]:
    """Terminate a session through this replica and return the receipt."""
    async with FreshZone(server, zone.id).client() as client:
        response = await client.delete(
            zone.session_path(session_id), params={"reason": "obsolete", "receipt": "true"}, timeout=60
        )
    assert response.status_code == 200, response.text
    return json_object(response)


def assert_terminated_by(log: list[Event], root: str, tree: set[str]) -> None:
    """Assert one termination event per session, children first, with reason and cause, after the last spawn."""
    ends = [event for event in log if event["type"] == "session.terminate"]
    spawns = [event for event in log if event["type"] == "session.spawn"]
    assert {event["subject"] for event in ends} == {event["subject"] for event in spawns} == tree
    assert len(ends) == len(spawns) == len(tree)
    assert_children_ended_before_their_parents(log)
    assert {(event["data"]["reason"], event["data"]["cause"]) for event in ends} == {("obsolete", root)}
    assert spawns[-1]["pos"] < ends[0]["pos"]


async def test_delete_terminates_a_tree_of_1000_while_20_clients_spawn_in_it(servers: Servers, launch: Launch) -> None:
    replicas = await start_all_replicas(servers, launch, **MANY_CHUNKS)
    zone = await create_zone(replicas[0])
    async with open_clients(replicas, CLIENTS) as clients:
        tree = await spawn_tree(clients, TEN_LEVELS, spawn_request_builder(zone))
    async with start_concurrent_spawners(zone, tree, replicas, SPAWNERS) as spawners:
        await spawners.wait_for(admitted=SPAWNERS)
        first_delete = asyncio.create_task(delete_session(zone, replicas[0], tree[0]))
        await wait_until_partial(zone)
        second_delete = asyncio.create_task(delete_session(zone, replicas[-1], tree[0]))
        first_receipt, second_receipt = await first_delete, await second_delete
        assert read_progress(zone).is_finished, "both requests return after the last chunk"
        await spawners.wait_for(refused=spawners.refusals.total() + 2 * SPAWNERS)
    assert spawners.refusals.keys() == {(404, "parent_not_found")}
    total = TREE_SIZE + len(spawners.admitted)
    assert (first_receipt["asked"], first_receipt["stopped"], first_receipt["already_stopped"]) == (total, total, 0)
    assert (second_receipt["asked"], second_receipt["stopped"], second_receipt["already_stopped"]) == (total, 0, total)
    assert (first_receipt["joined"], second_receipt["joined"]) == (False, True)
    assert first_receipt["cascade_id"] == second_receipt["cascade_id"] is not None
    assert first_receipt["left"] == second_receipt["left"] == []
    assert read_progress(zone).terminated == total
    log = await read_full_log(zone)
    assert_terminated_by(log, tree[0], {*tree, *spawners.admitted})
    assert not sessions_alive(log)
    await assert_check_passes(servers, launch)


CHECKED_ROUTES = {
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


async def start_with_marked_tree(servers: Servers, launch: Launch) -> tuple[FreshZone, list[str]]:
    """Kill the server during a cascade and start a new server whose sweeps run once a day.

    The tree stays marked, so that a test can read it.
    """
    server = await servers.start(launch.with_environment(QD_CASCADE_CHUNK="1"))
    zone = await create_zone(server)
    async with open_clients([server], CLIENTS) as clients:
        tree = await spawn_tree(clients, (1, 1, 3, 50, 50), spawn_request_builder(zone))
    async with zone.client() as client:
        await client.post(zone.session_path(tree[1], "/services"), json={"endpoint_url": ENDPOINT})
        deletion = asyncio.create_task(client.delete(zone.session_path(tree[0]), params={"reason": "obsolete"}))
        await wait_until_partial(zone)
        server.kill()
        with pytest.raises(httpx.TransportError):
            await deletion
    no_sweeps = {f"QD_{sweep}_SWEEP_INTERVAL_MS": "86400000" for sweep in ("CASCADE", "TTL", "ORPHAN")}
    zone = replace(zone, server=await servers.start(launch.with_environment(**no_sweeps)))
    assert read_progress(zone).is_partial
    return zone, tree


async def test_marked_session_reads_as_terminated_on_every_route_before_its_chunk(
    servers: Servers, launch: Launch
) -> None:
    zone, tree = await start_with_marked_tree(servers, launch)
    # The root ends last and its only child next to last, so both are still marked.
    root, child = tree[0], tree[1]
    service = str(DirectDatabase(launch.database_url).scalar("select id from agent_services"))
    rows = [row for row in await read_route_table(zone.server) if row.path.startswith("/zones/{zone}/agents/{id}")]
    assert {str(row) for row in rows} == CHECKED_ROUTES, "test the new route here"
    async with zone.client() as client:
        await assert_reads_as_terminated(client, zone, child, tree)
        await assert_not_counted_and_refuses_children(client, zone, child)
        await assert_services_not_found(client, zone, child, service)
        for method in ("POST", "PATCH"):
            for verb, code in (
                ("suspend", "agent_not_found_or_not_active"),
                ("resume", "agent_not_found_or_not_suspended"),
            ):
                response = await client.request(method, zone.session_path(child, f"/{verb}"))
                assert_problem(response, 409, code)
    async with zone.client(zone.token(session_id=child)) as session_client:
        for path in (zone.sessions_path, zone.session_path(root), f"{zone.path}/quotas", f"{zone.path}/events"):
            assert_problem(await session_client.get(path), 401, "session_ended")
    assert read_progress(zone).is_partial, "the cascade is still unfinished"
    receipt = await delete_session(zone, zone.server, root)
    assert (receipt["joined"], receipt["asked"], receipt["stopped"]) == (True, len(tree), 0)
    assert read_progress(zone).is_finished
    assert_terminated_by(await read_full_log(zone), root, {*tree})


async def assert_reads_as_terminated(
    client: httpx.AsyncClient, zone: FreshZone, session_id: str, tree: list[str]
) -> None:
    session = json_object(await client.get(zone.session_path(session_id)))
    assert (session["status"], session["termination_reason"]) == ("terminated", "obsolete")
    assert session["terminated_at"] is not None
    explanation = json_object(await client.get(zone.session_path(session_id, "/explain")))
    assert explanation["session"] == session
    assert explanation["spawn"]["admitted"] is False
    authority = json_object(await client.get(zone.session_path(session_id, "/authority")))
    assert (authority["scopes"], authority["edges"]) == ([], [])
    subtree = json_object(await client.get(zone.session_path(session_id, "/tree")))["items"]
    assert {item["status"] for item in subtree} == {"terminated"}
    assert {item["id"] for item in subtree} == {*tree[1:]}
    for path in (
        f"{zone.sessions_path}?limit=500",
        f"{zone.sessions_path}?limit=500&application_id={APP}",
        f"{zone.sessions_path}?limit=500&parent_id={session_id}",
        f"{zone.sessions_path}?limit=500&root_id={tree[0]}",
        zone.session_path(session_id, "/children?limit=500"),
    ):
        items = json_object(await client.get(path))["items"]
        assert {item["status"] for item in items} == {"terminated"}
        assert json_object(await client.get(f"{path}&status=terminated"))["items"] == items
        for status in ("active", "suspended"):
            assert json_object(await client.get(f"{path}&status={status}"))["items"] == []


async def assert_services_not_found(
    client: httpx.AsyncClient, zone: FreshZone, session_id: str, service_id: str
) -> None:
    services_path, service_path = (
        zone.session_path(session_id, "/services"),
        zone.session_path(session_id, f"/services/{service_id}"),
    )
    assert_problem(await client.post(services_path, json={"endpoint_url": ENDPOINT}), 404, "agent_not_found")
    assert json_object(await client.get(services_path))["items"] == []
    for path in (service_path, f"{zone.path}/agent-services/{service_id}"):
        for response in (
            await client.get(path),
            await client.patch(path, json={"health": "healthy"}),
            await client.post(f"{path}/heartbeat"),
            await client.post(zone.session_path(session_id, "/heartbeat")),
        ):
            assert_problem(response, 404, "agent_service_not_found")
    assert json_object(await client.get(f"{zone.path}/agent-services"))["items"] == []


async def assert_not_counted_and_refuses_children(client: httpx.AsyncClient, zone: FreshZone, session_id: str) -> None:
    assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 0, "concurrent": 0}
    child = {"application_id": APP, "parent_id": session_id}
    assert_problem(await client.post(zone.sessions_path, json=child), 404, "parent_not_found")
    explanation = json_object(await client.get(f"{zone.path}/explain/spawn", params=child))
    assert (explanation["admitted"], explanation["refused_by"][0]["error"]) == (False, "parent_not_found")
