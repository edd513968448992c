"""`python -m bench.readers`: one reader of a Redis stream. A `ReadOrder` comes in, a `LiveTally` goes out.

Waits in XREAD for what comes next, and ends when every entry of the run has come. Latency is taken from the event's own
`at`, which the database's clock gave while the transaction was still under way, to the moment this process has the
entry in its hands: the rest of the transaction and its commit are in it.
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

from bench.orders import LiveTally, ReadOrder
from bench.wire import percentile
from quarterdeck.bus.redis.stream_entries import SIGNATURE, sign

LAST_ENTRY_SECONDS = 10.0
BLOCK_MS = 500
Fields = dict[str, str]


class Reader:
    def __init__(self, order: ReadOrder) -> None:
        self._order = order
        self._client: redis.Redis = redis.Redis.from_url(order.redis, decode_responses=True, protocol=2)
        self._client.ping()
        self._entries: list[tuple[float, Fields]] = []

    def run(self) -> LiveTally:
        print("ready", flush=True)
        used, began = time.process_time(), time.perf_counter()
        latest = began + self._order.seconds + LAST_ENTRY_SECONDS
        last = self._order.after
        while len(self._entries) < self._order.count and time.perf_counter() < latest:
            found = self._after(last)
            now = time.time()
            last = found[-1][0] if found else last
            self._entries += [(now, fields) for _, fields in found]
        return self._tally(time.perf_counter() - began, time.process_time() - used)

    def _after(self, last: str) -> list[tuple[str, Fields]]:
        """What follows an entry; waits if there is nothing yet."""
        answer = self._client.xread({self._order.stream: last}, block=BLOCK_MS)
        found = cast("list[tuple[str, list[tuple[str, Fields]]]]", answer or [])
        return [entry for _, entries in found for entry in entries]

    def _tally(self, seconds: float, used: float) -> LiveTally:
        latencies = sorted(now - datetime.fromisoformat(fields["at"]).timestamp() for now, fields in self._entries)
        return LiveTally(
            count=len(latencies),
            seconds=seconds,
            refused=self._wrong(),
            lost=self._order.count - len(latencies),
            cpu_seconds=used,
            p50_ms=percentile(latencies, 0.5) * 1e3,
            p99_ms=percentile(latencies, 0.99) * 1e3,
            max_ms=latencies[-1] * 1e3 if latencies else 0.0,
        )

    def _wrong(self) -> int:
        """What is of something else or signed by somebody else, and what is missing, doubled or out of order: nothing
        else is committed meanwhile, so the positions follow on each other."""
        every = [fields for _, fields in self._entries]
        follows = sum(int(b["pos"]) != int(a["pos"]) + 1 for a, b in itertools.pairwise(every))
        return follows + sum(not self._is_right(fields) for fields in every)

    def _is_right(self, fields: Fields) -> bool:
        order = self._order
        signed = fields.get(SIGNATURE) == sign(order.key.encode(), order.stream, fields)
        return signed and fields["event"] == "spawn" and fields["zone_id"] == order.zone


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReadOrder)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(Reader(order).run()))


if __name__ == "__main__":
    main()
