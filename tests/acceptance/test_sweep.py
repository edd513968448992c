"""`qd sweep`: the passes of a server in a process of their own, on PostgreSQL, any number of them at once."""

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

FAST = {
    "TTL_SWEEP_INTERVAL_MS": "50",
    "DEADLINE_SWEEP_INTERVAL_MS": "50",
    "QD_DELEGATION_SWEEP_INTERVAL_MS": "50",
    "QD_SEAL_INTERVAL_MS": "50",
}
LEFT_TO_DAEMONS = {**FAST, "QD_SWEEPS": "false"}
HELD = "expires_at > 0 and name in ('seal', 'event-retention')"
"""Leases of sweeps. A server beside them holds those of what it does at every commit."""


async def unswept(servers: Servers, url: str) -> ServerProcess:
    """A server that would sweep twenty times a second, if it swept."""
    return await servers.start(Launch(servers.directory / "first", url).with_environment(**LEFT_TO_DAEMONS))


def beside(server: ServerProcess, **variables: str) -> Launch:
    """How to run the program on a server's database with its keys, and with a directory of its own."""
    keys = {"QD_SIGNING_KEY": str(server.launch.data / "signing-key.pem"), "QD_SECRET_KEYS": server.secret_keys}
    own = replace(server.launch, data=server.launch.data.parent / "daemon", environment={})
    return own.with_environment(**keys, QD_DATABASE_URL=server.launch.database_url, **variables)


async def daemon(servers: Servers, server: ServerProcess, **variables: str) -> ServerProcess:
    # What its environment says to servers is not said to it: it is there to sweep.
    return await servers.start_command(
        beside(server, **{**LEFT_TO_DAEMONS, **variables}), "sweep", line_prefix="sweeping ttl"
    )


async def expired(zone: FreshZone, roots: int) -> list[str]:
    """So many trees of two that have passed their time, and that nobody has swept."""
    async with zone.client() as client:
        made = await asyncio.gather(*(spawn(client, zone) for _ in range(roots)))
        below = await asyncio.gather(*(spawn(client, zone, parent_id=one["id"]) for one in made))
        # At once, by whoever owns the tables: a hundred sessions would not be spawned within the shortest TTL.
        DirectDatabase(zone.server.launch.database_url).execute("update agent_sessions set expires_at = created_at + 1")

        async def gone() -> bool:
            return not json_object(await client.get(zone.sessions_path, params={"status": "active"}))["items"]

        await eventually(gone, "the sessions had passed their time")
    return [one["id"] for one in (*made, *below)]


async def ends(zone: FreshZone, kind: str = "session.terminate") -> list[str]:
    """Whose end is in the log, in its order."""
    found: list[dict[str, Any]] = []
    while page := await read_events(zone, types=kind, after=found[-1]["pos"] if found else 0):
        found += page
    return [event["subject"] for event in found]


async def all_ended(zone: FreshZone, subjects: list[str], kind: str = "session.terminate") -> None:
    async def are() -> bool:
        return set(await ends(zone, kind)) >= set(subjects)

    await eventually(are, f"every {kind} had been written")


async def overdue(zone: FreshZone, number: int) -> tuple[list[str], list[str]]:
    """So many invocations on their last attempt whose deadline has passed, and delegations past their time."""
    async with zone.client() as client:
        source, target = (await spawn(client, zone))["id"], (await spawn(client, zone))["id"]
        endpoint = {"application_id": APP, "endpoint_url": "http://service.example"}
        service = json_object(await client.post(f"{zone.path}/agent-services", json=endpoint))["id"]
        for n in range(number):
            call = {"service_id": service, "method": "m", "retry_policy": {"max_attempts": 1}}
            await client.post(f"{zone.path}/invocations", json={**call, "idempotency_key": f"k{n}"})
            lent = {"source_session_id": source, "target_session_id": target, "ttl_seconds": 60}
            await client.post(f"{zone.path}/delegations", json=lent)
        claimed = await client.post(f"{zone.path}/services/{service}/claim", json={"max": number})
        edges = json_object(await client.get(f"{zone.path}/delegations"))["items"]
    side = DirectDatabase(zone.server.launch.database_url)
    side.execute("update agent_invocations set deadline_at = created_at + 1")
    side.execute("update delegation_edges set expires_at = created_at + 1")
    return [one["id"] for one in json_object(claimed)["items"]], [one["id"] for one in edges]


