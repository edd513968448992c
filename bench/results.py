"""The results of measurements, in one format for all reports.

`.bench/results.json` has one `Part` per measurement, with its time, commit and length. Repeating a measurement replaces
its part and keeps the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.plan import ROOT
from bench.raw_http import percentile

RESULTS_FILE = ROOT / ".bench" / "results.json"


class Run(msgspec.Struct, frozen=True):
    """One run. Shares are of the complete machine: 1.0 is all cores."""

    rate: float
    """Per second."""
    count: int
    seconds: float
    server_us: float | None = None
    """CPU time of the server per request, in microseconds."""
    server: float | None = None
    postgres: float | None = None
    load: float | None = None
    idle: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    per_commit: float | None = None
    """Commands per transaction, on average."""


class Line(msgspec.Struct, frozen=True):
    """The runs of one scenario."""

    name: str
    runs: list[Run]

    def median(self, field: str = "rate") -> float | None:
        values = [value for run in self.runs if (value := getattr(run, field)) is not None]
        return statistics.median(values) if values else None

    @property
    def rate(self) -> float:
        return statistics.median(run.rate for run in self.runs)


class Figure(msgspec.Struct, frozen=True):
    """A number and its target. There is one value per round; the verdict uses the median."""

    name: str
    values: list[float]
    unit: str
    """`×` for ratios."""
    mark: float | None = None
    """The target. None: the number is only reported."""
    goal: float | None = None
    """A better value than the target."""
    at_most: bool = False
    """Whether lower is better."""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        if self.mark is None:
            return "reported"
        if self.goal is not None and self._reaches(self.goal):
            return "goal reached"
        return "met" if self._reaches(self.mark) else "missed"

    def _reaches(self, threshold: float) -> bool:
        return self.value <= threshold if self.at_most else self.value >= threshold


class Point(msgspec.Struct, frozen=True):
    x: float
    rate: float
    ratio: float | None = None
    """To the control, if there is one."""


class Curve(msgspec.Struct, frozen=True):
    name: str
    points: list[Point]


class Part(msgspec.Struct, frozen=True):
    title: str
    at: str
    commit: str
    seconds: float
    rounds: int
    lines: list[Line] = []
    figures: list[Figure] = []
    curves: list[Curve] = []
    axis: str = ""
    """The label of the x axis."""
    notes: list[str] = []


class Findings(msgspec.Struct, frozen=True):
    """The result of a measurement. `__main__` adds the time and the commit."""

    title: str
    lines: list[Line] = []
    figures: list[Figure] = []
    curves: list[Curve] = []
    axis: str = ""
    notes: list[str] = []


class Results(msgspec.Struct):
    machine: dict[str, str] = {}
    parts: dict[str, Part] = {}


def read_results(file: Path = RESULTS_FILE) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else Results()


def write_results(results: Results, file: Path = RESULTS_FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def round_ratios(measured: Sequence[Run], control: Sequence[Run], rounds: int, field: str = "rate") -> list[float]:
    """For each round: the mean of the measured runs divided by the mean of the control runs."""
    measured_rounds, control_rounds = _split_rounds(measured, rounds), _split_rounds(control, rounds)
    return [_mean(a, field) / _mean(b, field) for a, b in zip(measured_rounds, control_rounds, strict=True)]


def _mean(runs: Sequence[Run], field: str) -> float:
    return statistics.fmean(getattr(run, field) for run in runs)


def _split_rounds(runs: Sequence[Run], rounds: int) -> list[Sequence[Run]]:
    runs_per_round = len(runs) // rounds
    return [runs[i * runs_per_round : (i + 1) * runs_per_round] for i in range(rounds)]


def latency_run(times: list[float]) -> Run:
    """The run of calls that were made one after another, from their sorted times in seconds."""
    return Run(
        rate=1 / statistics.fmean(times),
        count=len(times),
        seconds=sum(times),
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
    )
