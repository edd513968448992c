"""Spawns over HTTP beside what the databases do by themselves.

Each round has a fresh database and reads the same forwards and backwards: control, row by row, hot zone, many zones,
and back again; on SQLite control, spawns, spawns, control.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.controls import control, row_by_row_spawns
from bench.results import Figure, Findings, Line, Run, ratios
from bench.spawning import MANY_ZONES, Spawning
from bench.stage import Stage

INSERTS = "control: one-row inserts, pgbench, 32 clients"
ROW_BY_ROW = "control: the work of a spawn row by row, pgbench, 32 clients, one zone"
AT_ITS_BEST = "the same in two round trips (pipelined)"
HOT = "spawns over HTTP, 64 connections, one hot zone"
MANY = f"spawns over HTTP, 64 connections, {MANY_ZONES} zones"
SQLITE_COMMITS = "control: one-row commits, synchronous = full"
SQLITE = "spawns over HTTP, 64 connections, one hot zone, SQLite"

Order = list[tuple[str, Callable[[], Run]]]


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        _postgres_round(stage, runs)
        _sqlite_round(stage, runs)

    def over(name: str, measured: str, beside: str, asked: tuple[float, float]) -> Figure:
        return Figure(name, ratios(runs[measured], runs[beside], stage.plan.rounds), "×", *asked)

    return Findings(
        "Spawns over HTTP, beside the databases by themselves",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            over("PostgreSQL, one hot zone / one-row inserts", HOT, INSERTS, (0.4, 0.6)),
            over("PostgreSQL, 64 zones / one-row inserts", MANY, INSERTS, (0.4, 0.6)),
            over("PostgreSQL, one hot zone / the same work row by row", HOT, ROW_BY_ROW, (6, 10)),
            over("SQLite / its own one-row commits", SQLITE, SQLITE_COMMITS, (1.2, 2)),
        ],
        notes=[
            "Every spawn writes a session, three counts and an event, and is answered after a durable commit "
            "(fsync on; SQLite in WAL with synchronous = full).",
            "After each run the database must hold every spawn that was acknowledged, with its event and its counts, "
            "and at most one more per connection: those that were under way when the generator was cut off.",
            f"“{AT_ITS_BEST}” is what one transaction per spawn could reach if it, too, sent its statements in two "
            "round trips; the ratio asked for is to the plain spelling.",
        ],
    )  # fmt: skip


def _postgres_round(stage: Stage, runs: dict[str, list[Run]]) -> None:
    with stage.fresh("PostgreSQL") as target:
        spawning = Spawning(stage, target)

        def row_by_row(script: str) -> Run:
            return row_by_row_spawns(stage, target, spawning.new_zones(1)[0], script)

        order: Order = [
            (INSERTS, lambda: control(stage, target)),
            (ROW_BY_ROW, lambda: row_by_row("spawn")),
            (AT_ITS_BEST, lambda: row_by_row("spawn_pipelined")),
            (HOT, lambda: spawning.run(1)),
            (MANY, lambda: spawning.run(MANY_ZONES)),
        ]
        there_and_back(order, runs)


def _sqlite_round(stage: Stage, runs: dict[str, list[Run]]) -> None:
    with stage.fresh("SQLite") as target:
        spawning = Spawning(stage, target)
        order: Order = [(SQLITE_COMMITS, lambda: control(stage, target)), (SQLITE, lambda: spawning.run(1))]
        there_and_back(order, runs)


def there_and_back(order: Order, runs: dict[str, list[Run]]) -> None:
    """A-B-B-A, or its like for more than two: a drift of the machine falls on all alike."""
    for name, run in [*order, *reversed(order)]:
        runs.setdefault(name, []).append(run())