async def test_two_daemons_beside_servers_that_do_not_sweep_end_every_expired_session_exactly_once(
    servers: Servers, postgres_url: str
) -> None:
    first = await unswept(servers, postgres_url)
    await start_replica(first, servers)
    zone = await create_zone(first)
    sessions = await expired(zone, 60)
    assert await ends(zone) == [], "a server that leaves sweeping to daemons sweeps nothing"
    await asyncio.gather(*(daemon(servers, first, QD_TTL_SWEEP_BATCH="7") for _ in range(2)))
    await all_ended(zone, sessions)
    assert Counter(await ends(zone)) == Counter(sessions)
    assert_zone_counts_match_rows(postgres_url, zone.id)


async def test_two_daemons_time_out_each_attempt_and_expire_each_delegation_exactly_once(
    servers: Servers, postgres_url: str
) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    invocations, edges = await overdue(zone, 30)
    assert (len(invocations), len(edges)) == (30, 30)
    await asyncio.gather(*(daemon(servers, server) for _ in range(2)))
    for subjects, kind in ((invocations, "invocation.timed_out"), (edges, "delegation.expire")):
        await all_ended(zone, subjects, kind)
        assert Counter(await ends(zone, kind)) == Counter(subjects)


async def test_what_a_killed_daemon_was_at_is_taken_over_by_another(servers: Servers, postgres_url: str) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    sessions, side = await expired(zone, 20), DirectDatabase(postgres_url)
    with lock_zone(zone):
        killed = await daemon(servers, server)
        # In mid-pass: it has found what to end, and waits for the zone's lock.
        await wait_for_lock_waiter(zone)

        async def seals() -> bool:
            return side.count("seals") > 0

        await eventually(seals, "it held the lease of sealing, which it will not give back")
        killed.kill()
    assert await ends(zone) == []
    await daemon(servers, server)
    await all_ended(zone, sessions)
    assert Counter(await ends(zone)) == Counter(sessions)

    async def is_sealed() -> bool:
        [[sealed]] = side.execute("select max(last_pos) from seals")
        [[head]] = side.execute("select pos from log_head")
        return sealed == head

    await eventually(is_sealed, "the other daemon had sealed the log to its head")


async def test_one_pass_of_each_is_made_and_counted_and_then_it_ends(
    servers: Servers, postgres_url: str, redis: DirectRedis
) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await expired(zone, 5)
    launch = beside(server, REDIS_URL=redis.url, STREAMS_HMAC_KEY="a key that is long enough")

    async def once(*words: str) -> dict[str, int]:
        done = await servers.run_command(launch, "sweep", "--once", "--json", *words)
        assert done.exit_code == 0, done.log_text
        # One document and nothing more: it has nothing to complain of.
        return {item["name"]: item["moved"] for item in json.loads(done.log_text)["items"]}

    assert await once("--only", "orphan") == {"orphan": 0}
    assert await ends(zone) == []
    assert not redis.client.keys(), "what it was not asked for, it leaves to those who go on"
    every = await once()
    assert every["ttl"] == len(sessions) // 2, "a child goes with its parent"
    assert every["seal"] > 0
    assert Counter(await ends(zone)) == Counter(sessions)
    assert (await once("--only", "ttl", "--only", "cascade")) == {"ttl": 0, "cascade": 0}
    assert DirectDatabase(postgres_url).count("leases", HELD) == 0, "what it held, it gave back"
    plain = await servers.run_command(launch, "sweep", "--once", "--only", "ttl")
    assert plain.log_text == "ttl  moved 0\n"


async def test_a_pass_that_fails_costs_the_others_nothing_and_shows_in_the_exit_code(
    servers: Servers, postgres_url: str
) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await expired(zone, 1)
    side = DirectDatabase(postgres_url)

    async def some_logged() -> bool:
        return side.count("events") >= 2

    await eventually(some_logged, "there was something in the log")
    side.execute("delete from events where pos = 1")
    done = await servers.run_command(beside(server), "sweep", "--once", "--json")
    assert done.exit_code == 1
    told = json.loads(done.log_text.splitlines()[-1])["items"]
    assert [item["name"] for item in told if "error" in item] == ["seal"]
    assert Counter(await ends(zone)) == Counter(sessions)


