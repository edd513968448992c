"""How spawns grow with the number of connections: one caller pays a commit each, many share one."""

from __future__ import annotations

from bench.results import Curve, Findings, Line, Point, Run
from bench.spawning import SUBJECTS, Spawning, Subject
from bench.stage import Stage

NUMBERS = (1, 4, 16, 64, 256)


def measure(stage: Stage) -> Findings:
    lines: list[Line] = []
    curves: list[Curve] = []
    for subject in SUBJECTS:
        found = {number: Line(f"{subject.name}, {number}", runs) for number, runs in _runs(stage, subject).items()}
        lines += found.values()
        curves.append(Curve(subject.name, [Point(number, line.rate) for number, line in found.items()]))
    return Findings(
        "As connections grow from 1 to 256",
        lines=lines,
        curves=curves,
        axis="connections",
        notes=["Each number is measured twice, going up and coming down, for half as long as the other runs."],
    )


def _runs(stage: Stage, subject: Subject) -> dict[int, list[Run]]:
    runs: dict[int, list[Run]] = {}
    seconds = max(1.0, stage.plan.seconds / 2)
    with stage.fresh(subject.engine) as target:
        spawning = Spawning(stage, target)
        for number in [*NUMBERS, *reversed(NUMBERS)]:
            runs.setdefault(number, []).append(spawning.run(subject.zones, number, seconds))
    return runs
