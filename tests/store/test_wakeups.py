"""Wakes: whoever follows the log hears of a commit at once, in its own process and in the others."""

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

SOON = 5.0
"""Seconds. Long for a wake, on however loaded a machine; nobody here polls."""


@dataclass
class Ears:
    """A subscriber that counts."""

    woken: int = 0
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.woken += 1
        self.event.set()

    async def hears(self) -> None:
        async with asyncio.timeout(SOON):
            await self.event.wait()
        self.event.clear()


@dataclass
class Process:
    """What one server process has of all this."""

    keel: RuntimeHarness
    ears: Ears


@contextlib.asynccontextmanager
async def process_on(url: str) -> AsyncIterator[Process]:
    wakes, ears = Wakeups(NotifyTransport(url)), Ears()
    wakes.subscribe(ears.wake)
    async with open_runtime(url, RuntimeOptions(after_commit=lambda events: wakes.notify())) as keel:
        wakes.start()
        await ears.hears()
        yield Process(keel, ears)
        await wakes.stop()


# -- in one process


def test_a_commit_wakes_every_subscriber_until_it_unsubscribes() -> None:
    wakes, one, two = Wakeups(), Ears(), Ears()
    leave = wakes.subscribe(one.wake)
    wakes.subscribe(two.wake)
    wakes.notify()
    leave()
    leave()
    wakes.notify()
    assert (one.woken, two.woken) == (1, 2)


def test_a_subscriber_that_fails_keeps_nobody_else_asleep() -> None:
    wakes, ears = Wakeups(), Ears()
    wakes.subscribe(lambda: [][0])
    wakes.subscribe(ears.wake)
    wakes.notify()
    assert ears.woken == 1


async def test_a_subscriber_hears_of_a_commit_before_whoever_asked_for_it_is_answered(engine_url: str) -> None:
    wakes, ears = Wakeups(), Ears()
    wakes.subscribe(ears.wake)
    async with open_runtime(engine_url, RuntimeOptions(after_commit=lambda events: wakes.notify())) as keel:
        await keel.put_zone()
        assert ears.woken == 1
        await keel.spawn()
        assert ears.woken == 2


# -- between processes


async def test_a_commit_in_one_process_wakes_the_other(postgres_url: str) -> None:
    async with process_on(postgres_url) as one, process_on(postgres_url) as two:
        await each_wakes_the_other(one, two, "first")


async def each_wakes_the_other(one: Process, two: Process, name: str) -> None:
    # Several times: of one wake nobody could say that it was not still on its way from before.
    for number in range(5):
        for here, there in ((one, two), (two, one)):
            there.ears.event.clear()
            await here.keel.put_zone(f"{name}-{number}-{here is one}")
            await there.ears.hears()


async def test_a_process_is_not_woken_again_by_what_it_sent_itself(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("listen quarterdeck")
        async with process_on(postgres_url) as one:
            before = one.ears.woken
            for number in range(3):
                await one.keel.put_zone(f"zone-{number}")
                # Sent, and delivered to whoever listened; what was sent before has come back by then.
                heard = await asyncio.to_thread(lambda: list(listener.notifies(timeout=SOON, stop_after=1)))
                assert len(heard) == 1
            assert one.ears.woken == before + 3


async def test_a_burst_of_1000_commits_sends_no_more_than_one_wake_in_20_ms(postgres_url: str) -> None:
    wakes = Wakeups(NotifyTransport(postgres_url))
    async with open_runtime(postgres_url, RuntimeOptions(after_commit=lambda events: wakes.notify())) as keel:
        await keel.put_zone()
        wakes.start()
        with psycopg.connect(postgres_url, autocommit=True) as listener:
            listener.execute("listen quarterdeck")
            began = time.monotonic()
            for _ in range(1_000):
                await keel.spawn()
            took = time.monotonic() - began
            heard = await asyncio.to_thread(lambda: list(listener.notifies(timeout=1)))
        assert keel.database.count("agent_sessions") == 1_000
        assert 2 <= len(heard) <= took / NOTIFY_INTERVAL_SECONDS + 2
        await wakes.stop()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_wakes_come_again_after_postgresql_was_restarted(own_postgres: PostgresServer, mode: StopMode) -> None:
    url = own_postgres.url()
    upgrade(url)

    async def scenario() -> None:
        async with process_on(url) as one, process_on(url) as two:
            await asyncio.to_thread(own_postgres.restart, mode)
            # Each looks by itself when it listens again: whatever was sent meanwhile, it did not hear.
            await asyncio.gather(one.ears.hears(), two.ears.hears())
            for process in (one, two):
                await eventually(partial(is_back, process.keel), "its store was back, too")
            await each_wakes_the_other(one, two, mode)

    # On the server's own loop, which is particular about whose descriptors it watches.
    uvloop.run(scenario())


async def is_back(keel: RuntimeHarness) -> bool:
    try:
        await keel.store.ping()
    except TransientError:
        return False
    return True


async def test_while_postgresql_is_away_it_is_asked_for_with_growing_pauses() -> None:
    asked: list[float] = []
    enough = asyncio.Event()

    async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(time.monotonic())
        writer.close()
        if len(asked) == 5:
            enough.set()

    server = await asyncio.start_server(turn_away, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wakes = Wakeups(NotifyTransport(f"postgresql://nobody@127.0.0.1:{port}/none?sslmode=disable&gssencmode=disable"))
    wakes.start()
    async with asyncio.timeout(30):
        await enough.wait()
    await wakes.stop()
    server.close()
    # Chance takes away half of 100, 200, 400 and 800 ms at most.
    assert asked[-1] - asked[0] >= 0.75
