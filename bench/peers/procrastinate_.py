"""Procrastinate: psycopg, and as many jobs at once as help it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import uvloop
from procrastinate import App, PsycopgConnector

from bench.peers.contract import Put, Started

CONCURRENCY = 20
CONNECTIONS = CONCURRENCY + 4
run = uvloop.run


class Deferred(Protocol):
    """What a function becomes that is a task."""

    async def defer_async(self, *, said: str) -> object: ...

    async def batch_defer_async(self, *jobs: dict[str, str]) -> object: ...


def _app(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS))


async def install(url: str) -> None:
    async with _app(url).open_async() as app:
        await app.schema_manager.apply_schema_async()


class Client:
    def __init__(self, job: Deferred) -> None:
        self._job = job

    async def one(self, said: str) -> None:
        await self._job.defer_async(said=said)

    async def many(self, said: list[str]) -> None:
        await self._job.batch_defer_async(*({"said": each} for each in said))


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Put]:
    app = _app(url)

    @app.task(name="job")
    async def job(said: str) -> None:
        raise AssertionError("nobody works here")

    async with app.open_async():
        yield Client(job)


def work(url: str, number: int) -> None:
    run(_work(url, number))


async def _work(url: str, number: int) -> None:
    app, enough = _app(url), asyncio.Event()
    started = Started(number, enough.set)

    @app.task(name="job")
    async def job(said: str) -> None:
        started.begin(said)

    async with app.open_async():
        started.ready()
        running = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, wait=True)
        )
        await enough.wait()
        # It lets what runs come to its end.
        running.cancel()
        await asyncio.wait([running])
    started.tell()
