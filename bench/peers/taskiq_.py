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
"""Time for the last acknowledgement."""
run = uvloop.run


class KickableTask(Protocol):
    """A function registered as a task."""

    async def kiq(self, payload: str) -> object: ...


def _create_broker(url: str) -> RedisStreamBroker:
    # Start at the first message, so that jobs sent before the first worker are done too.
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
        raise AssertionError("the producer does not run jobs")

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
    # A canceled receiver would wait for another message, so the process exits.
    start_recorder.report_and_exit()
