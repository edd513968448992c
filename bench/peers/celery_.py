"""Celery on Redis: one process (`solo`) that acknowledges late."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from celery.signals import worker_ready

from bench.peers.contract import JobProducer, StartRecorder

CALLERS = 20
PREFETCH = 100
ACK_SECONDS = 0.2
"""Time for the last acknowledgement."""
run = asyncio.run


def _create_app(url: str) -> Celery:
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
    """Nothing to install."""


class TaskProducer:
    def __init__(self, app: Celery, threads: ThreadPoolExecutor) -> None:
        self._app = app
        self._threads = threads

    async def enqueue_one(self, payload: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._app.send_task, "job", [payload])

    async def enqueue_many(self, payloads: list[str]) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[JobProducer]:
    with ThreadPoolExecutor(CALLERS) as threads:
        yield TaskProducer(_create_app(url), threads)


def work(url: str, count: int) -> None:
    app = _create_app(url)
    # The worker does not return, so a timer reports and ends the process after the last acknowledgement.
    start_recorder = StartRecorder(count, lambda: threading.Timer(ACK_SECONDS, start_recorder.report_and_exit).start())

    @worker_ready.connect(weak=False)
    def report_ready(**_: object) -> None:
        start_recorder.report_ready()

    @app.task(name="job")
    def job(payload: str) -> None:
        start_recorder.record(payload)

    app.Worker(pool="solo", loglevel="ERROR", without_gossip=True, without_mingle=True, quiet=True).start()
