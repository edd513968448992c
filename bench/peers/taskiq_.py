"""taskiq on Redis streams, whose messages are acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.contract import Put, Started

AT_ONCE = 100
LAST_SECONDS = 0.2
"""For the last of them to be acknowledged."""
run = uvloop.run


class Kicked(Protocol):
    """What a function becomes that is a task."""

    async def kiq(self, said: str) -> object: ...


def _broker(url: str) -> RedisStreamBroker:
    # From the first message on: what was sent before the first worker came is to be done too.
    return RedisStreamBroker(url, consumer_id="0")


async def install(url: str) -> None:
    broker = _broker(url)
    await broker.startup()
    await broker.shutdown()


class Client:
    def __init__(self, job: Kicked) -> None:
        self._job = job

    async def one(self, said: str) -> None:
        await self._job.kiq(said)

    async def many(self, said: list[str]) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Put]:
    broker = _broker(url)

    @broker.task(task_name="job")
    async def job(said: str) -> None:
        raise AssertionError("nobody works here")

    await broker.startup()
    yield Client(job)
    await broker.shutdown()


def work(url: str, number: int) -> None:
    run(_work(url, number))


async def _work(url: str, number: int) -> None:
    broker, enough = _broker(url), asyncio.Event()
    started = Started(number, enough.set)

    @broker.task(task_name="job")
    async def job(said: str) -> None:
        started.begin(said)

    started.ready()
    running = asyncio.create_task(run_receiver_task(broker, run_startup=True, max_async_tasks=AT_ONCE))
    await enough.wait()
    await asyncio.wait([running], timeout=LAST_SECONDS)
    # Canceled, its receiver waits for a message that does not come.
    started.tell_and_leave()
