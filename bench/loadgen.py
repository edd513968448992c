"""`python -m bench.loadgen`: the generator for machines without wrk. An `Order` comes in, a `Tally` goes out.

Closed loop: each connection sends its next request when its last one is answered.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.orders import Order, Tally
from bench.wire import Connection, in_turn, percentile


class Generator:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._requests = in_turn(order)
        self._latencies: list[float] = []
        self._refused = 0
        self._lost = 0
        self._ends = 0.0

    async def run(self) -> Tally:
        loop = asyncio.get_running_loop()
        order = self._order
        connections = [
            (await loop.create_connection(lambda: Connection(self._answered, self._gone), order.host, order.port))[1]
            for _ in range(order.connections)
        ]
        used, began = time.process_time(), time.perf_counter()
        self._ends = began + order.seconds
        for connection in connections:
            self._send(connection)
        await asyncio.sleep(order.seconds)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        # From here on nothing is counted: what is still under way is cut off, as by wrk.
        count, lost = len(self._latencies), self._lost
        for connection in connections:
            connection.close()
        ordered = sorted(self._latencies[:count])
        p50, p99 = (percentile(ordered, part) * 1e3 for part in (0.50, 0.99))
        return Tally(count, seconds, self._refused, lost, p50, p99, used)

    def _send(self, connection: Connection) -> None:
        connection.began = time.perf_counter()
        connection.send(next(self._requests))

    def _answered(self, connection: Connection, status: int) -> None:
        now = time.perf_counter()
        self._latencies.append(now - connection.began)
        self._refused += not 200 <= status < 300
        if now < self._ends:
            self._send(connection)

    def _gone(self, connection: Connection) -> None:
        self._lost += 1


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(Generator(order).run())))


if __name__ == "__main__":
    main()
