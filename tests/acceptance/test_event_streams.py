"""A client of the event stream receives every event of its zone once and in order, also after lost connections."""

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
from quarterdeck.engine.event_subscriber import QUEUE_BYTES_MAX
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.migrate import upgrade
from tests.support.commit_proxy import CutMoment, open_proxy
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.replicas import start_replica, start_replicas
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase, RuntimeHarness, open_runtime
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad
from tests.support.sse import SseStream
from tests.support.zone import FreshZone, create_zone, spawn

CutPolicy = Callable[[], int]
"""Returns after how many bytes the client cuts its next connection."""


class ResumingClient:
    """Follows a zone's events, cuts its connection after any byte, and resumes after the last id it received."""

    def __init__(self, zone: FreshZone, urls: Sequence[str], cut: CutPolicy) -> None:
        self.received: list[int] = []
        self.foreign = 0
        self.resets = 0
        self.cuts = 0
        self._zone = zone
        self._urls = itertools.cycle(urls)
        self._cut = cut
        self._last_id = "0"
        self._task = asyncio.create_task(self._run())

    async def assert_received(self, positions: Sequence[int]) -> None:
        """Wait for as many events as there are positions, and assert that they are these."""

        async def enough_received() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.received) >= len(positions)

        await eventually(enough_received, "every event was received", limit=90)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        assert self.received == list(positions)
        assert (self.foreign, self.resets) == (0, 0)

    async def _run(self) -> None:
        while True:
            await eventually(self._follow_once, "a stream was opened", limit=60)

    async def _follow_once(self) -> bool:
        """Read until the connection ends. False if the stream was not granted."""
        path, token = f"{self._zone.path}/events", self._zone.token()
        try:
            stream = await SseStream.request(next(self._urls), path, token, Last_Event_ID=self._last_id)
        except ConnectionError:
            return False
        if granted := stream.decoder.status == 200:
            await self._read(stream, self._cut())
        stream.reset()
        return granted

    async def _read(self, stream: SseStream, limit: int) -> None:
        remaining, count = limit, 1
        self._record(stream)
        while remaining > 0 and count:
            count = await stream.read_some(remaining)
            remaining -= count
            self._record(stream)
        self.cuts += remaining <= 0

    def _record(self, stream: SseStream) -> None:
        for message in stream.take_received():
            self.resets += message.event == "reset"
            self.foreign += message.json().get("zone_id") != self._zone.id
            self.received.append(int(message.id))
            self._last_id = message.id


def read_positions(url: str, zone: FreshZone) -> list[int]:
    rows = DirectDatabase(url).execute("select pos from events where zone_id = ? order by pos", zone.id)
    return [int(str(pos)) for [pos] in rows]


def cut_at_random() -> int:
    return random.choice([1, random.randrange(1_000), random.randrange(50_000)])


def never_cut() -> int:
    return 10**12


# -- lost connections


