"""`qd sweep`: the sweeps of a server in separate processes, on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.redis import DirectRedis
from tests.support.replicas import start_replica
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import (
    APP,
    FreshZone,
    assert_zone_counts_match_rows,
    create_zone,
    json_object,
    lock_zone,
    read_events,
    spawn,
    wait_for_lock_waiter,
)

SHORT_INTERVALS = {
    "TTL_SWEEP_INTERVAL_MS": "50",
    "DEADLINE_SWEEP_INTERVAL_MS": "50",
    "QD_DELEGATION_SWEEP_INTERVAL_MS": "50",
    "QD_SEAL_INTERVAL_MS": "50",
}
WITHOUT_SWEEPS = {**SHORT_INTERVALS, "QD_SWEEPS": "false"}
HELD_SWEEP_LEASES = "expires_at > 0 and name in ('seal', 'event-retention')"
"""Held leases of sweeps. A running server holds other leases for its own loops."""


async def start_without_sweeps(servers: Servers, url: str) -> ServerProcess:
    """Start a server with sweeps disabled and short sweep intervals."""
    return await servers.start(Launch(servers.directory / "first", url).with_environment(**WITHOUT_SWEEPS))


def daemon_launch(server: ServerProcess, **variables: str) -> Launch:
    """A launch on the server's database, with its keys and a separate data directory."""
    keys = {"QD_SIGNING_KEY": str(server.launch.data / "signing-key.pem"), "QD_SECRET_KEYS": server.secret_keys}
    own = replace(server.launch, data=server.launch.data.parent / "daemon", environment={})
    return own.with_environment(**keys, QD_DATABASE_URL=server.launch.database_url, **variables)


async def start_daemon(servers: Servers, server: ServerProcess, **variables: str) -> ServerProcess:
    # QD_SWEEPS=false applies to servers. The daemon sweeps nevertheless.
    return await servers.start_command(
        daemon_launch(server, **{**WITHOUT_SWEEPS, **variables}), "sweep", line_prefix="sweeping ttl"
    )


async def create_expired_sessions(zone: FreshZone, roots: int) -> list[str]:
    """Create trees of two sessions that have expired and are not yet swept. Returns all session ids."""
    async with zone.client() as client:
        root_sessions = await asyncio.gather(*(spawn(client, zone) for _ in range(roots)))
        children = await asyncio.gather(*(spawn(client, zone, parent_id=session["id"]) for session in root_sessions))
        # Expire them in the database: spawning 100 sessions takes longer than the shortest TTL.
        DirectDatabase(zone.server.launch.database_url).execute("update agent_sessions set expires_at = created_at + 1")

        async def all_expired() -> bool:
            return not json_object(await client.get(zone.sessions_path, params={"status": "active"}))["items"]

        await eventually(all_expired, "the sessions expired")
    return [session["id"] for session in (*root_sessions, *children)]


async def ended_subjects(zone: FreshZone, event_type: str = "session.terminate") -> list[str]:
    """Subjects of the events of this type, in log order."""
    events: list[dict[str, Any]] = []
    while page := await read_events(zone, types=event_type, after=events[-1]["pos"] if events else 0):
        events += page
    return [event["subject"] for event in events]


async def wait_until_all_ended(zone: FreshZone, subjects: list[str], event_type: str = "session.terminate") -> None:
    async def all_written() -> bool:
        return set(await ended_subjects(zone, event_type)) >= set(subjects)

    await eventually(all_written, f"every {event_type} was written")


async def create_overdue(zone: FreshZone, number: int) -> tuple[list[str], list[str]]:
    """Create invocations past the deadline of their last attempt, and expired delegations. Returns their ids."""
    async with zone.client() as client:
        source, target = (await spawn(client, zone))["id"], (await spawn(client, zone))["id"]
        endpoint = {"application_id": APP, "endpoint_url": "http://service.example"}
        service = json_object(await client.post(f"{zone.path}/agent-services", json=endpoint))["id"]
        for n in range(number):
            invocation = {"service_id": service, "method": "m", "retry_policy": {"max_attempts": 1}}
            await client.post(f"{zone.path}/invocations", json={**invocation, "idempotency_key": f"k{n}"})
            delegation = {"source_session_id": source, "target_session_id": target, "ttl_seconds": 60}
            await client.post(f"{zone.path}/delegations", json=delegation)
        claimed = await client.post(f"{zone.path}/services/{service}/claim", json={"max": number})
        edges = json_object(await client.get(f"{zone.path}/delegations"))["items"]
    database = DirectDatabase(zone.server.launch.database_url)
    database.execute("update agent_invocations set deadline_at = created_at + 1")
    database.execute("update delegation_edges set expires_at = created_at + 1")
    return [item["id"] for item in json_object(claimed)["items"]], [item["id"] for item in edges]


