"""Spawns per second by number of connections: one caller needs a commit per spawn, many callers share one."""

from __future__ import annotations

from bench.results import Curve, Findings, Line, Point, Run
from bench.spawn_runner import SCENARIOS, Scenario, SpawnRunner
from bench.testbed import Testbed

CONNECTION_COUNTS = (1, 4, 16, 64, 256)


def measure(testbed: Testbed) -> Findings:
    lines: list[Line] = []
    curves: list[Curve] = []
    for scenario in SCENARIOS:
        lines_by_count = {
            number: Line(f"{scenario.name}, {number}", runs)
            for number, runs in _measure_scenario(testbed, scenario).items()
        }
        lines += lines_by_count.values()
        curves.append(Curve(scenario.name, [Point(number, line.rate) for number, line in lines_by_count.items()]))
    return Findings(
        "As connections grow from 1 to 256",
        lines=lines,
        curves=curves,
        axis="connections",
        notes=["Each number is measured twice, in rising and in falling order. Runs are half as long as others."],
    )


def _measure_scenario(testbed: Testbed, scenario: Scenario) -> dict[int, list[Run]]:
    runs: dict[int, list[Run]] = {}
    seconds = max(1.0, testbed.plan.seconds / 2)
    with testbed.start_fresh_server(scenario.engine) as target:
        spawn_runner = SpawnRunner(testbed, target)
        for number in [*CONNECTION_COUNTS, *reversed(CONNECTION_COUNTS)]:
            runs.setdefault(number, []).append(spawn_runner.run(scenario.zones, number, seconds))
    return runs
