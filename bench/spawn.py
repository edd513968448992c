"""Spawns over HTTP, compared with the databases alone.

Each round has a new database and runs in both directions: control, row by row, hot zone, many zones, and back. On
SQLite it is control, spawns, spawns, control.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.controls import run_control, run_row_by_row_spawns
from bench.results import Figure, Findings, Line, Run, round_ratios
from bench.spawn_runner import MANY_ZONES, SpawnRunner
from bench.testbed import Testbed

INSERTS = "control: one-row inserts, pgbench, 32 clients"
ROW_BY_ROW = "control: the work of a spawn row by row, pgbench, 32 clients, one zone"
PIPELINED = "the same in two round trips (pipelined)"
HOT_ZONE = "spawns over HTTP, 64 connections, one hot zone"
MANY = f"spawns over HTTP, 64 connections, {MANY_ZONES} zones"
SQLITE_COMMITS = "control: one-row commits, synchronous = full"
SQLITE = "spawns over HTTP, 64 connections, one hot zone, SQLite"

Schedule = list[tuple[str, Callable[[], Run]]]


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        _run_postgres_round(testbed, runs)
        _run_sqlite_round(testbed, runs)

    def ratio_figure(name: str, measured: str, control: str, thresholds: tuple[float, float]) -> Figure:
        return Figure(name, round_ratios(runs[measured], runs[control], testbed.plan.rounds), "×", *thresholds)

    return Findings(
        "Spawns over HTTP, compared with the databases alone",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            ratio_figure("PostgreSQL, one hot zone / one-row inserts", HOT_ZONE, INSERTS, (0.4, 0.6)),
            ratio_figure("PostgreSQL, 64 zones / one-row inserts", MANY, INSERTS, (0.4, 0.6)),
            ratio_figure("PostgreSQL, one hot zone / the same work row by row", HOT_ZONE, ROW_BY_ROW, (6, 10)),
            ratio_figure("SQLite / its own one-row commits", SQLITE, SQLITE_COMMITS, (1.2, 2)),
        ],
        notes=[
            "Every spawn writes a session, three counters and an event. The response follows a durable commit (fsync "
            "on; SQLite in WAL mode with synchronous = full).",
            "After each run the database must hold every acknowledged spawn with its event and counters, and at most "
            "one more per connection, which was in flight when the generator stopped.",
            f"“{PIPELINED}” is the limit for one transaction per spawn if it also sent its statements in two round "
            "trips; the target is relative to the version without pipelining.",
        ],
    )  # fmt: skip


def _run_postgres_round(testbed: Testbed, runs: dict[str, list[Run]]) -> None:
    with testbed.start_fresh_server("PostgreSQL") as target:
        spawn_runner = SpawnRunner(testbed, target)

        def row_by_row(script: str) -> Run:
            return run_row_by_row_spawns(testbed, target, spawn_runner.new_zones(1)[0], script)

        schedule: Schedule = [
            (INSERTS, lambda: run_control(testbed, target)),
            (ROW_BY_ROW, lambda: row_by_row("spawn")),
            (PIPELINED, lambda: row_by_row("spawn_pipelined")),
            (HOT_ZONE, lambda: spawn_runner.run(1)),
            (MANY, lambda: spawn_runner.run(MANY_ZONES)),
        ]
        run_forth_and_back(schedule, runs)


def _run_sqlite_round(testbed: Testbed, runs: dict[str, list[Run]]) -> None:
    with testbed.start_fresh_server("SQLite") as target:
        spawn_runner = SpawnRunner(testbed, target)
        schedule: Schedule = [
            (SQLITE_COMMITS, lambda: run_control(testbed, target)),
            (SQLITE, lambda: spawn_runner.run(1)),
        ]
        run_forth_and_back(schedule, runs)


def run_forth_and_back(schedule: Schedule, runs: dict[str, list[Run]]) -> None:
    """Run A-B-B-A, or the same with more than two: a drift of the machine affects all equally."""
    for name, run in [*schedule, *reversed(schedule)]:
        runs.setdefault(name, []).append(run())
