"""How long the termination of a large tree takes: from the DELETE to its response, when all sessions are terminated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from bench import session_counts
from bench.meter import CpuMeter
from bench.plan import BenchError
from bench.request_bodies import spawn_body
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Target, Testbed
from tests.support.client_pool import open_clients
from tests.support.http_trees import spawn_tree
from tests.support.raw_http import build_request

LEVELS = (1, *[1_000] * 9, 999)
"""The number of sessions at each depth: the root, and ten levels below it."""
SIZE = sum(LEVELS)
MAX_MS = 2_000.0
CONNECTIONS = 64


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        for engine in ("PostgreSQL", "SQLite"):
            runs.setdefault(engine, []).append(_measure_cascade(testbed, engine))
    return Findings(
        f"Termination of a tree of {SIZE:,} sessions, ten levels deep",
        lines=[Line(f"sessions terminated, {engine}", line_runs) for engine, line_runs in runs.items()],
        figures=[
            Figure(f"Termination of {SIZE:,} sessions, {engine}", _durations_ms(line_runs), "ms", MAX_MS, at_most=True)
            for engine, line_runs in runs.items()
        ],
        notes=[
            "The tree is spawned over HTTP, session by session, with random parents. One DELETE with `receipt=true` "
            "then terminates it: marked in one transaction, terminated in chunks, "
            f"{SIZE:,} events. The receipt, the rows, the counters and the log must agree.",
        ],
    )  # fmt: skip


def _durations_ms(runs: list[Run]) -> list[float]:
    return [run.seconds * 1e3 for run in runs]


def _measure_cascade(testbed: Testbed, engine: str) -> Run:
    with testbed.start_fresh_server(engine) as target, target.client() as client:
        [zone] = target.create_zones("tree", 1)
        root = asyncio.run(_spawn_tree(target, zone))[0]
        testbed.flush_to_disk()
        meter = CpuMeter(target.watched_processes)
        started_at = time.perf_counter()
        response = client.delete(f"/zones/{zone}/agents/{root}", params={"receipt": "true"})
        seconds = time.perf_counter() - started_at
        usage = meter.stop()
        _check(response.raise_for_status().json(), session_counts.count_sessions(target, [zone]))
    assert usage.server_seconds is not None
    return Run(
        rate=SIZE / seconds,
        count=SIZE,
        seconds=seconds,
        server_us=usage.server_seconds / SIZE * 1e6,
        server=usage.server,
        postgres=usage.postgres,
        idle=usage.idle,
    )


async def _spawn_tree(target: Target, zone: str) -> list[str]:
    body = spawn_body()

    def spawn_request(parent_id: str | None) -> bytes:
        text = body if parent_id is None else f'{body[:-1]},"parent_id":"{parent_id}"}}'
        return build_request("POST", f"/zones/{zone}/agents", target.token, text.encode())

    async with open_clients([target], CONNECTIONS) as callers:
        return await spawn_tree(callers, LEVELS, spawn_request)


def _check(receipt: Mapping[str, object], counts: session_counts.SessionCounts) -> None:
    """All sessions are terminated, and each has its event."""
    reported = (receipt["asked"], receipt["stopped"], receipt["left"])
    if reported != (SIZE, SIZE, []) or counts != session_counts.SessionCounts(SIZE, SIZE, 0, 0, SIZE):
        raise BenchError(f"A tree of {SIZE} sessions was terminated: receipt {receipt}, database {counts}.")
