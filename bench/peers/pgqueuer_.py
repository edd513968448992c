"""PgQueuer: asyncpg, and batches so large that larger ones bring nothing more."""

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

from bench.peers.contract import Put, Started

BATCH = 1_000
CONNECTIONS = 20
run = uvloop.run


async def install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


class Client:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, said: str) -> None:
        await self._queries.enqueue("job", said.encode())

    async def many(self, said: list[str]) -> None:
        await self._queries.enqueue(["job"] * len(said), [each.encode() for each in said], [0] * len(said))


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Put]:
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        yield Client(Queries(AsyncpgPoolDriver(pool)))


def work(url: str, number: int) -> None:
    run(_work(url, number))


async def _work(url: str, number: int) -> None:
    worker, enough = PgQueuer(AsyncpgDriver(await asyncpg.connect(url))), asyncio.Event()
    started = Started(number, enough.set)

    @worker.entrypoint("job")
    async def job(found: Job) -> None:
        started.begin((found.payload or b"").decode())

    started.ready()
    running = asyncio.create_task(worker.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5)))
    await enough.wait()
    # It writes down what it has done before it ends.
    worker.shutdown.set()
    await running
    started.tell()
