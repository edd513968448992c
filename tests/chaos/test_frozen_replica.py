"""A replica frozen between lock and commit delays the others only by the timeouts and leaves no partial transaction."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

from quarterdeck.store.migrate import upgrade
from quarterdeck.store.postgres_roles import ROLES
from tests.support.consistency import assert_check_passes
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.replicas import start_replicas
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad, assert_one_session_per_key, stored_keys
from tests.support.zone import FreshZone, create_zone

FROZEN_SECONDS = 20.0
DELAY_MAX = 2.0 + 1.0 + 3.0
"""Seconds: PostgreSQL ends the frozen transaction after 2; a request that began to wait just before retries after 1;
3 more for a machine that runs three servers."""
LOGIN = "frozen_replica"
HELD_TRANSACTIONS = """
select a.pid from pg_stat_activity a
join pg_locks l on l.pid = a.pid and l.granted and l.relation = 'zones'::regclass and l.mode = 'RowShareLock'
where a.usename = ? and a.state = 'idle in transaction'
"""
ACTIVE_COUNT = "select count(*) from pg_stat_activity where usename = ? and state = 'active'"


def create_login(postgres: PostgresServer) -> str:
    """Create a login for one replica, which identifies its connections. Returns the URL."""
    database = DirectDatabase(postgres.url())
    database.execute(f"create role {LOGIN} login password 'pass'")
    database.execute(f"grant {', '.join(ROLES)} to {LOGIN}")
    return urlsplit(postgres.url())._replace(netloc=f"{LOGIN}:pass@127.0.0.1:{postgres.port}").geturl()


async def freeze_in_transaction(server: ServerProcess, load: SpawnLoad, database: DirectDatabase) -> int:
    """Freeze the server at a moment when it holds a zone's lock in an idle transaction. Returns the backend's pid."""
    for _ in range(500):
        server.freeze()

        async def is_idle() -> bool:
            return database.scalar(ACTIVE_COUNT, LOGIN) == 0

        await eventually(is_idle, "no statement was running")
        if held := database.execute(HELD_TRANSACTIONS, LOGIN):
            return int(str(held[0][0]))
        server.thaw()
        await load.wait_for_acknowledged(1)
    raise AssertionError("the server was never frozen between lock and commit")


async def longest_gap(load: SpawnLoad, until: float) -> float:
    """The longest time between two acknowledged spawns, in seconds."""
    longest = 0.0
    while (started := time.monotonic()) < until:
        await load.wait_for_acknowledged(1)
        longest = max(longest, time.monotonic() - started)
    return longest


async def test_replica_frozen_in_a_transaction_delays_others_only_by_the_timeouts(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    url = own_postgres.url()
    upgrade(url)
    database = DirectDatabase(url)
    running = await start_replicas(servers, url, 2)
    key = str(running[0].launch.data / "signing-key.pem")
    shared = {"QD_SIGNING_KEY": key, "QD_SECRET_KEYS": running[0].secret_keys}
    frozen_launch = Launch(servers.directory / "frozen", create_login(own_postgres)).with_environment(**shared)
    frozen = await servers.start(frozen_launch)
    zone = await create_zone(running[0])
    loads = [
        SpawnLoad(FreshZone(server, zone.id), clients=8, name=f"{number}-")
        for number, server in enumerate([frozen, *running])
    ]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))

    holder_pid = await freeze_in_transaction(frozen, loads[0], database)
    count_when_frozen = len(loads[0].acknowledged)
    until = time.monotonic() + FROZEN_SECONDS
    gaps = await asyncio.gather(*(longest_gap(load, until) for load in loads[1:]))
    assert max(gaps) <= DELAY_MAX
    assert database.count("pg_stat_activity", "pid = ?", holder_pid) == 0, "PostgreSQL ended the transaction"
    assert len(loads[0].acknowledged) == count_when_frozen, "the replica was frozen"

    frozen.thaw()
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    await asyncio.gather(*(load.stop() for load in loads))
    acknowledged: dict[str, str] = {}
    for load in loads:
        assert load.statuses.keys() <= {200, 201, 503}
        assert not load.unanswered
        assert not load.cut_short
        acknowledged |= load.acknowledged
    assert_one_session_per_key(url, zone.id, list(acknowledged.items()))
    assert len(stored_keys(url, zone.id)) == len(acknowledged), "no session exists without a response"
    await assert_check_passes(servers, running[0].launch)
