"""W3C trace context: every event that a request causes has its trace, and invalid trace headers are ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, create_zone, json_object, read_events, spawn

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
OTHER = f"00-{'a' * 32}-{'b' * 16}-00"


async def traces(zone: FreshZone, after: int = 0) -> set[tuple[str, str | None]]:
    return {(event["type"], event["trace"]) for event in await read_events(zone, after=after)}


async def spawn_tree(zone: FreshZone, *shape: int) -> dict[str, Any]:
    """A root with `shape[0]` children, each with `shape[1]` children and so on, spawned without a trace."""
    async with zone.client() as client:
        root = await spawn(client, zone)
        level = [root]
        for width in shape:
            level = [await spawn(client, zone, parent_id=parent["id"]) for parent in level for _ in range(width)]
    return root


async def last_position(zone: FreshZone) -> int:
    return max(int(event["pos"]) for event in await read_events(zone))


async def test_every_event_of_a_request_has_its_trace(zone: FreshZone) -> None:
    root = await spawn_tree(zone, 2)
    after = await last_position(zone)
    async with zone.server.client() as admin:
        admin.headers["traceparent"] = TRACE
        await spawn(admin, zone)
        for verb in ("suspend", "resume"):
            assert (await admin.post(zone.session_path(root["id"], f"/{verb}"))).status_code == 200
        key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))
        assert (await admin.post(f"{zone.path}/keys", json={"application_id": APP})).status_code == 201
        assert (await admin.delete(f"{zone.path}/keys/{key['id']}")).status_code == 204
        for verb in ("freeze", "thaw"):
            assert (await admin.post(f"{zone.path}/{verb}")).status_code == 200
        assert (await admin.put(f"{zone.path}/quotas", json={"max_depth": 7})).status_code == 200
        assert (await admin.delete(zone.path)).status_code == 204
    assert await traces(zone, after) == {
        (kind, TRACE)
        for kind in (
            "session.spawn",
            "session.suspend",
            "session.resume",
            "session.terminate",
            "key.create",
            "key.revoke",
            "zone.freeze",
            "zone.thaw",
            "zone.change",
            "zone.end",
        )
    }


async def test_all_terminations_of_a_subtree_have_the_trace_of_the_first_request(zone: FreshZone) -> None:
    root = await spawn_tree(zone, 3, 2)
    async with zone.client() as client:
        client.headers["traceparent"] = TRACE
        assert (await client.delete(zone.session_path(root["id"]))).status_code == 204
        client.headers["traceparent"] = OTHER
        assert (await client.delete(zone.session_path(root["id"]))).status_code == 204
    ends = await read_events(zone, types="session.terminate")
    assert [event["trace"] for event in ends] == [TRACE] * 10


async def test_events_of_a_chunked_termination_share_the_trace(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_CASCADE_CHUNK="2"))
    zone = await create_zone(server)
    root = await spawn_tree(zone, 3, 2)
    async with zone.client() as client:
        client.headers["traceparent"] = TRACE
        assert (await client.delete(zone.session_path(root["id"]))).status_code == 204
    ends = await read_events(zone, types="session.terminate")
    assert [event["trace"] for event in ends] == [TRACE] * 10


async def test_trace_applies_only_to_its_own_request(zone: FreshZone) -> None:
    async with zone.client() as client:
        for trace in (TRACE, None, OTHER):
            headers = {} if trace is None else {"traceparent": trace}
            await client.post(zone.sessions_path, json={"application_id": APP}, headers=headers)
    spawns = await read_events(zone, types="session.spawn")
    assert [event["trace"] for event in spawns] == [TRACE, None, OTHER]


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", TRACE), ("traceparent", OTHER)],
        [("traceparent", TRACE), ("traceparent", TRACE)],
        [("traceparent", TRACE.upper())],
        [("traceparent", f"{TRACE}-more")],
        [("traceparent", TRACE.replace("00-4", "ff-4"))],
        [("tracestate", "vendor=value")],
    ],
)
async def test_invalid_trace_is_ignored_and_the_request_succeeds(
    zone: FreshZone, headers: list[tuple[str, str]]
) -> None:
    async with zone.client() as client:
        response = await client.post(zone.sessions_path, json={"application_id": APP}, headers=headers)
    assert response.status_code == 201
    [event] = await read_events(zone, types="session.spawn")
    assert event["trace"] is None


async def test_traceparent_of_a_later_version_is_stored_as_version_00(zone: FreshZone) -> None:
    later = TRACE.replace("00-4", "cc-4") + "-extra"
    async with zone.client() as client:
        headers = {"traceparent": later, "tracestate": "vendor=value"}
        await client.post(zone.sessions_path, json={"application_id": APP}, headers=headers)
    [event] = await read_events(zone, types="session.spawn")
    assert event["trace"] == TRACE


async def test_log_line_of_a_request_has_its_trace_id(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    async with server.client() as client:
        await client.get("/zones/default", headers={"traceparent": TRACE, "tracestate": "vendor=hidden"})
        await client.get("/zones/nowhere", headers={"traceparent": OTHER})
        await client.get("/zones")
        await client.get("/zones/default/quotas", headers={"traceparent": "no trace"})
    await server.stop()
    lines = [json.loads(line) for line in server.log_text.splitlines() if '"message":"request"' in line]
    assert [(line["path"], line.get("trace_id")) for line in lines] == [
        ("/zones/default", TRACE_ID),
        ("/zones/nowhere", "a" * 32),
        ("/zones", None),
        ("/zones/default/quotas", None),
    ]
    assert "hidden" not in server.log_text
