"""Invocations enqueued over HTTP, beside what the databases do by themselves: control, calls, calls, control."""

from __future__ import annotations

from bench.controls import control
from bench.enqueuing import CONNECTIONS, Enqueuing
from bench.results import Figure, Findings, Line, Run, ratios
from bench.spawn import INSERTS, SQLITE_COMMITS, there_and_back
from bench.stage import Stage

LEAST, GOAL = 0.5, 0.8
CALLS = f"invocations over HTTP, {CONNECTIONS} connections, one hot zone, one service"
SQLITE_CALLS = f"{CALLS}, SQLite"


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        _round(stage, "PostgreSQL", (INSERTS, CALLS), runs)
        _round(stage, "SQLite", (SQLITE_COMMITS, SQLITE_CALLS), runs)

    def over(measured: str, beside: str) -> list[float]:
        return ratios(runs[measured], runs[beside], stage.plan.rounds)

    return Findings(
        "Invocations enqueued over HTTP, beside the databases by themselves",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            Figure("Invocations, PostgreSQL / one-row inserts", over(CALLS, INSERTS), "×", LEAST, GOAL),
            Figure("Invocations, SQLite / its own one-row commits", over(SQLITE_CALLS, SQLITE_COMMITS), "×"),
        ],
        notes=[
            "Every call has an idempotency key of its own, which is looked for, and writes an invocation and an event; "
            "it is answered after a durable commit. Nobody serves the service.",
            "After each run the database must hold every call that was acknowledged, waiting, with its event and no "
            "other, and at most one more per connection.",
        ],
    )  # fmt: skip


def _round(stage: Stage, engine: str, names: tuple[str, str], runs: dict[str, list[Run]]) -> None:
    beside, measured = names
    with stage.fresh(engine) as target:
        enqueuing = Enqueuing(stage, target)
        there_and_back([(beside, lambda: control(stage, target)), (measured, enqueuing.run)], runs)
