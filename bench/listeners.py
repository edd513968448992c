"""`python -m bench.listeners`: event streams on one zone. Reads a `LoadConfig` and writes a `DeliveryResult`.

The process prints `ready` when all streams are open, and ends when each has received every event of the run. Latency
starts at the event's `at`, which the database's clock set inside the transaction, and ends when this process has
received the event. So it includes the rest of the transaction, its commit, up to a millisecond by which `at` is rounded
down, and the time in which this process reads the other sockets first.
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

from bench.child_types import DeliveryResult, LoadConfig
from bench.raw_http import encode_requests, percentile

EVENT_PATTERN = re.compile(rb'id: (\d+)\nevent: session\.spawn\ndata: [^\n]*"at":"([^"]+)"\}\n\n')
OPEN_PATTERN = re.compile(rb"HTTP/1\.1 200 .*?\r\n\r\n.*?id: (\d+)\n\n", re.DOTALL)
LAST_EVENT_SECONDS = 10.0


@lru_cache(maxsize=4096)
def _parse_time(text: bytes) -> float:
    return datetime.fromisoformat(text.decode()).timestamp()


@lru_cache(maxsize=64)
def _parse_events(data: bytes) -> tuple[tuple[tuple[int, float], ...], int]:
    """The events in the data, and the end of the last one. Cached, because all streams get the same bytes."""
    matches = list(EVENT_PATTERN.finditer(data))
    return tuple((int(match[1]), _parse_time(match[2])) for match in matches), matches[-1].end() if matches else 0


class Listener(asyncio.Protocol):
    def __init__(self, request: bytes, on_events: Callable[[Listener, list[float]], None]) -> None:
        self._request = request
        self._on_events = on_events
        self._buffer = b""
        self._position: int | None = None
        self.opened = asyncio.get_running_loop().create_future()
        self.count = 0
        self.out_of_order = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]  # TCP can write
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        data = self._buffer + data if self._buffer else data
        if self._position is None:
            head = OPEN_PATTERN.match(data)
            if head is None:
                self._buffer = data
                return
            self._position = int(head[1])
            self.opened.set_result(None)
            data = data[head.end() :]
        events, end = _parse_events(data)
        self._buffer = data[end:]
        for position, _ in events:
            # Nothing else is committed during the run, so a gap, a duplicate or a wrong order shows here.
            self.out_of_order += position != self._position + 1
            self._position = position
        self.count += len(events)
        if events:
            self._on_events(self, [now - at for _, at in events])

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("a stream was refused"))


class ListenerGroup:
    def __init__(self, config: LoadConfig) -> None:
        assert config.rate is not None
        self._config = config
        self._expected = int(config.rate * config.seconds)
        self._latencies: list[float] = []
        self._unfinished = config.connections
        self._done = asyncio.Event()

    async def run(self) -> DeliveryResult:
        loop = asyncio.get_running_loop()
        [request] = encode_requests(self._config)
        request = request.replace(b"\r\n\r\n", b"\r\naccept: text/event-stream\r\n\r\n")
        listeners = []
        for _ in range(self._config.connections):
            _, listener = await loop.create_connection(
                lambda: Listener(request, self._record_events), self._config.host, self._config.port
            )
            await listener.opened
            listeners.append(listener)
        print("ready", flush=True)
        cpu_started_at, started_at = time.process_time(), time.perf_counter()
        # A listener that has not received all events by the timeout counts as lost.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), self._config.seconds + LAST_EVENT_SECONDS)
        return self._to_result(listeners, time.perf_counter() - started_at, time.process_time() - cpu_started_at)

    def _record_events(self, listener: Listener, latencies: list[float]) -> None:
        self._latencies += latencies
        if listener.count == self._expected:
            self._unfinished -= 1
            if not self._unfinished:
                self._done.set()

    def _to_result(self, listeners: list[Listener], seconds: float, cpu_seconds: float) -> DeliveryResult:
        ordered = sorted(self._latencies)
        return DeliveryResult(
            count=len(ordered),
            seconds=seconds,
            refused=sum(listener.out_of_order for listener in listeners),
            lost=sum(listener.is_lost or listener.count != self._expected for listener in listeners),
            cpu_seconds=cpu_seconds,
            p50_ms=percentile(ordered, 0.5) * 1e3,
            p99_ms=percentile(ordered, 0.99) * 1e3,
            max_ms=ordered[-1] * 1e3 if ordered else 0.0,
        )


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=LoadConfig)
    gc.disable()
    result = uvloop.run(_run(config))
    sys.stdout.buffer.write(msgspec.json.encode(result))


async def _run(config: LoadConfig) -> DeliveryResult:
    return await ListenerGroup(config).run()


if __name__ == "__main__":
    main()
