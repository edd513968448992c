"""taskiq on Redis streams, whose messages are acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.contract import JobProducer, StartRecorder

CONCURRENCY = 100
ACK_SECONDS = 0.2
"""For the last of them to be acknowledged."""
run = uvloop.run


class KickableTask(Protocol):
    """What a function becomes that is a task."""

    async def kiq(self, payload: str) -> object: ...


def _create_broker(url: str) -> RedisStreamBroker:
    # From the first message on: what was sent before the first worker came is to be done too.
    return RedisStreamBroker(url, consumer_id="0")


async def install(url: str) -> None:
    broker = _create_broker(url)
    await broker.startup()
    await broker.shutdown()


class TaskProducer:
    def __init__(self, job: KickableTask) -> None:
        self._job = job

    async def enqueue_one(self, payload: str) -> None:
        await self._job.kiq(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[JobProducer]:
    broker = _create_broker(url)

    @broker.task(task_name="job")
    async def job(payload: str) -> None:
        raise AssertionError("nobody works here")

    await broker.startup()
    yield TaskProducer(job)
    await broker.shutdown()


def work(url: str, count: int) -> None:
    run(_work(url, count))


async def _work(url: str, count: int) -> None:
    broker, all_started = _create_broker(url), asyncio.Event()
    start_recorder = StartRecorder(count, all_started.set)

    @broker.task(task_name="job")
    async def job(payload: str) -> None:
        start_recorder.record(payload)

    start_recorder.report_ready()
    running = asyncio.create_task(run_receiver_task(broker, run_startup=True, max_async_tasks=CONCURRENCY))
    await all_started.wait()
    await asyncio.wait([running], timeout=ACK_SECONDS)
    # Canceled, its receiver waits for a message that does not come.
    start_recorder.report_and_exit()
