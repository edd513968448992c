"""`python -m bench.peers.driver QUEUE VERB`, under the queue's own environment. An order comes in, a tally goes out.

| verb    | order                 | what is timed                                                             |
|---------|-----------------------|---------------------------------------------------------------------------|
| install | url                   | nothing: tables, and whatever else is there before the first job          |
| enqueue | url, number, callers  | so many jobs, by so many callers at once, each waiting for its own        |
| bulk    | url, number, each     | so many jobs, `each` in one call, one call after the other                |
| work    | url, number           | nothing: says `ready`, works until so many were started, tells when       |
| starts  | url, number           | nothing: one job after the other, each after a pause; tells when sent     |
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

from bench.peers.contract import WARM, Peer

BYTES = 200
PAUSE_SECONDS = 0.1, 0.2
"""Longer than what the end of a job leaves to be done, and never twice the same: whoever looks now and then is not to
be met at the same point each time."""


@dataclass(frozen=True, slots=True)
class Told:
    url: str
    number: int = 0
    callers: int = 0
    each: int = 0


Tally = Mapping[str, object]


def main() -> None:
    peer = cast(Peer, importlib.import_module(f"bench.peers.{sys.argv[1]}_"))
    told = Told(**json.loads(sys.stdin.readline()))
    if sys.argv[2] == "work":
        peer.work(told.url, told.number)
    else:
        print(json.dumps(peer.run(_done(VERBS[sys.argv[2]], peer, told))), flush=True)


async def _done(verb: Verb, peer: Peer, told: Told) -> Tally:
    return await verb(peer, told)


async def install(peer: Peer, told: Told) -> Tally:
    await peer.install(told.url)
    return {}


async def enqueue(peer: Peer, told: Told) -> Tally:
    async with peer.client(told.url) as put:
        # As many as will come: connections are made before, and everybody's statements prepared.
        await asyncio.gather(*(put.one(job(WARM)) for _ in range(told.callers)))
        left = iter(range(told.number))

        async def caller() -> None:
            for number in left:
                await put.one(job(number))

        began = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(told.callers)))
        return {"seconds": time.monotonic() - began}


async def bulk(peer: Peer, told: Told) -> Tally:
    async with peer.client(told.url) as put:
        await put.one(job(WARM))
        began = time.monotonic()
        for first in range(0, told.number, told.each):
            last = min(first + told.each, told.number)
            await put.many([job(number) for number in range(first, last)])
        return {"seconds": time.monotonic() - began}


async def starts(peer: Peer, told: Told) -> Tally:
    sent: dict[int, float] = {}
    async with peer.client(told.url) as put:
        for number in range(told.number):
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
            sent[number] = time.monotonic()
            await put.one(job(number))
    return {"sent": sent}


def job(name: object) -> str:
    return f"{name} ".ljust(BYTES, "x")


Verb = Callable[[Peer, Told], Awaitable[Tally]]
VERBS: Mapping[str, Verb] = {"install": install, "enqueue": enqueue, "bulk": bulk, "starts": starts}

if __name__ == "__main__":
    main()
