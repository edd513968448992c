"""What a claim costs with a million finished tasks in the table, beside the same with none."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import msgspec
import psycopg

from bench.filling import vacuum
from bench.load import run_alone
from bench.orders import ClaimOrder, ClaimTally, Place
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target
from bench.wire import percentile

MOST_TIMES = 1.3
SIZES = {1: 25.0, 100: 5.0}
"""How many a claim asks for; and how many rounds of it fit into a second of what a run may take, about."""
ENGINES = ("PostgreSQL", "SQLite")
AGENT = "bench"
CHUNK = 20_000
PATIENCE_SECONDS = 180.0
MODEL = "select id from agent_tasks where status = 'COMPLETED' limit 1"
COUNT = "select count(*) from agent_tasks where status = 'COMPLETED'"
COPIES = """
insert into agent_tasks (id, {columns})
with recursive n (i) as (select {first:d} union all select i + 1 from n where i < {last:d})
select '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), {columns}
from n, agent_tasks where id = '{model}'
"""


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    ratios: dict[str, list[float]] = {}
    for engine in ENGINES:
        with stage.fresh(engine) as full, stage.fresh(engine) as empty:
            # Their statements are prepared on nearly empty tables, as by a server that was started on its first day.
            # Both have done the same of late: what was just given out costs a claim something until VACUUM.
            for target, most in product((full, empty), SIZES):
                _claims(stage, target, most)
            fill(full, stage.plan.rows)
            for number, most in product(range(stage.plan.rounds), SIZES):
                names = [_name(most, engine, rows) for rows in (0, stage.plan.rows)]
                both = list(zip(names, (empty, full), strict=True))
                for name, target in both if number % 2 == 0 else reversed(both):
                    runs.setdefault(name, []).append(_claims(stage, target, most))
                none, many = (runs[name][-1].p50_ms or 0.0 for name in names)
                ratios.setdefault(_figure(most, engine, stage.plan.rows), []).append(many / none)
    return Findings(
        f"A claim with {stage.plan.rows:,} finished tasks in the table",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[Figure(name, values, "×", MOST_TIMES, at_most=True) for name, values in ratios.items()],
        notes=[
            "Each time as many tasks are made as the claim asks for, the claim is timed from just before it is sent to "
            "the moment its answer has been read, and they are completed; the medians are compared. One connection.",
            "The finished tasks are copies of one that the server has finished, in the same zone, of the same class "
            "and the same agent; the server had prepared its statements before they came, and ANALYZE followed them. "
            "Their events are not there. Both servers have given out the same number of tasks besides.",
        ],
    )  # fmt: skip


def _name(most: int, engine: str, rows: int) -> str:
    return f"a claim of {most}, {engine}, {f'{rows:,} finished' if rows else 'none'}"


def _figure(most: int, engine: str, rows: int) -> str:
    return f"Claim of {most} with {rows:,} finished tasks / with none, {engine}"


def _claims(stage: Stage, target: Target, most: int) -> Run:
    rounds = max(20, int(SIZES[most] * stage.plan.seconds))
    with target.client() as client:
        asked = {"name": AGENT, "maxConcurrentTasks": max(SIZES)}
        client.put(f"/api/v1/agents/{AGENT}", json=asked).raise_for_status()
    stage.settle()
    told = ClaimOrder(Place(*target.address, target.token), AGENT, most, rounds)
    times = sorted(msgspec.json.decode(run_alone("bench.claimer", told, PATIENCE_SECONDS), type=ClaimTally).seconds)
    return Run(
        rate=1 / statistics.fmean(times),
        count=len(times),
        seconds=sum(times),
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
    )


# -- a table that has grown --------------------------------------------------------------------------------------

Ask = Callable[[str], Sequence[Sequence[object]]]


def fill(target: Target, rows: int) -> None:
    """Copies of a finished task, so that they are in every column what the server leaves behind."""
    with (_postgres if target.database else _sqlite)(target) as (ask, columns):
        [[model]], [[before]] = ask(MODEL), ask(COUNT)
        named = ", ".join(name for name in columns if name != "id")
        for first in range(0, rows, CHUNK):
            last = min(first + CHUNK, rows) - 1
            ask(COPIES.format(columns=named, first=first, last=last, model=model))
        [[after]] = ask(COUNT)
        if int(str(after)) - int(str(before)) != rows:
            raise BenchError(f"{rows} finished tasks were to be added to {before}, and there are {after}.")
    if target.database:
        vacuum(target.database)


@contextlib.contextmanager
def _postgres(target: Target) -> Iterator[tuple[Ask, list[str]]]:
    assert target.database is not None
    with psycopg.connect(target.database, autocommit=True) as connection:

        def ask(statement: str) -> Sequence[Sequence[object]]:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

        named = ask("select column_name from information_schema.columns where table_name = 'agent_tasks'")
        yield ask, [str(name) for [name] in named]


@contextlib.contextmanager
def _sqlite(target: Target) -> Iterator[tuple[Ask, list[str]]]:
    file = target.data / "quarterdeck.db"
    with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as connection:

        def ask(statement: str) -> Sequence[Sequence[object]]:
            return connection.execute(statement).fetchall()

        yield ask, [str(row[1]) for row in ask("pragma table_info(agent_tasks)")]
        ask("analyze")
