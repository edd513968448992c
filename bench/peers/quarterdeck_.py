"""Quarterdeck in its own environment: tasks of the SDK's client, done by the SDK's worker.

The URL is `http://:TOKEN@host:port/ZONE`, so that every queue needs only a URL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from bench.peers.contract import JobProducer, StartRecorder
from quarterdeck.sdk import Attempt, Problem, Quarterdeck, TaskWorker
from quarterdeck.sdk.options import NewTask

AGENT = "bench"
CONCURRENCY = 64
TASK_TYPE = "job"
run = asyncio.run
"""The event loop of `TaskWorker.main`."""


def _connect(url: str) -> Quarterdeck:
    parts = urlsplit(url)
    return Quarterdeck.connect(f"http://{parts.hostname}:{parts.port}", parts.password, parts.path.strip("/"))


async def install(url: str) -> None:
    """Nothing to install: a ready server has its tables."""


class TaskProducer:
    def __init__(self, qd: Quarterdeck) -> None:
        self._tasks = qd.tasks

    async def enqueue_one(self, payload: str) -> None:
        await self._tasks.create(TASK_TYPE, TASK_TYPE, input_context={"payload": payload})

    async def enqueue_many(self, payloads: list[str]) -> None:
        tasks: list[NewTask] = [
            {"title": TASK_TYPE, "task_type": TASK_TYPE, "input_context": {"payload": payload}} for payload in payloads
        ]
        for created in await self._tasks.create_many(tasks):
            if isinstance(created, Problem):
                raise created


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[JobProducer]:
    async with _connect(url) as qd:
        yield TaskProducer(qd)


def work(url: str, count: int) -> None:
    run(_work(url, count))


async def _work(url: str, count: int) -> None:
    async with _connect(url) as qd:
        worker = TaskWorker(qd, AGENT, concurrency=CONCURRENCY)
        start_recorder = StartRecorder(count, worker.stop)

        @worker.task(TASK_TYPE)
        async def job(task: Attempt) -> None:
            start_recorder.record(str(task.input["payload"]))

        serving = asyncio.create_task(worker.run())
        registered = asyncio.create_task(worker.until_registered())
        await asyncio.wait([serving, registered], return_when=asyncio.FIRST_COMPLETED)
        if registered.done():
            start_recorder.report_ready()
        # The worker reports its completions before it ends.
        await serving
        start_recorder.report_started()
