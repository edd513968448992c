"""`python -m bench.worker`: an SDK worker with one method, which returns its params.

The process reads a `WorkerConfig`, prints `ready` and the id of its service after registering it, serves until its
standard input is closed, and writes a `WorkerResult`. It uses the default event loop, as an SDK user does.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from bench.child_types import WorkerConfig, WorkerResult
from quarterdeck.sdk import Quarterdeck, Worker


async def echo(params: object) -> object:
    return params


async def serve(config: WorkerConfig) -> WorkerResult:
    async with Quarterdeck.connect(config.url, config.token, config.zone) as client:
        worker = Worker(client, config.application, concurrency=config.concurrency)
        worker.method(config.method)(echo)
        serving = asyncio.create_task(worker.run())
        registered = asyncio.create_task(worker.until_registered())
        await asyncio.wait([serving, registered], return_when=asyncio.FIRST_COMPLETED)
        if not registered.done():
            registered.cancel()
            await serving
        cpu_started_at = time.process_time()
        print("ready", registered.result().id, flush=True)
        await _wait_for_end_of_input()
        worker.stop()
        await serving
        return WorkerResult(time.process_time() - cpu_started_at)


async def _wait_for_end_of_input() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(serve(config))))


if __name__ == "__main__":
    main()