async def test_the_sweeps_are_listed_with_their_intervals(servers: Servers, postgres_url: str) -> None:
    server = await unswept(servers, postgres_url)
    listed = await servers.run_command(beside(server, TTL_SWEEP_INTERVAL_MS="1500"), "sweep", "--list")
    assert listed.exit_code == 0, listed.log_text
    told = dict(line.split(None, 1) for line in listed.log_text.splitlines())
    assert told["ttl"] == "every 1.5 s"
    assert {"ttl", "orphan", "cascade", "session-retention", "seal", "event-retention"} <= told.keys()
    as_json = await servers.run_command(beside(server), "sweep", "--list", "--json")
    items = json.loads(as_json.log_text)["items"]
    assert {"name": "ttl", "every_ms": 60_000} in items
    assert [item["name"] for item in items] == [*told]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_daemon_that_is_told_to_stop_gives_its_leases_back_and_says_what_it_did(
    servers: Servers, postgres_url: str, by: signal.Signals
) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await expired(zone, 3)
    sweeping, side = await daemon(servers, server), DirectDatabase(postgres_url)
    await all_ended(zone, sessions)

    async def holds_a_lease() -> bool:
        return side.count("leases", HELD) > 0

    await eventually(holds_a_lease, "it held a lease")
    sweeping.interrupt() if by is signal.SIGINT else sweeping.terminate()
    assert await sweeping.wait() == 0, sweeping.log_text
    assert side.count("leases", HELD) == 0
    lines = [json.loads(line) for line in sweeping.log_text.splitlines() if line.startswith("{")]
    assert f"sweep ttl moved {len(sessions) // 2}" in [line["message"] for line in lines]
    assert "Traceback" not in sweeping.log_text


async def test_with_a_port_a_daemon_tells_how_it_is_and_nothing_else(servers: Servers, postgres_url: str) -> None:
    server = await unswept(servers, postgres_url)
    zone = await create_zone(server)
    sessions = await expired(zone, 2)
    launch = beside(server, **FAST)
    sweeping = await servers.start_command(launch, "sweep", "--metrics-port", "0", line_prefix="metrics http")
    [url] = [line.split()[1] for line in sweeping.log_text.splitlines() if line.startswith("metrics ")]
    await all_ended(zone, sessions)
    async with httpx.AsyncClient(base_url=url.removesuffix("/metrics"), trust_env=False) as client:

        async def figures() -> str:
            return (await client.get("/metrics")).text

        async def counted() -> bool:
            return 'subagent_sweeper_actions_total{action="moved",sweep="ttl"} 2.0' in await figures()

        await eventually(counted, "the pass had been counted")
        assert 'subagent_cascade_terminations_total{reason="ttl_expired"} 4.0' in await figures()
        assert json_object(await client.get("/health")) == {"ok": True}
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get(zone.sessions_path)).status_code == 404
    assert await sweeping.stop() == 0


# -- what cannot be


async def refused(servers: Servers, launch: Launch, *words: str) -> tuple[int | None, str]:
    done = await servers.run_command(launch, *words)
    assert "Traceback" not in done.log_text
    return done.exit_code, done.log_text.splitlines()[-1]


async def test_a_sqlite_database_is_swept_by_its_server_and_by_nobody_else(servers: Servers, tmp_path: Path) -> None:
    server = await servers.start(Launch(tmp_path / "data"))
    for words in ((), ("--once",), ("--list",)):
        code, sentence = await refused(servers, server.launch, "sweep", *words)
        assert code == 1
        assert sentence.startswith("qd: `qd sweep` needs PostgreSQL, ")
        assert "runs the sweeps itself" in sentence
    left = await servers.start_expecting_failure(Launch(tmp_path / "left").with_environment(QD_SWEEPS="false"))
    assert left.exit_code == 1
    assert "`sweeps` is false (from QD_SWEEPS), but the database is SQLite" in left.log_text
    assert not (tmp_path / "left").exists()


async def test_a_daemon_makes_no_key_of_its_own_and_knows_its_sweeps(servers: Servers, postgres_url: str) -> None:
    server = await unswept(servers, postgres_url)
    launch = beside(server)
    code, sentence = await refused(servers, launch, "sweep", "--once", "--only", "dust")
    assert code == 4
    assert sentence.startswith("qd: There is no sweep 'dust'. Sweeps: ttl, ")
    code, sentence = await refused(servers, launch, "sweep", "--metrics-port", "65536")
    assert (code, sentence) == (1, "qd: --metrics-port is 65536, but must be between 0 and 65535.")
    keyless = replace(launch, environment={"QD_DATABASE_URL": postgres_url})
    code, sentence = await refused(servers, keyless, "sweep")
    assert code == 1
    assert "There is no signing key at" in sentence
    assert not (keyless.data / "signing-key.pem").exists()