async def test_clients_cut_at_random_bytes_receive_every_event_once_in_order(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    for _ in range(ROUNDS):
        zone, other = await create_zone(server), await create_zone(server)
        followers = [ResumingClient(zone, [server.url], cut_at_random) for _ in range(4)]
        loads = [SpawnLoad(zone, clients=8), SpawnLoad(other, clients=4)]
        await asyncio.gather(*(load.wait_for_acknowledged(150) for load in loads))
        await asyncio.gather(*(load.stop() for load in loads))
        positions = read_positions(launch.database_url, zone)
        assert len(positions) > 150
        for follower in followers:
            await follower.assert_received(positions)
        assert sum(follower.cuts for follower in followers) > 5
    assert "Traceback" not in server.log_text


async def test_clients_of_a_killed_replica_resume_at_another_without_a_gap(servers: Servers, postgres_url: str) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    zone = await create_zone(replicas[1])
    urls = [replica.url for replica in replicas]
    followers = [ResumingClient(zone, urls[n:] + urls[:n], never_cut) for n in (0, 0, 1, 2)]
    followers += [ResumingClient(zone, urls, cut_at_random) for _ in range(2)]
    loads = [SpawnLoad(FreshZone(replica, zone.id), clients=6) for replica in replicas]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    replicas[0].kill()
    await asyncio.gather(*(load.wait_for_acknowledged(100) for load in loads[1:]))
    await asyncio.gather(*(load.stop() for load in loads))
    positions = read_positions(postgres_url, zone)
    assert len(positions) > 100
    for follower in followers:
        await follower.assert_received(positions)


async def test_clients_resume_after_server_restarts_without_a_gap(servers: Servers, launch: Launch) -> None:
    port = 0
    for round_number in range(3):
        server = await servers.start(Launch(launch.data, launch.database, port=port))
        port = urlsplit(server.url).port or 0
        if round_number == 0:
            zone = await create_zone(server)
            followers = [ResumingClient(zone, [server.url], never_cut) for _ in range(3)]
        load = SpawnLoad(FreshZone(server, zone.id), clients=4)
        await load.wait_for_acknowledged(50)
        server.kill() if round_number == 1 else server.terminate()
        await asyncio.gather(load.wait_until_done(), server.wait())
    server = await servers.start(Launch(launch.data, launch.database, port=port))
    positions = read_positions(launch.database_url, zone)
    for follower in followers:
        await follower.assert_received(positions)


@pytest.mark.parametrize("moment", ["before", "after", "at once"])
async def test_connection_lost_during_commit_loses_no_event_of_a_stream(
    servers: Servers, postgres_url: str, moment: CutMoment
) -> None:
    async with open_proxy(postgres_url) as proxy:
        server = await servers.start(Launch(servers.directory / "data", proxy.url))
        zone = await create_zone(server)
        followers = [ResumingClient(zone, [server.url], cut) for cut in (never_cut, never_cut, cut_at_random)]
        load = SpawnLoad(zone, clients=8)
        for _ in range(3):
            await load.wait_for_acknowledged(50)
            proxy.was_cut.clear()
            proxy.arm(moment)
            await asyncio.wait_for(proxy.was_cut.wait(), 30)
        await load.wait_for_acknowledged(50)
        await load.stop()
        positions = read_positions(postgres_url, zone)
        assert proxy.cuts == 3
        for follower in followers:
            await follower.assert_received(positions)
        # Kill the server before the proxy closes: a graceful stop would wait for its database connections.
        server.kill()


async def test_streams_stay_open_during_a_postgresql_outage_and_continue_after_it(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    upgrade(own_postgres.url())
    short_intervals = {"QD_STREAM_KEEP_ALIVE_MS": "50", "QD_STREAM_RECHECK_MS": "50"}
    server = await servers.start(
        Launch(servers.directory / "data", own_postgres.url()).with_environment(**short_intervals)
    )
    zone = await create_zone(server)
    stream = await SseStream.open(server.url, f"{zone.path}/events", zone.token())
    async with zone.client() as client:
        before = await spawn(client, zone)
        assert (await stream.next()).json()["subject"] == before["id"]
        await asyncio.to_thread(own_postgres.stop, "fast")
        stream.decoder.comments.clear()
        await stream.wait_for_comment("keep-alive")
        await asyncio.to_thread(own_postgres.start)

        async def is_ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await eventually(is_ready, "the server was ready again", limit=60)
        after = await spawn(client, zone)
    assert (await stream.next()).json()["subject"] == after["id"]
    await stream.close()


# -- other replicas


async def test_events_of_another_replica_arrive_without_waiting_for_the_poll(
    servers: Servers, postgres_url: str
) -> None:
    long_poll_interval = {"QD_STREAM_POLL_MS": "60000"}
    first = await servers.start(Launch(servers.directory / "data", postgres_url).with_environment(**long_poll_interval))
    second = await start_replica(first, servers)
    zone = await create_zone(first)
    stream = await SseStream.open(second.url, f"{zone.path}/events", zone.token())
    async with zone.client() as client:
        for _ in range(10):
            session = await spawn(client, zone)
            assert (await stream.next(limit=20)).json()["subject"] == session["id"]
    await stream.close()


async def test_events_without_a_wakeup_are_found_by_the_poll(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_POLL_MS="20"))
    zone = await create_zone(server)
    stream = await SseStream.open(server.url, f"{zone.path}/events", zone.token())
    async with open_runtime(launch.database_url) as runtime:
        await emit(runtime, zone.id, ["silent"])
    assert (await stream.next()).json()["subject"] == "silent"
    await stream.close()


async def emit(runtime: RuntimeHarness, zone_id: str, subjects: Sequence[str], size: int = 0) -> None:
    """Write events of any size without a transition."""
    data = f'{{"padding":"{"x" * size}"}}'

    async def operation(tx: Transaction) -> None:
        await tx.read()
        for subject in subjects:
            tx.emit(NewEvent("test.happened", zone_id, subject, "tester", data=data))

    await runtime.engine.transact(operation, zones=[zone_id])


# -- slow readers

BIG = 20_000
COUNT = 600
"""600 events of 20,000 bytes: three times what the kernel buffers for a connection whose reader has stopped."""
SLOW = 10
MEGABYTE = 1_000_000


async def test_stopped_readers_use_bounded_memory_delay_no_other_and_miss_no_event(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_POLL_MS="20"))
    zone = await create_zone(server)
    path, token = f"{zone.path}/events", zone.token()
    slow = [await SseStream.open(server.url, path, token) for _ in range(SLOW)]
    fast = await SseStream.open(server.url, path, token)
    before = resident_bytes(server)
    subjects = [new_id() for _ in range(COUNT)]
    async with open_runtime(launch.database_url) as runtime:
        for first in range(0, COUNT, 25):
            await emit(runtime, zone.id, subjects[first : first + 25], BIG)
            found = await fast.take(25)
            assert [message.json()["subject"] for message in found] == subjects[first : first + 25]
    # Without a limit, the server would buffer 80 MB for the slow readers.
    assert resident_bytes(server) - before < 20 * MEGABYTE + SLOW * 2 * QUEUE_BYTES_MAX
    assert await read_fell_behind(server) >= SLOW
    for stream in slow:
        found = await stream.take(COUNT)
        assert [message.json()["subject"] for message in found] == subjects
    async with zone.client() as client:
        session = await spawn(client, zone)
    for stream in [*slow, fast]:
        assert (await stream.next()).json()["subject"] == session["id"]
        await stream.close()


