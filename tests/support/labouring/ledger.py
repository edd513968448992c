"""What one agent writes down, one line a call. It may be killed at any moment: each line is one write, and what matters
even if it dies in the middle of a call is written before the call as well."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class Entry:
    """A call that has begun."""

    seq: int
    op: str
    asked: dict[str, object]
    started: float


class Ledger:
    def __init__(self, file: Path, client: str, zone: str) -> None:
        self._client = client
        self._zone = zone
        self._out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)

    def begin(self, op: str, asked: dict[str, object], *, before: bool = False) -> Entry:
        entry = Entry(next(self._numbers), op, asked, _now())
        if before:
            self._write(entry, None, None, before=True)
        return entry

    def end(self, entry: Entry, status: int | None, answer: object = None) -> None:
        self._write(entry, status, answer)

    def _write(self, entry: Entry, status: int | None, answer: object, *, before: bool = False) -> None:
        line: dict[str, object] = {
            "client": self._client,
            "seq": entry.seq,
            "started": entry.started,
            "ended": _now(),
            "op": entry.op,
            "zone": self._zone,
            "asked": entry.asked,
            "status": status,
            "answer": answer,
        }
        if before:
            line["before"] = True
        os.write(self._out, msgspec.json.encode(line) + b"\n")


def _now() -> float:
    return time.time() * 1_000