async def test_two_sweep_daemons_terminate_every_expired_session_exactly_once(
    servers: Servers, postgres_url: str
) -> None:
    first = await start_without_sweeps(servers, postgres_url)
    await start_replica(first, servers)
    zone = await create_zone(first)
    sessions = await create_expired_sessions(zone, 60)
    assert await ended_subjects(zone) == [], "a server with QD_SWEEPS=false sweeps nothing"
    await asyncio.gather(*(start_daemon(servers, first, QD_TTL_SWEEP_BATCH="7") for _ in range(2)))
    await wait_until_all_ended(zone, sessions)
    assert Counter(await ended_subjects(zone)) == Counter(sessions)
    assert_zone_counts_match_rows(postgres_url, zone.id)


async def test_two_sweep_daemons_expire_each_attempt_and_delegation_exactly_once(
    servers: Servers, postgres_url: str
) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    invocations, edges = await create_overdue(zone, 30)
    assert (len(invocations), len(edges)) == (30, 30)
    await asyncio.gather(*(start_daemon(servers, server) for _ in range(2)))
    for subjects, event_type in ((invocations, "invocation.timed_out"), (edges, "delegation.expire")):
        await wait_until_all_ended(zone, subjects, event_type)
        assert Counter(await ended_subjects(zone, event_type)) == Counter(subjects)


async def test_work_of_a_killed_daemon_is_taken_over_by_another(servers: Servers, postgres_url: str) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    sessions, database = await create_expired_sessions(zone, 20), DirectDatabase(postgres_url)
    with lock_zone(zone):
        killed = await start_daemon(servers, server)
        # During a pass: it has found the expired sessions and waits for the zone's lock.
        await wait_for_lock_waiter(zone)

        async def has_seal() -> bool:
            return database.count("seals") > 0

        await eventually(has_seal, "the daemon held the seal lease, which it will not release")
        killed.kill()
    assert await ended_subjects(zone) == []
    await start_daemon(servers, server)
    await wait_until_all_ended(zone, sessions)
    assert Counter(await ended_subjects(zone)) == Counter(sessions)

    async def is_sealed() -> bool:
        [[sealed]] = database.execute("select max(last_pos) from seals")
        [[head]] = database.execute("select pos from log_head")
        return sealed == head

    await eventually(is_sealed, "the other daemon sealed the log up to its head")


async def test_sweep_once_runs_one_pass_of_each_sweep_and_exits(
    servers: Servers, postgres_url: str, redis: DirectRedis
) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await create_expired_sessions(zone, 5)
    launch = daemon_launch(server, REDIS_URL=redis.url, STREAMS_HMAC_KEY="a key that is long enough")

    async def run_once(*arguments: str) -> dict[str, int]:
        done = await servers.run_command(launch, "sweep", "--once", "--json", *arguments)
        assert done.exit_code == 0, done.log_text
        # The output is one JSON document and no log line.
        return {item["name"]: item["moved"] for item in json.loads(done.log_text)["items"]}

    assert await run_once("--only", "orphan") == {"orphan": 0}
    assert await ended_subjects(zone) == []
    assert not redis.client.keys(), "a single pass of one sweep writes nothing to Redis"
    moved = await run_once()
    assert moved["ttl"] == len(sessions) // 2, "a child is terminated with its parent"
    assert moved["seal"] > 0
    assert Counter(await ended_subjects(zone)) == Counter(sessions)
    assert (await run_once("--only", "ttl", "--only", "cascade")) == {"ttl": 0, "cascade": 0}
    assert DirectDatabase(postgres_url).count("leases", HELD_SWEEP_LEASES) == 0, "every lease was released"
    plain = await servers.run_command(launch, "sweep", "--once", "--only", "ttl")
    assert plain.log_text == "ttl  moved 0\n"


async def test_failed_pass_does_not_stop_the_others_and_sets_the_exit_code(servers: Servers, postgres_url: str) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await create_expired_sessions(zone, 1)
    database = DirectDatabase(postgres_url)

    async def has_events() -> bool:
        return database.count("events") >= 2

    await eventually(has_events, "the log has events")
    database.execute("delete from events where pos = 1")
    done = await servers.run_command(daemon_launch(server), "sweep", "--once", "--json")
    assert done.exit_code == 1
    items = json.loads(done.log_text.splitlines()[-1])["items"]
    assert [item["name"] for item in items if "error" in item] == ["seal"]
    assert Counter(await ended_subjects(zone)) == Counter(sessions)