def resident_bytes(server: ServerProcess) -> int:
    statm = Path(f"/proc/{server.pid}/statm")
    if not statm.exists():
        pytest.skip("needs /proc/<pid>/statm")
    return int(statm.read_text().split()[1]) * 4096


async def read_fell_behind(server: ServerProcess) -> int:
    async with server.client() as client:
        text = (await client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("quarterdeck_streams_fell_behind_total{")]
    return int(float(line.split()[-1]))


async def test_stopped_reader_does_not_delay_shutdown(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="60000"))
    zone = await create_zone(server)
    async with open_runtime(launch.database_url) as runtime:
        for _ in range(20):
            await emit(runtime, zone.id, [new_id() for _ in range(50)], BIG)
    stuck = await SseStream.open(server.url, f"{zone.path}/events?after=0", zone.token())
    witness = await SseStream.open(server.url, f"{zone.path}/events?after=0", zone.token())
    await witness.take(1_001)
    server.terminate()
    assert await server.wait(limit=10) == 0
    stuck.reset()
    await witness.close()


async def test_stalled_reader_is_disconnected_and_frees_its_stream_slot(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAMS_MAX="1", QD_STREAM_STALL_MS="50"))
    zone = await create_zone(server)
    async with open_runtime(launch.database_url) as runtime:
        for _ in range(20):
            await emit(runtime, zone.id, [new_id() for _ in range(50)], BIG)
    path = f"{zone.path}/events?after=0"
    stuck = await SseStream.open(server.url, path, zone.token())

    async def has_free_slot() -> bool:
        new_stream = await SseStream.request(server.url, path, zone.token())
        admitted = new_stream.decoder.status == 200
        new_stream.reset()
        return admitted

    await eventually(has_free_slot, "the slot of the stalled reader was free")
    with pytest.raises((AssertionError, TimeoutError)):
        await stuck.take(1_001)
    stuck.reset()
