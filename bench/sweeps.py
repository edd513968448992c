"""How long the sweep of expired sessions takes, from the start of its first pass until all are terminated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import msgspec

from bench import session_counts
from bench.child_types import SweepConfig, SweepResult
from bench.load import run_child
from bench.meter import CORES
from bench.plan import BenchError
from bench.request_bodies import spawn_body
from bench.results import Figure, Findings, Line, Run
from bench.table_fill import vacuum_analyze
from bench.testbed import Target, Testbed
from quarterdeck.core.clock import DAY
from quarterdeck.domain.sessions.sweeps import TTL
from tests.support.client_pool import open_clients
from tests.support.http_trees import spawn_tree
from tests.support.raw_http import build_request
from tests.support.runtime import DirectDatabase

SIZE = 10_000
CONNECTIONS = 64
ENGINES = ("PostgreSQL", "SQLite")
TIMEOUT_SECONDS = 300.0


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        for engine in ENGINES:
            runs.setdefault(engine, []).append(_measure_sweep(testbed, engine))
    return Findings(
        f"The sweep of {SIZE:,} expired sessions",
        lines=[Line(f"sessions terminated, {engine}", line_runs) for engine, line_runs in runs.items()],
        figures=[
            Figure(f"The sweep of {SIZE:,} expired sessions, {engine}", [run.seconds * 1e3 for run in line_runs], "ms")
            for engine, line_runs in runs.items()
        ],
        notes=[
            "Each session was spawned over HTTP and is a tree of its own, so each is terminated separately; all have "
            "expired. The sweep runs in a server process that serves no requests. The time runs from the start of the "
            "first pass until the rows, counters and events of all sessions are committed; they must agree.",
        ],
    )  # fmt: skip


def _measure_sweep(testbed: Testbed, engine: str) -> Run:
    with _create_expired_sessions(testbed, engine) as (target, zone, url):
        testbed.flush_to_disk()
        output = run_child("bench.sweeper", SweepConfig(str(target.data_dir), url, TTL), TIMEOUT_SECONDS)
        result = msgspec.json.decode(output, type=SweepResult)
        counts = session_counts.count_sessions(target, [zone])
    if result.swept != SIZE or counts != session_counts.SessionCounts(SIZE, SIZE, 0, 0, SIZE):
        raise BenchError(f"{SIZE} sessions had expired, {result.swept} were swept; the database holds {counts}.")
    return Run(
        rate=SIZE / result.seconds,
        count=SIZE,
        seconds=result.seconds,
        server_us=result.cpu_seconds / SIZE * 1e6,
        server=result.cpu_seconds / result.seconds / CORES,
    )


@contextlib.contextmanager
def _create_expired_sessions(testbed: Testbed, engine: str) -> Iterator[tuple[Target, str, str]]:
    """A database with expired sessions whose server was stopped: the target, the zone and the database's URL."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(testbed.new_database()) if engine == "PostgreSQL" else None
        with testbed.start_server(database) as target:
            [zone] = target.create_zones("sweep", 1)
            asyncio.run(_spawn_sessions(target, zone))
        url = database or f"sqlite:///{target.data_dir / 'quarterdeck.db'}"
        # After the server has stopped, because its own sweep would terminate them.
        DirectDatabase(url).execute(
            "update agent_sessions set expires_at = expires_at - ? where zone_id = ?", 2 * DAY, zone
        )
        if database:
            vacuum_analyze(database)
        yield target, zone, url


async def _spawn_sessions(target: Target, zone: str) -> None:
    spawn_request = build_request("POST", f"/zones/{zone}/agents", target.token, spawn_body().encode())
    async with open_clients([target], CONNECTIONS) as callers:
        await spawn_tree(callers, [SIZE], lambda parent_id: spawn_request)
