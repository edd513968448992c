"""How long a claim takes with a million finished tasks in the table, compared with an empty table."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import msgspec
import psycopg

from bench.child_types import ClaimConfig, ClaimResult, ServerAddress
from bench.load import run_child
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run, latency_run
from bench.table_fill import vacuum_analyze
from bench.testbed import Target, Testbed

MAX_RATIO = 1.3
ROUNDS_PER_SECOND = {1: 25.0, 100: 5.0}
"""By the limit of a claim: about how many rounds fit into one second of a run."""
ENGINES = ("PostgreSQL", "SQLite")
AGENT = "bench"
CHUNK = 20_000
TIMEOUT_SECONDS = 180.0
TEMPLATE_QUERY = "select id from agent_tasks where status = 'COMPLETED' limit 1"
COUNT_QUERY = "select count(*) from agent_tasks where status = 'COMPLETED'"
COPY_STATEMENT = """
insert into agent_tasks (id, {columns})
with recursive n (i) as (select {first:d} union all select i + 1 from n where i < {last:d})
select '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), {columns}
from n, agent_tasks where id = '{template_id}'
"""


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    ratios: dict[str, list[float]] = {}
    for engine in ENGINES:
        with testbed.start_fresh_server(engine) as full, testbed.start_fresh_server(engine) as empty:
            # Their statements are prepared on nearly empty tables, as on a server's first day. Both do the same claims:
            # recently claimed tasks make a claim slower until VACUUM.
            for target, limit in product((full, empty), ROUNDS_PER_SECOND):
                _measure_claims(testbed, target, limit)
            copy_finished_tasks(full, testbed.plan.rows)
            for number, limit in product(range(testbed.plan.rounds), ROUNDS_PER_SECOND):
                names = [_run_name(limit, engine, rows) for rows in (0, testbed.plan.rows)]
                pairs = list(zip(names, (empty, full), strict=True))
                for name, target in pairs if number % 2 == 0 else reversed(pairs):
                    runs.setdefault(name, []).append(_measure_claims(testbed, target, limit))
                p50_empty, p50_full = (runs[name][-1].p50_ms or 0.0 for name in names)
                ratios.setdefault(_figure_name(limit, engine, testbed.plan.rows), []).append(p50_full / p50_empty)
    return Findings(
        f"A claim with {testbed.plan.rows:,} finished tasks in the table",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[Figure(name, values, "×", MAX_RATIO, at_most=True) for name, values in ratios.items()],
        notes=[
            "In each round as many tasks are created as the claim requests, the claim is timed from just before it is "
            "sent until its response has been read, and the tasks are completed, over one connection. The medians are "
            "compared.",
            "The finished tasks are copies of a task that the server has finished, in the same zone, of the same class "
            "and agent, without events. The server prepared its statements before they were inserted, and ANALYZE ran "
            "afterwards. Both servers also had the same number of claims.",
        ],
    )  # fmt: skip


def _run_name(limit: int, engine: str, rows: int) -> str:
    return f"a claim of {limit}, {engine}, {f'{rows:,} finished' if rows else 'none'}"


def _figure_name(limit: int, engine: str, rows: int) -> str:
    return f"Claim of {limit} with {rows:,} finished tasks / with none, {engine}"


def _measure_claims(testbed: Testbed, target: Target, limit: int) -> Run:
    rounds = max(20, int(ROUNDS_PER_SECOND[limit] * testbed.plan.seconds))
    with target.client() as client:
        agent = {"name": AGENT, "maxConcurrentTasks": max(ROUNDS_PER_SECOND)}
        client.put(f"/api/v1/agents/{AGENT}", json=agent).raise_for_status()
    testbed.flush_to_disk()
    config = ClaimConfig(ServerAddress(*target.address, target.token), AGENT, limit, rounds)
    times = sorted(
        msgspec.json.decode(run_child("bench.claim_timer", config, TIMEOUT_SECONDS), type=ClaimResult).seconds
    )
    return latency_run(times)


# -- filling the table -------------------------------------------------------------------------------------------

Execute = Callable[[str], Sequence[Sequence[object]]]


def copy_finished_tasks(target: Target, rows: int) -> None:
    """Insert copies of a finished task, so that every column has the values that the server writes."""
    with (_open_postgres if target.database else _open_sqlite)(target) as (execute, columns):
        [[template_id]], [[before]] = execute(TEMPLATE_QUERY), execute(COUNT_QUERY)
        column_list = ", ".join(name for name in columns if name != "id")
        for first in range(0, rows, CHUNK):
            last = min(first + CHUNK, rows) - 1
            execute(COPY_STATEMENT.format(columns=column_list, first=first, last=last, template_id=template_id))
        [[after]] = execute(COUNT_QUERY)
        if int(str(after)) - int(str(before)) != rows:
            raise BenchError(f"{rows} finished tasks should have been added to {before}, but there are {after}.")
    if target.database:
        vacuum_analyze(target.database)


@contextlib.contextmanager
def _open_postgres(target: Target) -> Iterator[tuple[Execute, list[str]]]:
    assert target.database is not None
    with psycopg.connect(target.database, autocommit=True) as connection:

        def execute(statement: str) -> Sequence[Sequence[object]]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        rows = execute("select column_name from information_schema.columns where table_name = 'agent_tasks'")
        yield execute, [str(name) for [name] in rows]


@contextlib.contextmanager
def _open_sqlite(target: Target) -> Iterator[tuple[Execute, list[str]]]:
    path = target.data_dir / "quarterdeck.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:

        def execute(statement: str) -> Sequence[Sequence[object]]:
            return connection.execute(statement).fetchall()

        yield execute, [str(row[1]) for row in execute("pragma table_info(agent_tasks)")]
        execute("analyze")
