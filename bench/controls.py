"""What everything is compared with: the databases by themselves, in the same minute and on the same disk."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import psycopg

from bench.asks import row_body, row_values
from bench.meter import Meter, Watched
from bench.plan import BenchError
from bench.results import Run
from bench.spawning import WARM_ZONE
from bench.stage import Stage, Target
from quarterdeck.store.postgres import CONNECTION_OPTIONS
from tests.support.children import plain_environment

SCRIPTS = Path(__file__).parent / "scripts"
CLIENTS = 32
GRACE_SECONDS = 60
POSTGRES_TABLE = """
drop table if exists control;
create table control (id text primary key, state text not null, body jsonb not null);
create index control_pending on control (id) where state = 'pending';
"""
ROWS = """
with picked as (select * from {table} where zone_id = %s and {which} limit 500)
select (select array_agg(distinct name order by name)
        from picked, lateral jsonb_object_keys(jsonb_strip_nulls(to_jsonb(picked))) as name),
       (select avg(pg_column_size(picked.*)) from picked)
"""
SQLITE_TABLE = """
pragma journal_mode = wal;
create table control (id text not null primary key, state text not null, body text not null);
create index control_pending on control (id) where state = 'pending';
"""


def control(stage: Stage, target: Target) -> Run:
    """One row, one durable commit: on the database server that a server uses, or on a file beside its own."""
    return one_row_inserts(stage, target.database) if target.database else sqlite_commits(stage)


def one_row_inserts(stage: Stage, database: str) -> Run:
    """The first control: durable one-row inserts into a table that is empty at first."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(POSTGRES_TABLE)
    stage.settle()
    run = _pgbench(stage, database, "insert", {"body": row_body()})
    _same(run.count, _number(database, "select count(*) from control"), "one-row inserts")
    return run


def row_by_row_spawns(stage: Stage, target: Target, zone: str, script: str) -> Run:
    """The second control: the work of a spawn, a transaction for each, in one hot zone."""
    database = target.database
    assert database is not None
    stage.settle()
    run = _pgbench(stage, database, script, row_values(zone))
    for counted in (
        "select count(*) from agent_sessions where zone_id = %s",
        "select count(*) from events where zone_id = %s and type = 'session.spawn'",
        "select live from admission_counts where zone_id = %s and scope = 'zone'",
        "select sum(live) from admission_counts where zone_id = %s and scope = 'tree'",
    ):
        _same(run.count, _number(database, counted, zone), "row-by-row spawns")
    _same_rows(database, zone, WARM_ZONE)
    return run


def sqlite_commits(stage: Stage) -> Run:
    """SQLite by itself: one row, one durable commit, as fast as one thread of Python can ask for them."""
    file = stage.directory() / "control.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript(SQLITE_TABLE)
        connection.execute("pragma synchronous = full")
        stage.settle()
        body = row_body()
        meter = Meter(Watched())
        began = time.perf_counter()
        ends = began + stage.plan.seconds
        count = 0
        while time.perf_counter() < ends:
            # Ordered keys, as ours are: random ones would cost SQLite a factor of four.
            connection.execute("insert into control values (?, 'pending', ?)", (f"{count:036d}", body))
            count += 1
        seconds = time.perf_counter() - began
        idle = meter.stop().idle
    file.unlink()
    return Run(rate=count / seconds, count=count, seconds=seconds, idle=idle)


def _pgbench(stage: Stage, database: str, script: str, variables: dict[str, str]) -> Run:
    command = [str(stage.postgres.binaries / "pgbench"), "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-n"]
    command += ["-T", str(max(1, round(stage.plan.seconds))), "-f", str(SCRIPTS / f"{script}.pgbench")]
    for name, value in variables.items():
        command += ["-D", f"{name}={value}"]
    # The planner's options are those of the server's own connections. Its time limits are not: nothing ends a control.
    options = " ".join(
        f"-c {name}={value}" for name, value in CONNECTION_OPTIONS.items() if not name.endswith("timeout")
    )
    meter = Meter(Watched(postgres=stage.postgres.pid))
    done = subprocess.run(
        [*command, database],
        env={**plain_environment(), "PGOPTIONS": options},
        capture_output=True,
        text=True,
        timeout=stage.plan.seconds + GRACE_SECONDS,
        check=False,
    )
    usage = meter.stop()
    processed = re.search(r"^number of transactions actually processed: (\d+)", done.stdout, re.MULTILINE)
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    if done.returncode or not processed or not rate:
        raise BenchError(f"pgbench failed:\n{done.stdout}{done.stderr}")
    count = int(processed[1])
    return Run(
        rate=float(rate[1]),
        count=count,
        seconds=count / float(rate[1]),
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )


def _number(database: str, query: str, *params: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(query.encode(), params).fetchone()
        return int(row[0]) if row and row[0] is not None else 0


def _same_rows(database: str, theirs: str, ours: str) -> None:
    """The control must store what a server stores: the same columns, filled, in rows of the same size."""
    for table, which in (
        ("agent_sessions", "true"),
        ("events", "type = 'session.spawn'"),
        ("admission_counts", "true"),
    ):
        found = []
        for zone in (theirs, ours):
            with psycopg.connect(database) as connection:
                row = connection.execute(ROWS.format(table=table, which=which).encode(), [zone]).fetchone()
            assert row is not None
            found.append((row[0], float(row[1])))
        (their_columns, their_size), (our_columns, our_size) = found
        if their_columns != our_columns or not 0.95 < their_size / our_size < 1.05:
            raise BenchError(
                f"The control by itself fills {their_columns} of {table} with {their_size:.0f} bytes, and a server "
                f"{our_columns} with {our_size:.0f}: they no longer do the same work. See bench/scripts/."
            )


def _same(acknowledged: int, stored: int, what: str) -> None:
    if acknowledged != stored:
        raise BenchError(f"{what}: {acknowledged} were acknowledged, and {stored} are stored.")
