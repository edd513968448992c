"""The controls: the databases without Quarterdeck, in the same minute and on the same disk."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import psycopg

from bench.meter import CpuMeter, WatchedProcesses
from bench.plan import BenchError
from bench.request_bodies import row_body, row_values
from bench.results import Run
from bench.spawn_runner import WARM_ZONE
from bench.testbed import Target, Testbed
from quarterdeck.store.postgres import CONNECTION_OPTIONS
from tests.support.child_processes import minimal_environment

SCRIPTS = Path(__file__).parent / "scripts"
CLIENTS = 32
GRACE_SECONDS = 60
POSTGRES_TABLE = """
drop table if exists control;
create table control (id text primary key, state text not null, body jsonb not null);
create index control_pending on control (id) where state = 'pending';
"""
COLUMNS_QUERY = """
with picked as (select * from {table} where zone_id = %s and {condition} limit 500)
select (select array_agg(distinct name order by name)
        from picked, lateral jsonb_object_keys(jsonb_strip_nulls(to_jsonb(picked))) as name),
       (select avg(pg_column_size(picked.*)) from picked)
"""
SQLITE_TABLE = """
pragma journal_mode = wal;
create table control (id text not null primary key, state text not null, body text not null);
create index control_pending on control (id) where state = 'pending';
"""


def run_control(testbed: Testbed, target: Target) -> Run:
    """One-row durable commits: in the server's PostgreSQL database, or in a separate SQLite file."""
    return run_one_row_inserts(testbed, target.database) if target.database else run_sqlite_commits(testbed)


def run_one_row_inserts(testbed: Testbed, database: str) -> Run:
    """The first control: durable one-row inserts into a new table."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(POSTGRES_TABLE)
    testbed.flush_to_disk()
    run = _run_pgbench(testbed, database, "insert", {"body": row_body()})
    _check_stored(run.count, _query_count(database, "select count(*) from control"), "one-row inserts")
    return run


def run_row_by_row_spawns(testbed: Testbed, target: Target, zone: str, script: str) -> Run:
    """The second control: the work of a spawn with one transaction each, in one hot zone."""
    database = target.database
    assert database is not None
    testbed.flush_to_disk()
    run = _run_pgbench(testbed, database, script, row_values(zone))
    for query in (
        "select count(*) from agent_sessions where zone_id = %s",
        "select count(*) from events where zone_id = %s and type = 'session.spawn'",
        "select live from admission_counts where zone_id = %s and scope = 'zone'",
        "select sum(live) from admission_counts where zone_id = %s and scope = 'tree'",
    ):
        _check_stored(run.count, _query_count(database, query, zone), "row-by-row spawns")
    _check_same_rows(database, zone, WARM_ZONE)
    return run


def run_sqlite_commits(testbed: Testbed) -> Run:
    """One-row durable commits on SQLite, as fast as one Python thread can execute them."""
    path = testbed.new_directory() / "control.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(SQLITE_TABLE)
        connection.execute("pragma synchronous = full")
        testbed.flush_to_disk()
        body = row_body()
        meter = CpuMeter(WatchedProcesses())
        started_at = time.perf_counter()
        ends_at = started_at + testbed.plan.seconds
        count = 0
        while time.perf_counter() < ends_at:
            # Ordered keys, like Quarterdeck's: with random keys SQLite is four times slower.
            connection.execute("insert into control values (?, 'pending', ?)", (f"{count:036d}", body))
            count += 1
        seconds = time.perf_counter() - started_at
        idle = meter.stop().idle
    path.unlink()
    return Run(rate=count / seconds, count=count, seconds=seconds, idle=idle)


def _run_pgbench(testbed: Testbed, database: str, script: str, variables: dict[str, str]) -> Run:
    command = [str(testbed.postgres.binaries / "pgbench"), "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-n"]
    command += ["-T", str(max(1, round(testbed.plan.seconds))), "-f", str(SCRIPTS / f"{script}.pgbench")]
    for name, value in variables.items():
        command += ["-D", f"{name}={value}"]
    # The planner options of the server's connections, but not their timeouts: a control must not be interrupted.
    options = " ".join(
        f"-c {name}={value}" for name, value in CONNECTION_OPTIONS.items() if not name.endswith("timeout")
    )
    meter = CpuMeter(WatchedProcesses(postgres=testbed.postgres.pid))
    completed = subprocess.run(
        [*command, database],
        env={**minimal_environment(), "PGOPTIONS": options},
        capture_output=True,
        text=True,
        timeout=testbed.plan.seconds + GRACE_SECONDS,
        check=False,
    )
    usage = meter.stop()
    processed = re.search(r"^number of transactions actually processed: (\d+)", completed.stdout, re.MULTILINE)
    rate = re.search(r"^tps = ([\d.]+)", completed.stdout, re.MULTILINE)
    if completed.returncode or not processed or not rate:
        raise BenchError(f"pgbench failed:\n{completed.stdout}{completed.stderr}")
    count = int(processed[1])
    return Run(
        rate=float(rate[1]),
        count=count,
        seconds=count / float(rate[1]),
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )


def _query_count(database: str, query: str, *params: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(query.encode(), params).fetchone()
        return int(row[0]) if row and row[0] is not None else 0


def _check_same_rows(database: str, control_zone: str, server_zone: str) -> None:
    """The control must store what a server stores: the same columns, in rows of the same size."""
    for table, condition in (
        ("agent_sessions", "true"),
        ("events", "type = 'session.spawn'"),
        ("admission_counts", "true"),
    ):
        measured = []
        for zone in (control_zone, server_zone):
            with psycopg.connect(database) as connection:
                row = connection.execute(
                    COLUMNS_QUERY.format(table=table, condition=condition).encode(), [zone]
                ).fetchone()
            assert row is not None
            measured.append((row[0], float(row[1])))
        (control_columns, control_size), (server_columns, server_size) = measured
        if control_columns != server_columns or not 0.95 < control_size / server_size < 1.05:
            raise BenchError(
                f"The control and the server no longer do the same work in {table}: the control fills "
                f"{control_columns} with {control_size:.0f} bytes, the server {server_columns} with "
                f"{server_size:.0f}. Update bench/scripts/."
            )


def _check_stored(acknowledged: int, stored: int, description: str) -> None:
    if acknowledged != stored:
        raise BenchError(f"{description}: {acknowledged} were acknowledged, but {stored} are stored.")
