"""Who follows a zone's events has seen every one of them once and in order, whatever was cut meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quarterdeck.core.ids import new_id
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.event_subscriber import QUEUE_BYTES
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.migrate import upgrade
from tests.support.commit_proxy import CutMoment as Moment, open_proxy
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.replicas import start_replica, start_replicas
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase, RuntimeHarness, open_runtime
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad
from tests.support.sse import SseStream
from tests.support.zone import FreshZone, create_zone, spawn

Cut = Callable[[], int]
"""After how many bytes a client is cut the next time."""


class Chaser:
    """Follows a zone, is cut again and again, at whichever byte that falls, and goes on from the last id it saw."""

    def __init__(self, zone: FreshZone, urls: Sequence[str], cut: Cut) -> None:
        self.seen: list[int] = []
        self.foreign = 0
        self.resets = 0
        self.cuts = 0
        self._zone = zone
        self._urls = itertools.cycle(urls)
        self._cut = cut
        self._last = "0"
        self._chasing = asyncio.create_task(self._chase())

    async def has_seen(self, positions: Sequence[int]) -> None:
        """Returns when so many events have been seen, and then they must be these."""

        async def seen() -> bool:
            if self._chasing.done():
                self._chasing.result()
            return len(self.seen) >= len(positions)

        await eventually(seen, "everything was seen", limit=90)
        self._chasing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._chasing
        assert self.seen == list(positions)
        assert (self.foreign, self.resets) == (0, 0)

    async def _chase(self) -> None:
        while True:
            await eventually(self._comes_in, "a stream could be had", limit=60)

    async def _comes_in(self) -> bool:
        """Follows until the connection is no more; False if none could be had."""
        path, token = f"{self._zone.path}/events", self._zone.token()
        try:
            stream = await SseStream.request(next(self._urls), path, token, Last_Event_ID=self._last)
        except ConnectionError:
            return False
        if granted := stream.decoder.status == 200:
            await self._read(stream, self._cut())
        stream.reset()
        return granted

    async def _read(self, stream: SseStream, most: int) -> None:
        left, count = most, 1
        self._look_at(stream)
        while left > 0 and count:
            count = await stream.read_some(left)
            left -= count
            self._look_at(stream)
        self.cuts += left <= 0

    def _look_at(self, stream: SseStream) -> None:
        for message in stream.take_received():
            self.resets += message.event == "reset"
            self.foreign += message.json().get("zone_id") != self._zone.id
            self.seen.append(int(message.id))
            self._last = message.id


def positions_of(url: str, zone: FreshZone) -> list[int]:
    rows = DirectDatabase(url).execute("select pos from events where zone_id = ? order by pos", zone.id)
    return [int(str(pos)) for [pos] in rows]


def at_random() -> int:
    return random.choice([1, random.randrange(1_000), random.randrange(50_000)])


def never() -> int:
    return 10**12


# -- cut


async def test_clients_cut_at_random_see_every_event_of_their_zone_once_and_in_order_under_load(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    for _ in range(ROUNDS):
        zone, other = await create_zone(server), await create_zone(server)
        chasers = [Chaser(zone, [server.url], at_random) for _ in range(4)]
        loads = [SpawnLoad(zone, clients=8), SpawnLoad(other, clients=4)]
        await asyncio.gather(*(load.wait_for_acknowledged(150) for load in loads))
        await asyncio.gather(*(load.stop() for load in loads))
        everything = positions_of(launch.database_url, zone)
        assert len(everything) > 150
        for chaser in chasers:
            await chaser.has_seen(everything)
        assert sum(chaser.cuts for chaser in chasers) > 5
    assert "Traceback" not in server.log_text


async def test_a_killed_replicas_clients_go_on_at_another_and_miss_nothing(servers: Servers, postgres_url: str) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    zone = await create_zone(replicas[1])
    urls = [replica.url for replica in replicas]
    chasers = [Chaser(zone, urls[n:] + urls[:n], never) for n in (0, 0, 1, 2)]
    chasers += [Chaser(zone, urls, at_random) for _ in range(2)]
    loads = [SpawnLoad(FreshZone(replica, zone.id), clients=6) for replica in replicas]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    replicas[0].kill()
    await asyncio.gather(*(load.wait_for_acknowledged(100) for load in loads[1:]))
    await asyncio.gather(*(load.stop() for load in loads))
    everything = positions_of(postgres_url, zone)
    assert len(everything) > 100
    for chaser in chasers:
        await chaser.has_seen(everything)


async def test_a_restarted_server_goes_on_where_its_clients_were(servers: Servers, launch: Launch) -> None:
    port = 0
    for turn in range(3):
        server = await servers.start(Launch(launch.data, launch.database, port=port))
        port = urlsplit(server.url).port or 0
        if turn == 0:
            zone = await create_zone(server)
            chasers = [Chaser(zone, [server.url], never) for _ in range(3)]
        load = SpawnLoad(FreshZone(server, zone.id), clients=4)
        await load.wait_for_acknowledged(50)
        server.kill() if turn == 1 else server.terminate()
        await asyncio.gather(load.wait_until_done(), server.wait())
    server = await servers.start(Launch(launch.data, launch.database, port=port))
    everything = positions_of(launch.database_url, zone)
    for chaser in chasers:
        await chaser.has_seen(everything)


@pytest.mark.parametrize("how", ["before", "after", "at once"])
async def test_connections_lost_during_commit_cost_no_listener_an_event(
    servers: Servers, postgres_url: str, how: Moment
) -> None:
    async with open_proxy(postgres_url) as proxy:
        server = await servers.start(Launch(servers.directory / "data", proxy.url))
        zone = await create_zone(server)
        chasers = [Chaser(zone, [server.url], cut) for cut in (never, never, at_random)]
        load = SpawnLoad(zone, clients=8)
        for _ in range(3):
            await load.wait_for_acknowledged(50)
            proxy.was_cut.clear()
            proxy.arm(how)
            await asyncio.wait_for(proxy.was_cut.wait(), 30)
        await load.wait_for_acknowledged(50)
        await load.stop()
        everything = positions_of(postgres_url, zone)
        assert proxy.cuts == 3
        for chaser in chasers:
            await chaser.has_seen(everything)
        # With its connections still there, so that it need not wait for them.
        server.kill()


async def test_streams_stay_open_while_postgresql_is_away_and_go_on_when_it_is_back(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    upgrade(own_postgres.url())
    often = {"QD_STREAM_KEEP_ALIVE_MS": "50", "QD_STREAM_RECHECK_MS": "50"}
    server = await servers.start(Launch(servers.directory / "data", own_postgres.url()).with_environment(**often))
    zone = await create_zone(server)
    live = await SseStream.open(server.url, f"{zone.path}/events", zone.token())
    async with zone.client() as client:
        before = await spawn(client, zone)
        assert (await live.next()).json()["subject"] == before["id"]
        await asyncio.to_thread(own_postgres.stop, "fast")
        live.decoder.comments.clear()
        await live.wait_for_comment("keep-alive")
        await asyncio.to_thread(own_postgres.start)

        async def back() -> bool:
            return (await client.get("/ready")).status_code == 200

        await eventually(back, "the server was ready again", limit=60)
        after = await spawn(client, zone)
    assert (await live.next()).json()["subject"] == after["id"]
    await live.close()


# -- other replicas


async def test_what_another_replica_commits_is_heard_without_waiting_for_the_poll(
    servers: Servers, postgres_url: str
) -> None:
    rarely = {"QD_STREAM_POLL_MS": "60000"}
    here = await servers.start(Launch(servers.directory / "data", postgres_url).with_environment(**rarely))
    there = await start_replica(here, servers)
    zone = await create_zone(here)
    stream = await SseStream.open(there.url, f"{zone.path}/events", zone.token())
    async with zone.client() as client:
        for _ in range(10):
            session = await spawn(client, zone)
            assert (await stream.next(limit=20)).json()["subject"] == session["id"]
    await stream.close()


async def test_what_nobody_says_is_found_by_the_poll(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_POLL_MS="20"))
    zone = await create_zone(server)
    stream = await SseStream.open(server.url, f"{zone.path}/events", zone.token())
    async with open_runtime(launch.database_url) as elsewhere:
        await emit(elsewhere, zone.id, ["silent"])
    assert (await stream.next()).json()["subject"] == "silent"
    await stream.close()


async def emit(keel: RuntimeHarness, zone_id: str, subjects: Sequence[str], size: int = 0) -> None:
    """Events without anything that happened, of any size."""
    data = f'{{"filling":"{"x" * size}"}}'

    async def operation(tx: Transaction) -> None:
        await tx.read()
        for subject in subjects:
            tx.emit(NewEvent("test.happened", zone_id, subject, "tester", data=data))

    await keel.engine.transact(operation, zones=[zone_id])


# -- slow readers

BIG = 20_000
COUNT = 600
"""Events of so many bytes: three times what the kernel holds for a connection whose reader has stopped."""
SLOW = 10
MEGABYTE = 1_000_000


async def test_readers_that_stop_cost_bounded_memory_hold_nobody_up_and_miss_nothing(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_POLL_MS="20"))
    zone = await create_zone(server)
    path, token = f"{zone.path}/events", zone.token()
    slow = [await SseStream.open(server.url, path, token) for _ in range(SLOW)]
    quick = await SseStream.open(server.url, path, token)
    before = resident_bytes(server)
    subjects = [new_id() for _ in range(COUNT)]
    async with open_runtime(launch.database_url) as elsewhere:
        for first in range(0, COUNT, 25):
            await emit(elsewhere, zone.id, subjects[first : first + 25], BIG)
            found = await quick.take(25)
            assert [message.json()["subject"] for message in found] == subjects[first : first + 25]
    # What the kernel does not hold of it would be 80 MB for all of them.
    assert resident_bytes(server) - before < 20 * MEGABYTE + SLOW * 2 * QUEUE_BYTES
    assert await fell_behind(server) >= SLOW
    for stream in slow:
        found = await stream.take(COUNT)
        assert [message.json()["subject"] for message in found] == subjects
    async with zone.client() as client:
        session = await spawn(client, zone)
    for stream in [*slow, quick]:
        assert (await stream.next()).json()["subject"] == session["id"]
        await stream.close()


def resident_bytes(server: ServerProcess) -> int:
    statm = Path(f"/proc/{server.pid}/statm")
    if not statm.exists():
        pytest.skip("only Linux tells here how much memory a process has")
    return int(statm.read_text().split()[1]) * 4096


async def fell_behind(server: ServerProcess) -> int:
    async with server.client() as client:
        text = (await client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("quarterdeck_streams_fell_behind_total{")]
    return int(float(line.split()[-1]))


async def test_a_reader_that_has_stopped_does_not_keep_the_server_from_stopping(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="60000"))
    zone = await create_zone(server)
    async with open_runtime(launch.database_url) as elsewhere:
        for _ in range(20):
            await emit(elsewhere, zone.id, [new_id() for _ in range(50)], BIG)
    stuck = await SseStream.open(server.url, f"{zone.path}/events?after=0", zone.token())
    witness = await SseStream.open(server.url, f"{zone.path}/events?after=0", zone.token())
    await witness.take(1_001)
    server.terminate()
    assert await server.wait(limit=10) == 0
    stuck.reset()
    await witness.close()


async def test_a_reader_that_never_reads_again_is_cut_and_its_place_is_free(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAMS_MAX="1", QD_STREAM_STALL_MS="50"))
    zone = await create_zone(server)
    async with open_runtime(launch.database_url) as elsewhere:
        for _ in range(20):
            await emit(elsewhere, zone.id, [new_id() for _ in range(50)], BIG)
    path = f"{zone.path}/events?after=0"
    stuck = await SseStream.open(server.url, path, zone.token())

    async def has_room() -> bool:
        newcomer = await SseStream.request(server.url, path, zone.token())
        admitted = newcomer.decoder.status == 200
        newcomer.reset()
        return admitted

    await eventually(has_room, "the place of one who never reads was free")
    with pytest.raises((AssertionError, TimeoutError)):
        await stuck.take(1_001)
    stuck.reset()
