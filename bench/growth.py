"""How spawns go on as the table of sessions grows, each size beside the control of its engine."""

from __future__ import annotations

import statistics

from bench.controls import control
from bench.filling import fill
from bench.results import Curve, Findings, Line, Point, Run
from bench.spawn import there_and_back
from bench.spawning import Spawning
from bench.stage import Stage, Target

SIZES = (0, 10_000, 100_000, 1_000_000)


def measure(stage: Stage) -> Findings:
    lines: list[Line] = []
    points: dict[str, list[Point]] = {}
    for size in (size for size in SIZES if size <= stage.plan.rows):
        for engine in ("PostgreSQL", "SQLite"):
            with stage.fresh(engine) as target:
                points.setdefault(engine, []).append(_at_size(stage, target, size, lines))
    return Findings(
        "As the table of sessions grows",
        lines=lines,
        curves=[Curve(f"{engine}, one hot zone", found) for engine, found in points.items()],
        axis="sessions in the table",
        notes=[
            "All the sessions are in the zone that is measured, half of them live and half ended, each with its "
            "events. The server prepares its statements before they are loaded, so a plan made for an empty table "
            "would show. A run adds the sessions it spawns: some ten thousand.",
            "The control's table is new for each of its runs: the ratio shows what our tables' size costs.",
        ],
    )


def _at_size(stage: Stage, target: Target, size: int, lines: list[Line]) -> Point:
    spawning = Spawning(stage, target)
    zone = spawning.new_zones(1)
    if size:
        fill(target, zone[0], size)
    ours, theirs = f"{target.engine}, {size:,} sessions", f"{target.engine}, the control beside it"
    runs: dict[str, list[Run]] = {}
    there_and_back([(theirs, lambda: control(stage, target)), (ours, lambda: spawning.run(zone))], runs)
    lines += [Line(name, runs[name]) for name in (ours, theirs)]
    rate, beside = (statistics.fmean(run.rate for run in runs[name]) for name in (ours, theirs))
    return Point(size, rate, rate / beside)
