"""`python -m bench.openloop`: sends at a fixed rate whatever happens. An `Order` comes in, an `OpenTally` goes out.

Each request is due at an instant that was fixed before the first was sent, and its latency runs from that instant to
the last byte of its answer. A server that stalls is not spared the requests that should have been sent meanwhile, as a
closed loop would spare it (“coordinated omission”): they wait for a connection, and their waiting counts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import deque

import msgspec
import uvloop

from bench.orders import OpenTally, Order
from bench.wire import Connection, in_turn, percentile

LEAD_SECONDS = 0.2
GRAIN_SECONDS = 0.001
LAST_ANSWER_SECONDS = 10.0


class Sender:
    def __init__(self, order: Order) -> None:
        assert order.rate is not None
        self._order = order
        self._rate = order.rate
        self._total = int(order.rate * order.seconds)
        self._requests = in_turn(order)
        self._free: deque[Connection] = deque()
        self._waiting: deque[float] = deque()
        self._began = 0.0
        self._due = 0
        self._latencies: list[float] = []
        self._late: list[float] = []
        self._waited = 0
        self._refused = 0
        self._lost = 0
        self._done = asyncio.Event()

    async def run(self) -> OpenTally:
        loop = asyncio.get_running_loop()
        for _ in range(self._order.connections):
            _, connection = await loop.create_connection(
                lambda: Connection(self._answered, self._gone), self._order.host, self._order.port
            )
            self._free.append(connection)
        everyone = list(self._free)
        used = time.process_time()
        self._began = time.perf_counter() + LEAD_SECONDS
        loop.call_later(LEAD_SECONDS, self._tick)
        try:
            await asyncio.wait_for(self._done.wait(), LEAD_SECONDS + self._order.seconds + LAST_ANSWER_SECONDS)
        except TimeoutError:
            self._lost += self._total - len(self._latencies)
        seconds, used = time.perf_counter() - self._began, time.process_time() - used
        lost = self._lost
        for connection in everyone:
            connection.close()
        return self._tally(seconds, lost, used)

    def _tick(self) -> None:
        """Sends what is due by now, and comes back when the next is.

        Never sooner than the timer's grain: a shorter wait is none at all to the loop, and a sender that spins takes
        the processor from the server it measures.
        """
        now = time.perf_counter()
        while self._due < self._total and (due := self._began + self._due / self._rate) <= now:
            self._due += 1
            if self._free:
                self._late.append(now - due)
                self._send(self._free.popleft(), due)
            else:
                self._waited += 1
                self._waiting.append(due)
        if self._due < self._total:
            following = self._began + self._due / self._rate
            asyncio.get_running_loop().call_later(max(GRAIN_SECONDS, following - time.perf_counter()), self._tick)

    def _send(self, connection: Connection, due: float) -> None:
        connection.began = due
        connection.send(next(self._requests))

    def _answered(self, connection: Connection, status: int) -> None:
        self._latencies.append(time.perf_counter() - connection.began)
        self._refused += not 200 <= status < 300
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)
        if len(self._latencies) == self._total:
            self._done.set()

    def _gone(self, connection: Connection) -> None:
        self._lost += 1

    def _tally(self, seconds: float, lost: int, used: float) -> OpenTally:
        ordered, late = sorted(self._latencies), sorted(self._late)
        return OpenTally(
            count=len(ordered),
            seconds=seconds,
            refused=self._refused,
            lost=lost,
            cpu_seconds=used,
            p50_ms=percentile(ordered, 0.5) * 1e3,
            p99_ms=percentile(ordered, 0.99) * 1e3,
            p999_ms=percentile(ordered, 0.999) * 1e3,
            max_ms=ordered[-1] * 1e3 if ordered else 0.0,
            late_p99_ms=percentile(late, 0.99) * 1e3,
            waited=self._waited,
        )


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    # A collector that stops the sender would be measured as the server's.
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_send(order))))


async def _send(order: Order) -> OpenTally:
    return await Sender(order).run()


if __name__ == "__main__":
    main()
