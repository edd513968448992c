"""`python -m bench.claimer`: how long claims take. A `ClaimOrder` comes in, a `ClaimTally` goes out.

One round: as many tasks are made as one claim asks for, the claim takes exactly these and is timed from just before it
is sent to the moment its answer has been read, and then they are completed, unmeasured. One connection, on one clock.
"""

from __future__ import annotations

import gc
import sys
import time

import msgspec
import uvloop

from bench.asks import task_body
from bench.orders import ClaimOrder, ClaimTally, Order
from bench.starts import Answer, Line
from bench.wire import encoded

WARM_ROUNDS = 10
TASKS = "/api/v1/agent-tasks"


class Taken(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    attempt_token: str


class Claimed(msgspec.Struct, frozen=True):
    tasks: list[Taken]


class Item(msgspec.Struct, frozen=True):
    error: dict[str, object] | None = None


class Items(msgspec.Struct, frozen=True):
    items: list[Item]


class Claimer:
    def __init__(self, order: ClaimOrder) -> None:
        self._order = order
        many = f'{{"tasks":[{",".join([task_body()] * order.most)}]}}'
        self._make = self._request(TASKS, many)
        asked = msgspec.json.encode({"max": order.most}).decode()
        self._claim = self._request(f"/api/v1/agents/{order.agent}/claim", asked)
        self._line = Line()

    async def run(self) -> ClaimTally:
        await self._line.open(self._order.place)
        seconds = [await self._round() for _ in range(WARM_ROUNDS + self._order.rounds)]
        return ClaimTally(seconds[WARM_ROUNDS:])

    async def _round(self) -> float:
        await self._line.send(self._make)
        began = time.perf_counter()
        claimed = await self._line.send(self._claim)
        taken = msgspec.json.decode(claimed.body, type=Claimed).tasks
        if len(taken) != self._order.most:
            raise RuntimeError(f"{len(taken)} were claimed, and {self._order.most} were there")
        done = [{"id": each.id, "attemptToken": each.attempt_token} for each in taken]
        _check(await self._line.send(self._request(f"{TASKS}/complete", _items(done))))
        return claimed.at - began

    def _request(self, path: str, body: str) -> bytes:
        place = self._order.place
        told = Order(place.host, place.port, place.token, "POST", [path], body, connections=1, seconds=0.0)
        return encoded(told)[0]


def _items(done: list[dict[str, str]]) -> str:
    return msgspec.json.encode({"items": done}).decode()


def _check(answer: Answer) -> None:
    refused = [item.error for item in msgspec.json.decode(answer.body, type=Items).items if item.error]
    if refused:
        raise RuntimeError(f"completions were refused: {refused[:3]}")


async def _run(order: ClaimOrder) -> ClaimTally:
    return await Claimer(order).run()


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ClaimOrder)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(order))))


if __name__ == "__main__":
    main()
