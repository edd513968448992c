"""Quarterdeck, under its own environment: tasks by the SDK's client, done by the SDK's worker.

The url is `http://:TOKEN@host:port/ZONE`, so that one word says for every queue where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from bench.peers.contract import Put, Started
from quarterdeck.sdk import Attempt, Problem, Quarterdeck, TaskWorker
from quarterdeck.sdk.options import NewTask

AGENT = "bench"
CONCURRENCY = 64
TYPE = "job"
run = asyncio.run
"""As `TaskWorker.main` does."""


def _connected(url: str) -> Quarterdeck:
    parts = urlsplit(url)
    return Quarterdeck.connect(f"http://{parts.hostname}:{parts.port}", parts.password, parts.path.strip("/"))


async def install(url: str) -> None:
    """A server has made its tables before it is ready."""


class Client:
    def __init__(self, connected: Quarterdeck) -> None:
        self._tasks = connected.tasks

    async def one(self, said: str) -> None:
        await self._tasks.create(TYPE, TYPE, input_context={"said": said})

    async def many(self, said: list[str]) -> None:
        wanted: list[NewTask] = [{"title": TYPE, "task_type": TYPE, "input_context": {"said": each}} for each in said]
        for made in await self._tasks.create_many(wanted):
            if isinstance(made, Problem):
                raise made


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Put]:
    async with _connected(url) as connected:
        yield Client(connected)


def work(url: str, number: int) -> None:
    run(_work(url, number))


async def _work(url: str, number: int) -> None:
    async with _connected(url) as connected:
        worker = TaskWorker(connected, AGENT, concurrency=CONCURRENCY)
        started = Started(number, worker.stop)

        @worker.task(TYPE)
        async def job(task: Attempt) -> None:
            started.begin(str(task.input["said"]))

        serving = asyncio.create_task(worker.run())
        registered = asyncio.create_task(worker.until_registered())
        await asyncio.wait([serving, registered], return_when=asyncio.FIRST_COMPLETED)
        if registered.done():
            started.ready()
        # It tells what it has done before it ends.
        await serving
        started.tell()
