"""Shutdown of a task worker process: SIGTERM finishes running tasks, SIGKILL loses none."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from quarterdeck.sdk import Quarterdeck
from quarterdeck.sdk.options import NewTask
from quarterdeck.sdk.work_types import Task
from tests.sdk.fake_servers import sdk_client
from tests.support.child_processes import minimal_environment
from tests.support.zone import FreshZone

TIMEOUT_SECONDS = 60.0
PROGRAM = """
import asyncio, sys
from quarterdeck.sdk import Attempt, Quarterdeck, TaskWorker, WorkerOptions

described = {"heartbeat_interval_seconds": 1, "stale_threshold_seconds": 1}
worker = TaskWorker(
    Quarterdeck.connect(), sys.argv[1], concurrency=2, options=WorkerOptions(prefetch=4, described=described)
)
stdin = asyncio.Event()

async def lines():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()
    stdin.set()

reading = None

@worker.task("slow")
async def slow(task: Attempt) -> int:
    global reading
    reading = reading or asyncio.create_task(lines())
    await task.progress(10, "started", checkpoint={"by": sys.argv[1]})
    print("started", flush=True)
    await stdin.wait()
    return task.attempt

worker.main()
"""


@contextlib.asynccontextmanager
async def run_worker_process(zone: FreshZone, agent: str) -> AsyncIterator[Process]:
    settings = {"QD_URL": zone.server.url, "QD_TOKEN": zone.token(), "QD_ZONE": zone.id}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, agent, stdin=PIPE, stdout=PIPE, env={**minimal_environment(), **settings}
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def wait_for_start(process: Process) -> None:
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"


def let_finish(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"continue\n")


async def create_three_tasks(qd: Quarterdeck) -> list[str]:
    new_tasks: list[NewTask] = [
        {"title": f"number {n}", "task_type": "slow", "max_retries": 5, "retry_backoff_seconds": 0} for n in range(3)
    ]
    return [task.id for task in await qd.tasks.create_many(new_tasks) if isinstance(task, Task)]


async def test_sigterm_finishes_running_tasks_and_releases_the_rest(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, run_worker_process(zone, "dev-1") as process:
        ids = await create_three_tasks(qd)
        await wait_for_start(process)
        await wait_for_start(process)
        process.send_signal(signal.SIGTERM)
        let_finish(process)
        assert await process.wait() == 0
        tasks = [await qd.tasks.get(task_id) for task_id in ids]
        assert sorted(task.status for task in tasks) == ["COMPLETED", "COMPLETED", "PENDING"]
        assert {task.retry_count for task in tasks} == {0}


async def test_tasks_of_a_killed_worker_are_completed_by_another(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        async with run_worker_process(zone, "dev-1") as process:
            ids = await create_three_tasks(qd)
            await wait_for_start(process)
            await wait_for_start(process)
            process.kill()
            await process.wait()
        async with run_worker_process(zone, "dev-2") as process:
            let_finish(process)
            ended = await qd.tasks.wait(ids, timeout=TIMEOUT_SECONDS)
        assert [task.status for task in ended] == ["COMPLETED"] * 3
        assert sorted(str(task.output_result) for task in ended) == ["1", "2", "2"]
        assert {task.agent_id for task in ended} == {"dev-2"}
        assert [(await qd.agents.get("dev-1")).status_reason] == ["stale"]
