"""`python -m bench.stream_reader`: reads a Redis stream. Reads a `ReaderConfig` and writes a `DeliveryResult`.

The process waits in XREAD and ends when all entries of the run have arrived. Latency runs from the event's `at`, which
the database's clock set inside the transaction, until this process has received the entry. It includes the rest of the
transaction and its commit.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from datetime import datetime
from typing import cast

import msgspec
import redis

from bench.child_types import DeliveryResult, ReaderConfig
from bench.raw_http import percentile
from quarterdeck.bus.redis.stream_entries import SIGNATURE, sign

LAST_ENTRY_SECONDS = 10.0
BLOCK_MS = 500
Fields = dict[str, str]


class StreamReader:
    def __init__(self, config: ReaderConfig) -> None:
        self._config = config
        self._client: redis.Redis = redis.Redis.from_url(config.redis_url, decode_responses=True, protocol=2)
        self._client.ping()
        self._entries: list[tuple[float, Fields]] = []

    def run(self) -> DeliveryResult:
        print("ready", flush=True)
        cpu_started_at, started_at = time.process_time(), time.perf_counter()
        deadline = started_at + self._config.seconds + LAST_ENTRY_SECONDS
        last_id = self._config.after_id
        while len(self._entries) < self._config.count and time.perf_counter() < deadline:
            entries = self._read_after(last_id)
            now = time.time()
            last_id = entries[-1][0] if entries else last_id
            self._entries += [(now, fields) for _, fields in entries]
        return self._to_result(time.perf_counter() - started_at, time.process_time() - cpu_started_at)

    def _read_after(self, last_id: str) -> list[tuple[str, Fields]]:
        """The entries after an id. Waits up to `BLOCK_MS` if there are none."""
        response = self._client.xread({self._config.stream: last_id}, block=BLOCK_MS)
        streams = cast("list[tuple[str, list[tuple[str, Fields]]]]", response or [])
        return [entry for _, entries in streams for entry in entries]

    def _to_result(self, seconds: float, cpu_seconds: float) -> DeliveryResult:
        latencies = sorted(now - datetime.fromisoformat(fields["at"]).timestamp() for now, fields in self._entries)
        return DeliveryResult(
            count=len(latencies),
            seconds=seconds,
            refused=self._count_errors(),
            lost=self._config.count - len(latencies),
            cpu_seconds=cpu_seconds,
            p50_ms=percentile(latencies, 0.5) * 1e3,
            p99_ms=percentile(latencies, 0.99) * 1e3,
            max_ms=latencies[-1] * 1e3 if latencies else 0.0,
        )

    def _count_errors(self) -> int:
        """Count entries of other events, with wrong signatures, missing, duplicated or out of order.

        Nothing else is committed during the run, so the positions have no gaps.
        """
        all_fields = [fields for _, fields in self._entries]
        gaps = sum(int(b["pos"]) != int(a["pos"]) + 1 for a, b in itertools.pairwise(all_fields))
        return gaps + sum(not self._is_valid(fields) for fields in all_fields)

    def _is_valid(self, fields: Fields) -> bool:
        config = self._config
        is_signed = fields.get(SIGNATURE) == sign(config.signing_key.encode(), config.stream, fields)
        return is_signed and fields["event"] == "spawn" and fields["zone_id"] == config.zone


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReaderConfig)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(StreamReader(config).run()))


if __name__ == "__main__":
    main()
