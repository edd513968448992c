"""How spawns go on as the table of sessions grows, each size beside the control of its engine."""

from __future__ import annotations

import statistics

from bench.controls import run_control
from bench.results import Curve, Findings, Line, Point, Run
from bench.spawn import run_forth_and_back
from bench.spawn_runner import SpawnRunner
from bench.table_fill import fill_sessions
from bench.testbed import Target, Testbed

SIZES = (0, 10_000, 100_000, 1_000_000)


def measure(testbed: Testbed) -> Findings:
    lines: list[Line] = []
    points: dict[str, list[Point]] = {}
    for size in (size for size in SIZES if size <= testbed.plan.rows):
        for engine in ("PostgreSQL", "SQLite"):
            with testbed.start_fresh_server(engine) as target:
                points.setdefault(engine, []).append(_measure_size(testbed, target, size, lines))
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


def _measure_size(testbed: Testbed, target: Target, size: int, lines: list[Line]) -> Point:
    spawn_runner = SpawnRunner(testbed, target)
    zones = spawn_runner.new_zones(1)
    if size:
        fill_sessions(target, zones[0], size)
    spawn_name, control_name = f"{target.engine}, {size:,} sessions", f"{target.engine}, the control beside it"
    runs: dict[str, list[Run]] = {}
    run_forth_and_back(
        [(control_name, lambda: run_control(testbed, target)), (spawn_name, lambda: spawn_runner.run(zones))], runs
    )
    lines += [Line(name, runs[name]) for name in (spawn_name, control_name)]
    rate, control_rate = (statistics.fmean(run.rate for run in runs[name]) for name in (spawn_name, control_name))
    return Point(size, rate, rate / control_rate)
