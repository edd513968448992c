"""`python -m bench.peers.driver QUEUE VERB`, in the queue's own environment. Reads `Options` and prints the result.

| verb    | options                | does                                                                            |
|---------|------------------------|---------------------------------------------------------------------------------|
| install | url                    | creates tables and the like                                                     |
| enqueue | url, number, callers   | times `number` jobs of `callers` concurrent callers, each waiting for its own   |
| bulk    | url, number, bulk_size | times `number` jobs, `bulk_size` per call, one call after the other             |
| work    | url, number            | prints `ready`, works until `number` jobs have started, prints their start times |
| starts  | url, number            | sends one job after the other, each after a pause, and prints the send times    |
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

from bench.peers.contract import WARM_UP_JOB, Peer

PAYLOAD_BYTES = 200
PAUSE_SECONDS = 0.1, 0.2
"""Longer than the work left over from a job, and random, so that a queue that polls is not hit at the same point of its
interval each time."""


@dataclass(frozen=True, slots=True)
class Options:
    url: str
    number: int = 0
    callers: int = 0
    bulk_size: int = 0


VerbResult = Mapping[str, object]


def main() -> None:
    peer = cast(Peer, importlib.import_module(f"bench.peers.{sys.argv[1]}_"))
    options = Options(**json.loads(sys.stdin.readline()))
    if sys.argv[2] == "work":
        peer.work(options.url, options.number)
    else:
        print(json.dumps(peer.run(_run_verb(VERBS[sys.argv[2]], peer, options))), flush=True)


async def _run_verb(verb: Verb, peer: Peer, options: Options) -> VerbResult:
    return await verb(peer, options)


async def install(peer: Peer, options: Options) -> VerbResult:
    await peer.install(options.url)
    return {}


async def enqueue(peer: Peer, options: Options) -> VerbResult:
    async with peer.client(options.url) as producer:
        # One job per caller first, to open all connections and prepare their statements.
        await asyncio.gather(*(producer.enqueue_one(build_payload(WARM_UP_JOB)) for _ in range(options.callers)))
        remaining = iter(range(options.number))

        async def run_caller() -> None:
            for number in remaining:
                await producer.enqueue_one(build_payload(number))

        started_at = time.monotonic()
        await asyncio.gather(*(run_caller() for _ in range(options.callers)))
        return {"seconds": time.monotonic() - started_at}


async def bulk(peer: Peer, options: Options) -> VerbResult:
    async with peer.client(options.url) as producer:
        await producer.enqueue_one(build_payload(WARM_UP_JOB))
        started_at = time.monotonic()
        for first in range(0, options.number, options.bulk_size):
            last = min(first + options.bulk_size, options.number)
            await producer.enqueue_many([build_payload(number) for number in range(first, last)])
        return {"seconds": time.monotonic() - started_at}


async def send_with_pauses(peer: Peer, options: Options) -> VerbResult:
    sent: dict[int, float] = {}
    async with peer.client(options.url) as producer:
        for index in range(options.number):
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
            sent[index] = time.monotonic()
            await producer.enqueue_one(build_payload(index))
    return {"sent": sent}


def build_payload(name: object) -> str:
    return f"{name} ".ljust(PAYLOAD_BYTES, "x")


Verb = Callable[[Peer, Options], Awaitable[VerbResult]]
VERBS: Mapping[str, Verb] = {"install": install, "enqueue": enqueue, "bulk": bulk, "starts": send_with_pauses}

if __name__ == "__main__":
    main()
