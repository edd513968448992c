"""Writes the calls of one agent, one line per call. The agent may be killed at any moment, so each line is one write,
and a call that matters even without its response is also written before it is sent."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class PendingCall:
    """A call that has started."""

    seq: int
    op: str
    request: dict[str, object]
    started: float


class HistoryWriter:
    def __init__(self, file: Path, client: str, zone: str) -> None:
        self._client = client
        self._zone = zone
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)

    def begin(self, op: str, request: dict[str, object], *, write_ahead: bool = False) -> PendingCall:
        entry = PendingCall(next(self._numbers), op, request, _now())
        if write_ahead:
            self._write(entry, None, None, is_write_ahead=True)
        return entry

    def end(self, entry: PendingCall, status: int | None, response: object = None) -> None:
        self._write(entry, status, response)

    def _write(self, entry: PendingCall, status: int | None, response: object, *, is_write_ahead: bool = False) -> None:
        line: dict[str, object] = {
            "client": self._client,
            "seq": entry.seq,
            "started": entry.started,
            "ended": _now(),
            "op": entry.op,
            "zone": self._zone,
            "asked": entry.request,
            "status": status,
            "answer": response,
        }
        if is_write_ahead:
            line["before"] = True
        os.write(self._fd, msgspec.json.encode(line) + b"\n")


def _now() -> float:
    return time.time() * 1_000