async def test_sweep_list_shows_the_intervals(servers: Servers, postgres_url: str) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    listed = await servers.run_command(daemon_launch(server, TTL_SWEEP_INTERVAL_MS="1500"), "sweep", "--list")
    assert listed.exit_code == 0, listed.log_text
    intervals = dict(line.split(None, 1) for line in listed.log_text.splitlines())
    assert intervals["ttl"] == "every 1.5 s"
    assert {"ttl", "orphan", "cascade", "session-retention", "seal", "event-retention"} <= intervals.keys()
    as_json = await servers.run_command(daemon_launch(server), "sweep", "--list", "--json")
    items = json.loads(as_json.log_text)["items"]
    assert {"name": "ttl", "every_ms": 60_000} in items
    assert [item["name"] for item in items] == [*intervals]


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_daemon_releases_its_leases_and_logs_what_it_moved(
    servers: Servers, postgres_url: str, stop_signal: signal.Signals
) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await create_expired_sessions(zone, 3)
    daemon, database = await start_daemon(servers, server), DirectDatabase(postgres_url)
    await wait_until_all_ended(zone, sessions)

    async def holds_a_lease() -> bool:
        return database.count("leases", HELD_SWEEP_LEASES) > 0

    await eventually(holds_a_lease, "the daemon held a lease")
    daemon.interrupt() if stop_signal is signal.SIGINT else daemon.terminate()
    assert await daemon.wait() == 0, daemon.log_text
    assert database.count("leases", HELD_SWEEP_LEASES) == 0
    lines = [json.loads(line) for line in daemon.log_text.splitlines() if line.startswith("{")]
    assert f"sweep ttl moved {len(sessions) // 2}" in [line["message"] for line in lines]
    assert "Traceback" not in daemon.log_text


async def test_daemon_with_a_metrics_port_serves_metrics_and_health_only(servers: Servers, postgres_url: str) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await create_expired_sessions(zone, 2)
    launch = daemon_launch(server, **SHORT_INTERVALS)
    daemon = await servers.start_command(launch, "sweep", "--metrics-port", "0", line_prefix="metrics http")
    [url] = [line.split()[1] for line in daemon.log_text.splitlines() if line.startswith("metrics ")]
    await wait_until_all_ended(zone, sessions)
    async with httpx.AsyncClient(base_url=url.removesuffix("/metrics"), trust_env=False) as client:

        async def metrics() -> str:
            return (await client.get("/metrics")).text

        async def is_counted() -> bool:
            return 'subagent_sweeper_actions_total{action="moved",sweep="ttl"} 2.0' in await metrics()

        await eventually(is_counted, "the pass was counted")
        assert 'subagent_cascade_terminations_total{reason="ttl_expired"} 4.0' in await metrics()
        assert json_object(await client.get("/health")) == {"ok": True}
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get(zone.sessions_path)).status_code == 404
    assert await daemon.stop() == 0


# -- errors


async def run_refused(servers: Servers, launch: Launch, *arguments: str) -> tuple[int | None, str]:
    done = await servers.run_command(launch, *arguments)
    assert "Traceback" not in done.log_text
    return done.exit_code, done.log_text.splitlines()[-1]


async def test_sweep_daemon_and_disabled_sweeps_are_refused_on_sqlite(servers: Servers, tmp_path: Path) -> None:
    server = await servers.start(Launch(tmp_path / "data"))
    for arguments in ((), ("--once",), ("--list",)):
        code, message = await run_refused(servers, server.launch, "sweep", *arguments)
        assert code == 1
        assert message.startswith("qd: `qd sweep` needs PostgreSQL, ")
        assert "runs the sweeps itself" in message
    refused = await servers.start_expecting_failure(Launch(tmp_path / "refused").with_environment(QD_SWEEPS="false"))
    assert refused.exit_code == 1
    assert "`sweeps` is false (from QD_SWEEPS), but the database is SQLite" in refused.log_text
    assert not (tmp_path / "refused").exists()


async def test_sweep_refuses_unknown_names_bad_ports_and_a_missing_signing_key(
    servers: Servers, postgres_url: str
) -> None:
    server = await start_without_sweeps(servers, postgres_url)
    launch = daemon_launch(server)
    code, message = await run_refused(servers, launch, "sweep", "--once", "--only", "unknown")
    assert code == 4
    assert message.startswith("qd: There is no sweep 'unknown'. Sweeps: ttl, ")
    code, message = await run_refused(servers, launch, "sweep", "--metrics-port", "65536")
    assert (code, message) == (1, "qd: --metrics-port is 65536, but must be between 0 and 65535.")
    keyless = replace(launch, environment={"QD_DATABASE_URL": postgres_url})
    code, message = await run_refused(servers, keyless, "sweep")
    assert code == 1
    assert "There is no signing key at" in message
    assert not (keyless.data / "signing-key.pem").exists()
