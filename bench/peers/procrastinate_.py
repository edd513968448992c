"""Procrastinate with psycopg. The worker runs `CONCURRENCY` jobs at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import uvloop
from procrastinate import App, PsycopgConnector

from bench.peers.contract import JobProducer, StartRecorder

CONCURRENCY = 20
CONNECTIONS = CONCURRENCY + 4
run = uvloop.run


class DeferrableTask(Protocol):
    """A function registered as a task."""

    async def defer_async(self, *, payload: str) -> object: ...

    async def batch_defer_async(self, *jobs: dict[str, str]) -> object: ...


def _create_app(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS))


async def install(url: str) -> None:
    async with _create_app(url).open_async() as app:
        await app.schema_manager.apply_schema_async()


class TaskProducer:
    def __init__(self, job: DeferrableTask) -> None:
        self._job = job

    async def enqueue_one(self, payload: str) -> None:
        await self._job.defer_async(payload=payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._job.batch_defer_async(*({"payload": payload} for payload in payloads))


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[JobProducer]:
    app = _create_app(url)

    @app.task(name="job")
    async def job(payload: str) -> None:
        raise AssertionError("the producer does not run jobs")

    async with app.open_async():
        yield TaskProducer(job)


def work(url: str, count: int) -> None:
    run(_work(url, count))


async def _work(url: str, count: int) -> None:
    app, all_started = _create_app(url), asyncio.Event()
    start_recorder = StartRecorder(count, all_started.set)

    @app.task(name="job")
    async def job(payload: str) -> None:
        start_recorder.record(payload)

    async with app.open_async():
        start_recorder.report_ready()
        running = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, wait=True)
        )
        await all_started.wait()
        # The canceled worker finishes its running jobs.
        running.cancel()
        await asyncio.wait([running])
    start_recorder.report_started()
