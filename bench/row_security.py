"""The cost of row-level security: spawns with it and without it, on the same tables in the same run.

Two servers use one database. One is a normal server. The other (`bench.no_row_security`) sets no zones and works only
while the policies of the tables are disabled. They are loaded in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from bench.results import Figure, Findings, Line, Run, round_ratios
from bench.spawn import run_forth_and_back
from bench.spawn_runner import MANY_ZONES, SpawnRunner
from bench.testbed import Testbed
from tests.support.pg_catalog import read_zone_tables

UNPROTECTED_PROGRAM = ("bench.no_row_security", "up")
MIN_RATIO = 0.85
WITH_HOT, WITHOUT_HOT = "with row-level security, one hot zone", "without, one hot zone"
WITH_MANY, WITHOUT_MANY = f"with row-level security, {MANY_ZONES} zones", f"without, {MANY_ZONES} zones"


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        _run_round(testbed, runs)
    rounds = testbed.plan.rounds
    return Findings(
        "The cost of row-level security",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            Figure("Spawns with row-level security / without, one hot zone",
                   round_ratios(runs[WITH_HOT], runs[WITHOUT_HOT], rounds), "×", MIN_RATIO),
            Figure(f"Spawns with row-level security / without, {MANY_ZONES} zones",
                   round_ratios(runs[WITH_MANY], runs[WITHOUT_MANY], rounds), "×", MIN_RATIO),
        ],
        notes=[
            "“Without” is a server that does not set its zones, on the same tables with their policies disabled. Runs "
            "are half as long as others.",
        ],
    )  # fmt: skip


def _run_round(testbed: Testbed, runs: dict[str, list[Run]]) -> None:
    with testbed.new_database() as database, testbed.start_server(database) as protected:
        set_row_security(database, "disable")
        with testbed.start_server(database, UNPROTECTED_PROGRAM) as unprotected:
            seconds = max(1.0, testbed.plan.seconds / 2)
            unprotected_runner = SpawnRunner(testbed, unprotected)
            set_row_security(database, "enable")
            protected_runner = SpawnRunner(testbed, protected, "protected")

            def with_policies(runner: SpawnRunner, state: str, zones: int) -> Callable[[], Run]:
                def run_spawns() -> Run:
                    set_row_security(database, state)
                    return runner.run(zones, seconds=seconds)

                return run_spawns

            run_forth_and_back(
                [
                    (WITH_HOT, with_policies(protected_runner, "enable", 1)),
                    (WITHOUT_HOT, with_policies(unprotected_runner, "disable", 1)),
                    (WITH_MANY, with_policies(protected_runner, "enable", MANY_ZONES)),
                    (WITHOUT_MANY, with_policies(unprotected_runner, "disable", MANY_ZONES)),
                ],
                runs,
            )


def set_row_security(database: str, state: str) -> None:
    """Set the row-level security of all tables with zones. `state` is `enable` or `disable`."""
    with psycopg.connect(database) as owner:
        for table in read_zone_tables(database):
            owner.execute(
                sql.SQL("alter table {} {} row level security").format(sql.Identifier(table.name), sql.SQL(state))
            )
