"""`python -m bench.worker`: a worker made with the SDK, whose one method gives back what it was given.

A `WorkOrder` comes in; it says `ready` and its service's id when that is registered, serves until its standard input
ends, and says in a `WorkTally` what it used. It runs on the loop that an SDK's user gets who does not choose one.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from bench.orders import WorkOrder, WorkTally
from quarterdeck.sdk import Quarterdeck, Worker


async def echo(params: object) -> object:
    return params


async def serve(order: WorkOrder) -> WorkTally:
    async with Quarterdeck.connect(order.url, order.token, order.zone) as client:
        worker = Worker(client, order.application, concurrency=order.concurrency)
        worker.method(order.method)(echo)
        serving = asyncio.create_task(worker.run())
        registered = asyncio.create_task(worker.until_registered())
        await asyncio.wait([serving, registered], return_when=asyncio.FIRST_COMPLETED)
        if not registered.done():
            registered.cancel()
            await serving
        used = time.process_time()
        print("ready", registered.result().id, flush=True)
        await _end_of_input()
        worker.stop()
        await serving
        return WorkTally(time.process_time() - used)


async def _end_of_input() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkOrder)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(serve(order))))


if __name__ == "__main__":
    main()
