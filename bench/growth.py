"""Spawns per second by size of the sessions table, compared with the control of each engine."""

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
        "As the sessions table grows",
        lines=lines,
        curves=[Curve(f"{engine}, one hot zone", engine_points) for engine, engine_points in points.items()],
        axis="sessions in the table",
        notes=[
            "All sessions are in the measured zone, half of them live and half terminated, each with its events. The "
            "server prepares its statements before they are inserted, so a plan for an empty table would show. A run "
            "adds the sessions it spawns: about 10,000.",
            "The control uses a new table for each run, so the ratio shows the cost of the table's size.",
        ],
    )


def _measure_size(testbed: Testbed, target: Target, size: int, lines: list[Line]) -> Point:
    spawn_runner = SpawnRunner(testbed, target)
    zones = spawn_runner.new_zones(1)
    if size:
        fill_sessions(target, zones[0], size)
    spawn_name, control_name = f"{target.engine}, {size:,} sessions", f"{target.engine}, its control"
    runs: dict[str, list[Run]] = {}
    run_forth_and_back(
        [(control_name, lambda: run_control(testbed, target)), (spawn_name, lambda: spawn_runner.run(zones))], runs
    )
    lines += [Line(name, runs[name]) for name in (spawn_name, control_name)]
    rate, control_rate = (statistics.fmean(run.rate for run in runs[name]) for name in (spawn_name, control_name))
    return Point(size, rate, rate / control_rate)
