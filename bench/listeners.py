"""`python -m bench.listeners`: so many event streams on one zone. An `Order` comes in, a `LiveTally` goes out.

Says `ready` when every stream is open, and ends when each has received every event of the run. Latency is taken from
the event's own `at`, which the database's clock gave while the transaction was still under way, to the moment this
process has the event in its hands. So it holds the rest of the transaction, its commit, up to a millisecond by which
`at` is rounded down, and the time in which this process reads the sockets that stand before this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

import msgspec
import uvloop

from bench.orders import LiveTally, Order
from bench.wire import encoded, percentile

EVENT = re.compile(rb'id: (\d+)\nevent: session\.spawn\ndata: [^\n]*"at":"([^"]+)"\}\n\n')
OPENED = re.compile(rb"HTTP/1\.1 200 .*?\r\n\r\n.*?id: (\d+)\n\n", re.DOTALL)
LAST_EVENT_SECONDS = 10.0


@lru_cache(maxsize=4096)
def _instant(text: bytes) -> float:
    return datetime.fromisoformat(text.decode()).timestamp()


@lru_cache(maxsize=64)
def _read(data: bytes) -> tuple[tuple[tuple[int, float], ...], int]:
    """The events within, and where the last of them ends. Every stream gets the same bytes: they are read once."""
    found = list(EVENT.finditer(data))
    return tuple((int(one[1]), _instant(one[2])) for one in found), found[-1].end() if found else 0


class Listener(asyncio.Protocol):
    def __init__(self, asking: bytes, heard: Callable[[Listener, list[float]], None]) -> None:
        self._asking = asking
        self._heard = heard
        self._rest = b""
        self._position: int | None = None
        self.is_open = asyncio.get_running_loop().create_future()
        self.count = 0
        self.wrong = 0
        self.lost = False

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]  # TCP has no other
        transport.write(self._asking)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        data = self._rest + data if self._rest else data
        if self._position is None:
            opened = OPENED.match(data)
            if opened is None:
                self._rest = data
                return
            self._position = int(opened[1])
            self.is_open.set_result(None)
            data = data[opened.end() :]
        events, end = _read(data)
        self._rest = data[end:]
        for position, _ in events:
            # Nothing else is committed meanwhile: whatever is missing, doubled or out of order shows here.
            self.wrong += position != self._position + 1
            self._position = position
        self.count += len(events)
        if events:
            self._heard(self, [now - at for _, at in events])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.is_open.done():
            self.is_open.set_exception(ConnectionError("a stream was refused"))


class Listeners:
    def __init__(self, order: Order) -> None:
        assert order.rate is not None
        self._order = order
        self._expected = int(order.rate * order.seconds)
        self._latencies: list[float] = []
        self._waiting = order.connections
        self._done = asyncio.Event()

    async def run(self) -> LiveTally:
        loop = asyncio.get_running_loop()
        [asking] = encoded(self._order)
        asking = asking.replace(b"\r\n\r\n", b"\r\naccept: text/event-stream\r\n\r\n")
        everyone = []
        for _ in range(self._order.connections):
            _, listener = await loop.create_connection(
                lambda: Listener(asking, self._heard), self._order.host, self._order.port
            )
            await listener.is_open
            everyone.append(listener)
        print("ready", flush=True)
        used, began = time.process_time(), time.perf_counter()
        # Who heard less than there was when the time is over is counted as lost.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), self._order.seconds + LAST_EVENT_SECONDS)
        return self._tally(everyone, time.perf_counter() - began, time.process_time() - used)

    def _heard(self, listener: Listener, latencies: list[float]) -> None:
        self._latencies += latencies
        if listener.count == self._expected:
            self._waiting -= 1
            if not self._waiting:
                self._done.set()

    def _tally(self, everyone: list[Listener], seconds: float, used: float) -> LiveTally:
        ordered = sorted(self._latencies)
        return LiveTally(
            count=len(ordered),
            seconds=seconds,
            refused=sum(listener.wrong for listener in everyone),
            lost=sum(listener.lost or listener.count != self._expected for listener in everyone),
            cpu_seconds=used,
            p50_ms=percentile(ordered, 0.5) * 1e3,
            p99_ms=percentile(ordered, 0.99) * 1e3,
            max_ms=ordered[-1] * 1e3 if ordered else 0.0,
        )


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    gc.disable()
    tally = uvloop.run(_listen(order))
    sys.stdout.buffer.write(msgspec.json.encode(tally))


async def _listen(order: Order) -> LiveTally:
    return await Listeners(order).run()


if __name__ == "__main__":
    main()
