"""`python -m bench.loadgen`: the generator for machines without wrk. Reads a `LoadConfig` and writes a `LoadResult`.

Closed loop: each connection sends its next request after the response to the last one.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.child_types import LoadConfig, LoadResult
from bench.raw_http import Connection, cycle_requests, percentile


class LoadGenerator:
    def __init__(self, config: LoadConfig) -> None:
        self._config = config
        self._requests = cycle_requests(config)
        self._latencies: list[float] = []
        self._refused = 0
        self._lost = 0
        self._ends_at = 0.0

    async def run(self) -> LoadResult:
        loop = asyncio.get_running_loop()
        config = self._config
        connections = [
            (
                await loop.create_connection(
                    lambda: Connection(self._on_response, self._on_lost), config.host, config.port
                )
            )[1]
            for _ in range(config.connections)
        ]
        cpu_seconds, started_at = time.process_time(), time.perf_counter()
        self._ends_at = started_at + config.seconds
        for connection in connections:
            self._send(connection)
        await asyncio.sleep(config.seconds)
        seconds, cpu_seconds = time.perf_counter() - started_at, time.process_time() - cpu_seconds
        # Nothing is counted from here on. Requests in flight are dropped, as by wrk.
        count, lost = len(self._latencies), self._lost
        for connection in connections:
            connection.close()
        ordered = sorted(self._latencies[:count])
        p50, p99 = (percentile(ordered, fraction) * 1e3 for fraction in (0.50, 0.99))
        return LoadResult(count, seconds, self._refused, lost, p50, p99, cpu_seconds)

    def _send(self, connection: Connection) -> None:
        connection.started_at = time.perf_counter()
        connection.send(next(self._requests))

    def _on_response(self, connection: Connection, status: int) -> None:
        now = time.perf_counter()
        self._latencies.append(now - connection.started_at)
        self._refused += not 200 <= status < 300
        if now < self._ends_at:
            self._send(connection)

    def _on_lost(self, connection: Connection) -> None:
        self._lost += 1


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadConfig)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(LoadGenerator(config).run())))


if __name__ == "__main__":
    main()
