"""`python -m bench.openloop`: sends at a fixed rate. Reads a `LoadConfig` and writes an `OpenLoopResult`.

The time at which each request is due is fixed before the first is sent, and latency runs from that time to the last
byte of the response. While a server stalls, a closed loop would send nothing (“coordinated omission”). Here the
requests that become due wait for a connection, and their wait counts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import deque

import msgspec
import uvloop

from bench.child_types import LoadConfig, OpenLoopResult
from bench.raw_http import Connection, cycle_requests, percentile

LEAD_SECONDS = 0.2
TIMER_RESOLUTION_SECONDS = 0.001
LAST_RESPONSE_SECONDS = 10.0


class OpenLoopSender:
    def __init__(self, config: LoadConfig) -> None:
        assert config.rate is not None
        self._config = config
        self._rate = config.rate
        self._total = int(config.rate * config.seconds)
        self._requests = cycle_requests(config)
        self._free_connections: deque[Connection] = deque()
        self._waiting_due_times: deque[float] = deque()
        self._started_at = 0.0
        self._due_count = 0
        self._latencies: list[float] = []
        self._send_delays: list[float] = []
        self._waited_count = 0
        self._refused_count = 0
        self._lost_count = 0
        self._done = asyncio.Event()

    async def run(self) -> OpenLoopResult:
        loop = asyncio.get_running_loop()
        for _ in range(self._config.connections):
            _, connection = await loop.create_connection(
                lambda: Connection(self._on_response, self._on_lost), self._config.host, self._config.port
            )
            self._free_connections.append(connection)
        connections = list(self._free_connections)
        cpu_seconds = time.process_time()
        self._started_at = time.perf_counter() + LEAD_SECONDS
        loop.call_later(LEAD_SECONDS, self._send_due)
        try:
            await asyncio.wait_for(self._done.wait(), LEAD_SECONDS + self._config.seconds + LAST_RESPONSE_SECONDS)
        except TimeoutError:
            self._lost_count += self._total - len(self._latencies)
        seconds, cpu_seconds = time.perf_counter() - self._started_at, time.process_time() - cpu_seconds
        lost = self._lost_count
        for connection in connections:
            connection.close()
        return self._to_result(seconds, lost, cpu_seconds)

    def _send_due(self) -> None:
        """Send the requests that are due, and schedule the next call.

        The delay is at least the timer's resolution: the event loop treats a shorter one as none, and a busy loop would
        take CPU from the measured server.
        """
        now = time.perf_counter()
        while self._due_count < self._total and (due := self._started_at + self._due_count / self._rate) <= now:
            self._due_count += 1
            if self._free_connections:
                self._send_delays.append(now - due)
                self._send(self._free_connections.popleft(), due)
            else:
                self._waited_count += 1
                self._waiting_due_times.append(due)
        if self._due_count < self._total:
            next_due = self._started_at + self._due_count / self._rate
            asyncio.get_running_loop().call_later(
                max(TIMER_RESOLUTION_SECONDS, next_due - time.perf_counter()), self._send_due
            )

    def _send(self, connection: Connection, due: float) -> None:
        connection.started_at = due
        connection.send(next(self._requests))

    def _on_response(self, connection: Connection, status: int) -> None:
        self._latencies.append(time.perf_counter() - connection.started_at)
        self._refused_count += not 200 <= status < 300
        if self._waiting_due_times:
            self._send(connection, self._waiting_due_times.popleft())
        else:
            self._free_connections.append(connection)
        if len(self._latencies) == self._total:
            self._done.set()

    def _on_lost(self, connection: Connection) -> None:
        self._lost_count += 1

    def _to_result(self, seconds: float, lost: int, cpu_seconds: float) -> OpenLoopResult:
        ordered, send_delays = sorted(self._latencies), sorted(self._send_delays)
        return OpenLoopResult(
            count=len(ordered),
            seconds=seconds,
            refused=self._refused_count,
            lost=lost,
            cpu_seconds=cpu_seconds,
            p50_ms=percentile(ordered, 0.5) * 1e3,
            p99_ms=percentile(ordered, 0.99) * 1e3,
            p999_ms=percentile(ordered, 0.999) * 1e3,
            max_ms=ordered[-1] * 1e3 if ordered else 0.0,
            late_p99_ms=percentile(send_delays, 0.99) * 1e3,
            waited=self._waited_count,
        )


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadConfig)
    # A pause of the sender's garbage collector would be measured as latency of the server.
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(config))))


async def _run(config: LoadConfig) -> OpenLoopResult:
    return await OpenLoopSender(config).run()


if __name__ == "__main__":
    main()
