"""How long and how often to measure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class BenchError(Exception):
    """The benchmark cannot run, or a result is not what it must be."""


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    rounds: int
    rows: int

    @property
    def warm_up_seconds(self) -> float:
        """Long enough to open connections, prepare statements and fill caches. Not measured."""
        return min(1.0, self.seconds)


def load_plan() -> Plan:
    return Plan(
        seconds=_read_positive("QD_BENCH_SECONDS", "8"),
        rounds=int(_read_positive("QD_BENCH_ROUNDS", "3")),
        rows=int(_read_positive("QD_BENCH_ROWS", "1000000")),
    )


def _read_positive(name: str, default: str) -> float:
    text = os.environ.get(name, default)
    try:
        value = float(text)
    except ValueError:
        raise BenchError(f"{name} is {text!r}. It must be a number.") from None
    if value < 1:
        raise BenchError(f"{name} is {text}. It must be at least 1.")
    return value
