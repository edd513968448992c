"""What row-level security costs: spawns with it, beside spawns without it, on the same tables in the same run.

Two servers stand on one database. One is as it is always; the other (`bench.unwalled`) names no zones, and works only
while the owner of the tables has switched their policies off. They are loaded in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from bench.results import Figure, Findings, Line, Run, ratios
from bench.spawn import there_and_back
from bench.spawning import MANY_ZONES, Spawning
from bench.stage import Stage
from tests.support.catalogue import zone_tables

UNWALLED = ("bench.unwalled", "up")
LEAST = 0.85
WITH_HOT, WITHOUT_HOT = "with row-level security, one hot zone", "without, one hot zone"
WITH_MANY, WITHOUT_MANY = f"with row-level security, {MANY_ZONES} zones", f"without, {MANY_ZONES} zones"


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        _round(stage, runs)
    rounds = stage.plan.rounds
    return Findings(
        "What row-level security costs",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            Figure("Spawns with row-level security / without, one hot zone",
                   ratios(runs[WITH_HOT], runs[WITHOUT_HOT], rounds), "×", LEAST),
            Figure(f"Spawns with row-level security / without, {MANY_ZONES} zones",
                   ratios(runs[WITH_MANY], runs[WITHOUT_MANY], rounds), "×", LEAST),
        ],
        notes=[
            "“Without” is a server that does not name its zones, on the same tables with their policies switched off. "
            "Runs are half as long as others.",
        ],
    )  # fmt: skip


def _round(stage: Stage, runs: dict[str, list[Run]]) -> None:
    with stage.database() as database, stage.server(database) as walled:
        switch(database, "disable")
        with stage.server(database, UNWALLED) as unwalled:
            seconds = max(1.0, stage.plan.seconds / 2)
            without = Spawning(stage, unwalled)
            switch(database, "enable")
            within = Spawning(stage, walled, "walled")

            def run(spawning: Spawning, state: str, zones: int) -> Callable[[], Run]:
                def measured() -> Run:
                    switch(database, state)
                    return spawning.run(zones, seconds=seconds)

                return measured

            there_and_back(
                [
                    (WITH_HOT, run(within, "enable", 1)),
                    (WITHOUT_HOT, run(without, "disable", 1)),
                    (WITH_MANY, run(within, "enable", MANY_ZONES)),
                    (WITHOUT_MANY, run(without, "disable", MANY_ZONES)),
                ],
                runs,
            )


def switch(database: str, state: str) -> None:
    """The policies of every table with a zone's rows: in force (`enable`), or not (`disable`)."""
    with psycopg.connect(database) as owner:
        for table in zone_tables(database):
            owner.execute(
                sql.SQL("alter table {} {} row level security").format(sql.Identifier(table.name), sql.SQL(state))
            )
