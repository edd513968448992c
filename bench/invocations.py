"""Invocations enqueued over HTTP, compared with the databases alone. The order is control, calls, calls, control."""

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
        _run_round(testbed, "PostgreSQL", (INSERTS, ENQUEUE), runs)
        _run_round(testbed, "SQLite", (SQLITE_COMMITS, SQLITE_ENQUEUE), runs)

    def ratio_values(measured: str, control: str) -> list[float]:
        return round_ratios(runs[measured], runs[control], testbed.plan.rounds)

    return Findings(
        "Invocations enqueued over HTTP, compared with the databases alone",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            Figure("Invocations, PostgreSQL / one-row inserts", ratio_values(ENQUEUE, INSERTS), "×", MIN_RATIO,
                   GOAL_RATIO),
            Figure("Invocations, SQLite / its own one-row commits", ratio_values(SQLITE_ENQUEUE, SQLITE_COMMITS), "×"),
        ],
        notes=[
            "Every call has its own idempotency key, which is looked up, and writes an invocation and an event. The "
            "response follows a durable commit. The service has no worker.",
            "After each run the database must hold every acknowledged call as pending with exactly one event, and at "
            "most one more call per connection.",
        ],
    )  # fmt: skip


def _run_round(testbed: Testbed, engine: str, names: tuple[str, str], runs: dict[str, list[Run]]) -> None:
    control_name, enqueue_name = names
    with testbed.start_fresh_server(engine) as target:
        enqueue_runner = EnqueueRunner(testbed, target)
        run_forth_and_back(
            [(control_name, lambda: run_control(testbed, target)), (enqueue_name, enqueue_runner.run)], runs
        )
