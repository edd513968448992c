"""Celery on Redis: one process that works by itself, and acknowledges what it has done."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from celery.signals import worker_ready

from bench.peers.contract import Put, Started

CALLERS = 20
PREFETCH = 100
LAST_SECONDS = 0.2
"""For the last of them to be acknowledged."""
run = asyncio.run


def _app(url: str) -> Celery:
    app = Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=PREFETCH,
        broker_pool_limit=CALLERS,
        worker_redirect_stdouts=False,
    )
    return app


async def install(url: str) -> None:
    """Nothing is there before the first job."""


class Client:
    def __init__(self, app: Celery, threads: ThreadPoolExecutor) -> None:
        self._app = app
        self._threads = threads

    async def one(self, said: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._app.send_task, "job", [said])

    async def many(self, said: list[str]) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Put]:
    with ThreadPoolExecutor(CALLERS) as threads:
        yield Client(_app(url), threads)


def work(url: str, number: int) -> None:
    app = _app(url)
    # It ends its process by itself where it ends at all: told from here, when the last acknowledgement has left.
    started = Started(number, lambda: threading.Timer(LAST_SECONDS, started.tell_and_leave).start())

    @worker_ready.connect(weak=False)
    def ready(**_: object) -> None:
        started.ready()

    @app.task(name="job")
    def job(said: str) -> None:
        started.begin(said)

    app.Worker(pool="solo", loglevel="ERROR", without_gossip=True, without_mingle=True, quiet=True).start()
