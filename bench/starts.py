"""`python -m bench.starts`: how long a call takes to whoever waits for it. A `StartOrder` comes in, a `StartTally` goes
out.

One round: a claim is sent and left waiting; when the server says that it waits, and everything has been quiet for a
while, a call is sent. The time runs from just before that to the moment the claim's answer has been read, on one clock
in one process. Then the attempt is completed, unmeasured, and the next round begins.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from dataclasses import dataclass

import msgspec
import uvloop

from bench.orders import Order, Place, StartOrder, StartTally
from bench.wire import Connection, encoded, in_turn

WARM_ROUNDS = 20
QUIET_SECONDS = 0.02
"""Longer than what the end of a round leaves to be done: whoever is called is idle then."""
LOOK_SECONDS = 0.002
PATIENCE_SECONDS = 20.0
WAITING = re.compile(rb"^quarterdeck_claims_waiting\{[^}]*\} ([\d.]+)$", re.MULTILINE)


class Called(msgspec.Struct, frozen=True):
    id: str


class Item(msgspec.Struct, frozen=True):
    id: str
    params: msgspec.Raw
    attempt_token: str


class Claimed(msgspec.Struct, frozen=True):
    items: list[Item]


class Outcome(msgspec.Struct, frozen=True):
    status: str | None = None


class Completed(msgspec.Struct, frozen=True):
    items: list[Outcome]


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    at: float
    """When it had been read."""


class Line:
    """A connection, with one request under way at most."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[Answer] | None = None
        self._connection: Connection | None = None

    async def open(self, place: Place) -> Line:
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(
            lambda: Connection(self._answered, self._lost), place.host, place.port
        )
        return self

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        assert self._connection is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.send(request)
        return self._answer

    def _answered(self, connection: Connection, status: int) -> None:
        at = time.perf_counter()
        assert self._answer is not None
        body = connection.answer.partition(b"\r\n\r\n")[2]
        if 200 <= status < 300:
            self._answer.set_result(Answer(body, at))
        else:
            self._answer.set_exception(RuntimeError(f"{status}: {body[:500].decode(errors='replace')}"))

    def _lost(self, connection: Connection) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("a server closed its connection"))


class Starts:
    def __init__(self, order: StartOrder) -> None:
        self._order = order
        zone = f"/zones/{order.zone}"
        self._calls = in_turn(_order(order.caller, f"{zone}/invocations", order.body))
        claim = msgspec.json.encode({"max": 1, "wait_ms": int(PATIENCE_SECONDS * 1e3)}).decode()
        [self._claim] = encoded(_order(order.claimer, f"{zone}/services/{order.service_id}/claim", claim))
        [self._look] = encoded(_order(order.claimer, "/metrics", ""))
        self._completing = f"{zone}/invocations/complete"

    async def run(self) -> StartTally:
        self._caller = await Line().open(self._order.caller)
        self._claimer, self._looker = [await Line().open(self._order.claimer) for _ in range(2)]
        seconds = [await self._round() for _ in range(WARM_ROUNDS + self._order.rounds)]
        return StartTally(seconds[WARM_ROUNDS:])

    async def _round(self) -> float:
        async with asyncio.timeout(PATIENCE_SECONDS):
            claiming = self._claimer.send(self._claim)
            await self._until_it_waits()
            await asyncio.sleep(QUIET_SECONDS)
            began = time.perf_counter()
            calling = self._caller.send(next(self._calls))
            called, claimed = await calling, await claiming
            [item] = msgspec.json.decode(claimed.body, type=Claimed).items
            if item.id != msgspec.json.decode(called.body, type=Called).id:
                raise RuntimeError("what was claimed is not what was called")
            await self._complete(item)
        return claimed.at - began

    async def _until_it_waits(self) -> None:
        """The server tells how many wait, and nobody when it changes."""
        while True:
            found = WAITING.search((await self._looker.send(self._look)).body)
            if found is not None and float(found[1]) == 1:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _complete(self, item: Item) -> None:
        """With its params as the result, as the worker of `work` does."""
        said = {"id": item.id, "status": "succeeded", "result": item.params}
        body = msgspec.json.encode({"items": [{**said, "attempt_token": item.attempt_token}]}).decode()
        [request] = encoded(_order(self._order.claimer, self._completing, body))
        done = msgspec.json.decode((await self._claimer.send(request)).body, type=Completed)
        if [each.status for each in done.items] != ["succeeded"]:
            raise RuntimeError(f"a completion was refused: {done}")


def _order(place: Place, path: str, body: str) -> Order:
    method = "POST" if body else "GET"
    return Order(place.host, place.port, place.token, method, [path], body, connections=1, seconds=0.0)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartOrder)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(order))))


async def _run(order: StartOrder) -> StartTally:
    return await Starts(order).run()


if __name__ == "__main__":
    main()
