"""How long and how often is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class BenchError(Exception):
    """A sentence about what cannot be measured, or was not what it should be."""


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    rounds: int
    rows: int

    @property
    def warm_up_seconds(self) -> float:
        """Long enough for connections, prepared statements and caches to be there; never counted."""
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
        raise BenchError(f"{name} is {text!r}, which is not a number.") from None
    if value < 1:
        raise BenchError(f"{name} is {text}: less than 1 measures nothing.")
    return value
