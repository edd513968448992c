"""Wake-ups: readers of the log are notified of each commit, in the same process and in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import psycopg
import pytest
import uvloop

from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError
from quarterdeck.store.migrate import upgrade
from quarterdeck.store.postgres_notify import NOTIFY_INTERVAL_SECONDS, NotifyTransport
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, StopMode
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime

WAKE_SECONDS = 5.0
"""Long for a wake-up, also on a loaded machine. Nothing here polls."""


@dataclass
class Subscriber:
    """Counts its wake-ups."""

    woken: int = 0
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.woken += 1
        self.event.set()

    async def wait_woken(self) -> None:
        async with asyncio.timeout(WAKE_SECONDS):
            await self.event.wait()
        self.event.clear()


@dataclass
class Process:
    """The parts of one server process."""

    runtime: RuntimeHarness
    subscriber: Subscriber


@contextlib.asynccontextmanager
async def process_on(url: str) -> AsyncIterator[Process]:
    wakeups, subscriber = Wakeups(NotifyTransport(url)), Subscriber()
    wakeups.subscribe(subscriber.wake)
    async with open_runtime(url, RuntimeOptions(after_commit=lambda events: wakeups.notify())) as runtime:
        wakeups.start()
        await subscriber.wait_woken()
        yield Process(runtime, subscriber)
        await wakeups.stop()


# -- in one process


def test_commit_wakes_every_subscriber_until_it_unsubscribes() -> None:
    wakeups, one, two = Wakeups(), Subscriber(), Subscriber()
    unsubscribe = wakeups.subscribe(one.wake)
    wakeups.subscribe(two.wake)
    wakeups.notify()
    unsubscribe()
    unsubscribe()
    wakeups.notify()
    assert (one.woken, two.woken) == (1, 2)


def test_failing_subscriber_does_not_stop_the_others() -> None:
    wakeups, subscriber = Wakeups(), Subscriber()
    wakeups.subscribe(lambda: [][0])
    wakeups.subscribe(subscriber.wake)
    wakeups.notify()
    assert subscriber.woken == 1


async def test_subscriber_is_woken_before_the_caller_gets_its_result(engine_url: str) -> None:
    wakeups, subscriber = Wakeups(), Subscriber()
    wakeups.subscribe(subscriber.wake)
    async with open_runtime(engine_url, RuntimeOptions(after_commit=lambda events: wakeups.notify())) as runtime:
        await runtime.put_zone()
        assert subscriber.woken == 1
        await runtime.spawn()
        assert subscriber.woken == 2


# -- between processes


async def test_commit_in_one_process_wakes_the_other(postgres_url: str) -> None:
    async with process_on(postgres_url) as one, process_on(postgres_url) as two:
        await assert_wake_each_other(one, two, "first")


async def assert_wake_each_other(one: Process, two: Process, name: str) -> None:
    # Several rounds: a single wake-up could be a late one from before.
    for number in range(5):
        for sender, receiver in ((one, two), (two, one)):
            receiver.subscriber.event.clear()
            await sender.runtime.put_zone(f"{name}-{number}-{sender is one}")
            await receiver.subscriber.wait_woken()


async def test_process_is_not_woken_by_its_own_notifications(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("listen quarterdeck")
        async with process_on(postgres_url) as one:
            before = one.subscriber.woken
            for number in range(3):
                await one.runtime.put_zone(f"zone-{number}")
                # PostgreSQL has delivered this notification, and with it the earlier ones of this process.
                notifications = await asyncio.to_thread(
                    lambda: list(listener.notifies(timeout=WAKE_SECONDS, stop_after=1))
                )
                assert len(notifications) == 1
            assert one.subscriber.woken == before + 3


async def test_burst_of_1000_commits_sends_at_most_one_notification_per_20_ms(postgres_url: str) -> None:
    wakeups = Wakeups(NotifyTransport(postgres_url))
    async with open_runtime(postgres_url, RuntimeOptions(after_commit=lambda events: wakeups.notify())) as runtime:
        await runtime.put_zone()
        wakeups.start()
        with psycopg.connect(postgres_url, autocommit=True) as listener:
            listener.execute("listen quarterdeck")
            started = time.monotonic()
            for _ in range(1_000):
                await runtime.spawn()
            elapsed = time.monotonic() - started
            notifications = await asyncio.to_thread(lambda: list(listener.notifies(timeout=1)))
        assert runtime.database.count("agent_sessions") == 1_000
        assert 2 <= len(notifications) <= elapsed / NOTIFY_INTERVAL_SECONDS + 2
        await wakeups.stop()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_wakeups_resume_after_a_restart_of_postgresql(own_postgres: PostgresServer, mode: StopMode) -> None:
    url = own_postgres.url()
    upgrade(url)

    async def scenario() -> None:
        async with process_on(url) as one, process_on(url) as two:
            await asyncio.to_thread(own_postgres.restart, mode)
            # Each wakes itself when it listens again, because it has missed what was sent meanwhile.
            await asyncio.gather(one.subscriber.wait_woken(), two.subscriber.wait_woken())
            for process in (one, two):
                await eventually(partial(is_back, process.runtime), "the store was reachable again")
            await assert_wake_each_other(one, two, mode)

    # On uvloop, as the server: it is strict about the file descriptors it watches.
    uvloop.run(scenario())


async def is_back(runtime: RuntimeHarness) -> bool:
    try:
        await runtime.store.ping()
    except TransientError:
        return False
    return True


async def test_reconnects_to_postgresql_back_off() -> None:
    connected_at: list[float] = []
    enough = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected_at.append(time.monotonic())
        writer.close()
        if len(connected_at) == 5:
            enough.set()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wakeups = Wakeups(NotifyTransport(f"postgresql://user@127.0.0.1:{port}/none?sslmode=disable&gssencmode=disable"))
    wakeups.start()
    async with asyncio.timeout(30):
        await enough.wait()
    await wakeups.stop()
    server.close()
    # Jitter removes at most half of 100, 200, 400 and 800 ms.
    assert connected_at[-1] - connected_at[0] >= 0.75
