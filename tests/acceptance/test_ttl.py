"""A session's time: past it the session is gone for everybody at once, and a sweep only writes that down."""

from __future__ import annotations

from tests.support.eventually import eventually
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object, read_events, spawn


async def gone(zone: FreshZone, session_id: str) -> dict[str, object]:
    """The session, once it reads as terminated."""
    found: dict[str, object] = {}

    async def is_gone() -> bool:
        found.update(json_object(await client.get(zone.session_path(session_id))))
        return found["status"] == "terminated"

    async with zone.client() as client:
        await eventually(is_gone, "the session read as terminated")
    return found


async def test_past_its_time_a_session_is_gone_for_everybody_before_any_sweep(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=2)
    async with zone.client() as client:
        root = await spawn(client, zone, ttl_seconds=1)
        asked = {"application_id": APP, "parent_id": root["id"], "idempotency_key": "k", "ttl_seconds": 60}
        child = (await client.post(zone.sessions_path, json=asked)).json()
        ended = await gone(zone, root["id"])
        assert ended["termination_reason"] == "ttl_expired"
        assert ended["terminated_at"] == root["expires_at"]
        assert json_object(await client.get(zone.session_path(child["id"])))["status"] == "terminated", (
            "no child outlives its parent"
        )
        assert (await client.get(zone.sessions_path, params={"status": "active"})).json()["items"] == []
        terminated = (await client.get(zone.sessions_path, params={"status": "terminated"})).json()["items"]
        assert [item["id"] for item in terminated] == [child["id"], root["id"]]
        tree = json_object(await client.get(zone.session_path(root["id"], "/tree")))
        assert {item["status"] for item in tree["items"]} == {"terminated"}
        assert_problem(await client.post(zone.sessions_path, json=asked), 404, "parent_not_found")
        assert [event["type"] for event in await read_events(zone)].count("session.terminate") == 0, "no sweep has been"
        key = {"application_id": APP, "idempotency_key": "k"}
        again = await client.post(zone.sessions_path, json=key)
        assert again.status_code == 201, "it holds neither a place nor a key"


async def test_the_sweep_writes_the_end_with_its_reason_children_first(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(TTL_SWEEP_INTERVAL_MS="50"))
    zone = await create_zone(server)
    async with zone.client() as client:
        root = (await spawn(client, zone, ttl_seconds=1))["id"]
        child = (await spawn(client, zone, parent_id=root))["id"]
        lasting = (await spawn(client, zone))["id"]

        async def swept() -> bool:
            return len(await read_events(zone, types="session.terminate")) == 2

        await eventually(swept, "the sweep had ended both")
        ends = await read_events(zone, types="session.terminate")
        assert [(event["subject"], event["actor"]) for event in ends] == [(child, "sweep"), (root, "sweep")]
        assert {event["data"]["reason"] for event in ends} == {"ttl_expired"}
        assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 1, "concurrent": 0}
        assert json_object(await client.get(zone.session_path(lasting)))["status"] == "active"
        metrics = (await client.get("/metrics")).text
    assert 'subagent_cascade_terminations_total{reason="ttl_expired"} 2.0' in metrics
    assert 'subagent_sweeper_actions_total{action="moved",sweep="ttl"}' in metrics
    assert 'subagent_sweeper_cross_tenant_reads_total{sweep="ttl"}' in metrics
