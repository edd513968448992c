"""TTL: an expired session reads as terminated at once. The sweep only writes the termination."""

from __future__ import annotations

from tests.support.eventually import eventually
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object, read_events, spawn


async def wait_until_terminated(zone: FreshZone, session_id: str) -> dict[str, object]:
    """Wait until the session reads as terminated and return it."""
    session: dict[str, object] = {}

    async def is_terminated() -> bool:
        session.update(json_object(await client.get(zone.session_path(session_id))))
        return session["status"] == "terminated"

    async with zone.client() as client:
        await eventually(is_terminated, "the session read as terminated")
    return session


async def test_expired_session_reads_as_terminated_before_any_sweep(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=2)
    async with zone.client() as client:
        root = await spawn(client, zone, ttl_seconds=1)
        child_body = {"application_id": APP, "parent_id": root["id"], "idempotency_key": "k", "ttl_seconds": 60}
        child = (await client.post(zone.sessions_path, json=child_body)).json()
        ended = await wait_until_terminated(zone, root["id"])
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
        assert_problem(await client.post(zone.sessions_path, json=child_body), 404, "parent_not_found")
        assert [event["type"] for event in await read_events(zone)].count("session.terminate") == 0, "no sweep has run"
        key_body = {"application_id": APP, "idempotency_key": "k"}
        repeated = await client.post(zone.sessions_path, json=key_body)
        assert repeated.status_code == 201, "the expired session uses neither quota nor key"


async def test_ttl_sweep_terminates_expired_sessions_children_first(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(TTL_SWEEP_INTERVAL_MS="50"))
    zone = await create_zone(server)
    async with zone.client() as client:
        root = (await spawn(client, zone, ttl_seconds=1))["id"]
        child = (await spawn(client, zone, parent_id=root))["id"]
        live = (await spawn(client, zone))["id"]

        async def both_terminated() -> bool:
            return len(await read_events(zone, types="session.terminate")) == 2

        await eventually(both_terminated, "the sweep terminated both")
        terminations = await read_events(zone, types="session.terminate")
        assert [(event["subject"], event["actor"]) for event in terminations] == [(child, "sweep"), (root, "sweep")]
        assert {event["data"]["reason"] for event in terminations} == {"ttl_expired"}
        assert json_object(await client.get(f"{zone.path}/quotas"))["used"] == {"sessions": 1, "concurrent": 0}
        assert json_object(await client.get(zone.session_path(live)))["status"] == "active"
        metrics = (await client.get("/metrics")).text
    assert 'subagent_cascade_terminations_total{reason="ttl_expired"} 2.0' in metrics
    assert 'subagent_sweeper_actions_total{action="moved",sweep="ttl"}' in metrics
    assert 'subagent_sweeper_cross_tenant_reads_total{sweep="ttl"}' in metrics
