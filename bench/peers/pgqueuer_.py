"""PgQueuer with asyncpg. Batches larger than `BATCH` do not make it faster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job

from bench.peers.contract import JobProducer, StartRecorder

BATCH = 1_000
CONNECTIONS = 20
run = uvloop.run


async def install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


class TaskProducer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def enqueue_one(self, payload: str) -> None:
        await self._queries.enqueue("job", payload.encode())

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._queries.enqueue(
            ["job"] * len(payloads), [payload.encode() for payload in payloads], [0] * len(payloads)
        )


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[JobProducer]:
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        yield TaskProducer(Queries(AsyncpgPoolDriver(pool)))


def work(url: str, count: int) -> None:
    run(_work(url, count))


async def _work(url: str, count: int) -> None:
    worker, all_started = PgQueuer(AsyncpgDriver(await asyncpg.connect(url))), asyncio.Event()
    start_recorder = StartRecorder(count, all_started.set)

    @worker.entrypoint("job")
    async def job(queued: Job) -> None:
        start_recorder.record((queued.payload or b"").decode())

    start_recorder.report_ready()
    running = asyncio.create_task(worker.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5)))
    await all_started.wait()
    # The worker writes its completions before it ends.
    worker.shutdown.set()
    await running
    start_recorder.report_started()
