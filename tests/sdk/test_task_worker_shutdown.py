"""The end of a task worker's process: told to, it finishes; killed, it loses nothing."""

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

LIMIT = 60.0
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
    await task.progress(10, "begun", checkpoint={"by": sys.argv[1]})
    print("begun", flush=True)
    await stdin.wait()
    return task.attempt

worker.main()
"""


@contextlib.asynccontextmanager
async def working(zone: FreshZone, agent: str) -> AsyncIterator[Process]:
    told = {"QD_URL": zone.server.url, "QD_TOKEN": zone.token(), "QD_ZONE": zone.id}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, agent, stdin=PIPE, stdout=PIPE, env={**minimal_environment(), **told}
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until_begun(process: Process) -> None:
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"


def let_go_on(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def three(qd: Quarterdeck) -> list[str]:
    asked: list[NewTask] = [
        {"title": f"number {n}", "task_type": "slow", "max_retries": 5, "retry_backoff_seconds": 0} for n in range(3)
    ]
    return [task.id for task in await qd.tasks.create_many(asked) if isinstance(task, Task)]


async def test_told_to_stop_it_finishes_what_runs_and_gives_back_what_does_not(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, working(zone, "dev-1") as process:
        ids = await three(qd)
        await until_begun(process)
        await until_begun(process)
        process.send_signal(signal.SIGTERM)
        let_go_on(process)
        assert await process.wait() == 0
        found = [await qd.tasks.get(each) for each in ids]
        assert sorted(task.status for task in found) == ["COMPLETED", "COMPLETED", "PENDING"]
        assert {task.retry_count for task in found} == {0}


async def test_killed_it_loses_nothing_and_another_goes_on_from_its_checkpoints(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        async with working(zone, "dev-1") as process:
            ids = await three(qd)
            await until_begun(process)
            await until_begun(process)
            process.kill()
            await process.wait()
        async with working(zone, "dev-2") as process:
            let_go_on(process)
            ended = await qd.tasks.wait(ids, timeout=LIMIT)
        assert [task.status for task in ended] == ["COMPLETED"] * 3
        assert sorted(str(task.output_result) for task in ended) == ["1", "2", "2"]
        assert {task.agent_id for task in ended} == {"dev-2"}
        assert [(await qd.agents.get("dev-1")).status_reason] == ["stale"]
