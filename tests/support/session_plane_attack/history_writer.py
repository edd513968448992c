"""Writes the calls of clients, one line per call."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class HistoryLine:
    client: str
    op: str
    zone: str
    request: dict[str, object]
    session: str | None = None


class HistoryWriter:
    """One file, and so one clock, for all clients of a process. It is complete after `close`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: Counter[tuple[str, int | None, str]] = Counter()
        """By operation, status and code."""
        self._out = file.open("wb")
        self._seqs: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.counts.total()

    def count_calls(self, op: str, *statuses: int | None, error: str | None = None) -> int:
        return sum(
            count
            for (recorded_op, status, code), count in self.counts.items()
            if recorded_op == op and status in statuses and error in (None, code)
        )

    def write(self, line: HistoryLine, started: float, status: int | None, response: object) -> None:
        self._seqs[line.client] += 1
        entry = {
            "client": line.client,
            "seq": self._seqs[line.client],
            "started": started,
            "ended": now_ms(),
            "op": line.op,
            "zone": line.zone,
            "session": line.session,
            "asked": line.request,
            "status": status,
            "answer": response,
        }
        self._out.write(msgspec.json.encode(entry) + b"\n")
        code = response.get("error") if isinstance(response, dict) else None
        self.counts[line.op, status, code if isinstance(code, str) else ""] += 1

    def close(self) -> None:
        self._out.close()


def now_ms() -> float:
    return time.time() * 1_000
