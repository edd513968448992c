"""Invocations enqueued over HTTP, beside what the databases do by themselves: control, calls, calls, control."""

from __future__ import annotations

from bench.controls import run_control
from bench.enqueue_runner import CONNECTIONS, EnqueueRunner
from bench.results import Figure, Findings, Line, Run, round_ratios
from bench.spawn import INSERTS, SQLITE_COMMITS, run_forth_and_back
from bench.testbed import Testbed

MIN_RATIO, GOAL_RATIO = 0.5, 0.8
ENQUEUE = f"invocations over HTTP, {CONNECTIONS} connections, one hot zone, one service"
SQLITE_ENQUEUE = f"{ENQUEUE}, SQLite"


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        _round(testbed, "PostgreSQL", (INSERTS, ENQUEUE), runs)
        _round(testbed, "SQLite", (SQLITE_COMMITS, SQLITE_ENQUEUE), runs)

    def ratio_values(measured: str, control: str) -> list[float]:
        return round_ratios(runs[measured], runs[control], testbed.plan.rounds)

    return Findings(
        "Invocations enqueued over HTTP, beside the databases by themselves",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            Figure("Invocations, PostgreSQL / one-row inserts", ratio_values(ENQUEUE, INSERTS), "×", MIN_RATIO, GOAL_RATIO),
            Figure("Invocations, SQLite / its own one-row commits", ratio_values(SQLITE_ENQUEUE, SQLITE_COMMITS), "×"),
        ],
        notes=[
            "Every call has an idempotency key of its own, which is looked for, and writes an invocation and an event; "
            "it is answered after a durable commit. Nobody serves the service.",
            "After each run the database must hold every call that was acknowledged, waiting, with its event and no "
            "other, and at most one more per connection.",
        ],
    )  # fmt: skip


def _round(testbed: Testbed, engine: str, names: tuple[str, str], runs: dict[str, list[Run]]) -> None:
    control_name, enqueue_name = names
    with testbed.start_fresh_server(engine) as target:
        enqueue_runner = EnqueueRunner(testbed, target)
        run_forth_and_back(
            [(control_name, lambda: run_control(testbed, target)), (enqueue_name, enqueue_runner.run)], runs
        )
