"""A replica that freezes between its lock and its commit: the others wait no longer than the time-outs, and when it
wakes nothing of it is half-done."""

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
"""Seconds: the frozen one's transaction is ended after two; somebody may have begun to wait for its lock just before,
and try again in a second; the rest is for a machine that is busy with three servers."""
LOGIN = "the_frozen_one"
IN_ITS_TRANSACTION = """
select a.pid from pg_stat_activity a
join pg_locks l on l.pid = a.pid and l.granted and l.relation = 'zones'::regclass and l.mode = 'RowShareLock'
where a.usename = ? and a.state = 'idle in transaction'
"""
AT_WORK = "select count(*) from pg_stat_activity where usename = ? and state = 'active'"


def url_of_its_own(postgres: PostgresServer) -> str:
    """A login for one replica, by which PostgreSQL can tell its connections from the others'."""
    side = DirectDatabase(postgres.url())
    side.execute(f"create role {LOGIN} login password 'pass'")
    side.execute(f"grant {', '.join(ROLES)} to {LOGIN}")
    return urlsplit(postgres.url())._replace(netloc=f"{LOGIN}:pass@127.0.0.1:{postgres.port}").geturl()


async def frozen_in_mid_transaction(server: ServerProcess, load: SpawnLoad, side: DirectDatabase) -> int:
    """Freezes the server until it is found to hold a zone's lock in a transaction that only it could end; by which
    of its connections."""
    for _ in range(500):
        server.freeze()

        async def has_come_to_rest() -> bool:
            return side.scalar(AT_WORK, LOGIN) == 0

        await eventually(has_come_to_rest, "PostgreSQL had done what it was asked")
        if held := side.execute(IN_ITS_TRANSACTION, LOGIN):
            return int(str(held[0][0]))
        server.thaw()
        await load.wait_for_acknowledged(1)
    raise AssertionError("it was never frozen between a lock and a commit")


async def longest_wait(load: SpawnLoad, until: float) -> float:
    """Between two spawns that were acknowledged, in seconds."""
    longest = 0.0
    while (began := time.monotonic()) < until:
        await load.wait_for_acknowledged(1)
        longest = max(longest, time.monotonic() - began)
    return longest


async def test_a_replica_frozen_for_20_s_under_the_lock_delays_the_others_by_the_time_outs_and_leaves_nothing_half_done(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    url = own_postgres.url()
    upgrade(url)
    side = DirectDatabase(url)
    awake = await start_replicas(servers, url, 2)
    key = str(awake[0].launch.data / "signing-key.pem")
    shared = {"QD_SIGNING_KEY": key, "QD_SECRET_KEYS": awake[0].secret_keys}
    own = Launch(servers.directory / "frozen", url_of_its_own(own_postgres)).with_environment(**shared)
    frozen = await servers.start(own)
    zone = await create_zone(awake[0])
    loads = [
        SpawnLoad(FreshZone(server, zone.id), clients=8, name=f"{number}-")
        for number, server in enumerate([frozen, *awake])
    ]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))

    holder = await frozen_in_mid_transaction(frozen, loads[0], side)
    acknowledged = len(loads[0].acknowledged)
    until = time.monotonic() + FROZEN_SECONDS
    waits = await asyncio.gather(*(longest_wait(load, until) for load in loads[1:]))
    assert max(waits) <= DELAY_MAX
    assert side.count("pg_stat_activity", "pid = ?", holder) == 0, "PostgreSQL ended its transaction"
    assert len(loads[0].acknowledged) == acknowledged, "or it was not frozen at all"

    frozen.thaw()
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    await asyncio.gather(*(load.stop() for load in loads))
    answered: dict[str, str] = {}
    for load in loads:
        assert load.statuses.keys() <= {200, 201, 503}
        assert not load.unanswered
        assert not load.cut_short
        answered |= load.acknowledged
    assert_one_session_per_key(url, zone.id, list(answered.items()))
    assert len(stored_keys(url, zone.id)) == len(answered), "what was never answered for is not there"
    await assert_check_passes(servers, awake[0].launch)
