"""How fast the event log is sealed and how long that blocks the event loop, and how fast `qd audit verify` is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Testbed
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.log_sealer import SEAL, LogSealer
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Transaction
from quarterdeck.http.auth import LocalIssuer
from tests.support.databases import SqliteDatabases
from tests.support.runtime import RuntimeHarness, open_runtime

EVENTS = 200_000
BATCH_SIZE = 1_000
MIN_EVENTS_PER_SECOND = 50_000.0
DATA = (
    '{"application_id":"planner","parent_id":"01a1e17e-bc83-7004-b491-f17d5139144f","root_id":'
    '"01a1e17e-bc83-7004-b491-f17d5139144f","session_sid":"local","depth":3,"expires_at":"2026-01-02T03:04:05.678Z"}'
)


def measure(testbed: Testbed) -> Findings:
    lines: list[Line] = []
    figures: list[Figure] = []
    notes: list[str] = []
    for engine in ("PostgreSQL", "SQLite"):
        directory = testbed.new_directory()
        if engine == "SQLite":
            url = SqliteDatabases(testbed.new_directory()).create_migrated(directory)
            seal_run, gaps = asyncio.run(_fill_and_seal(url, directory))
            verify_runs = [_run_verify(url, directory) for _ in range(testbed.plan.rounds)]
        else:
            with testbed.new_database() as url:
                seal_run, gaps = asyncio.run(_fill_and_seal(url, directory))
                verify_runs = [_run_verify(url, directory) for _ in range(testbed.plan.rounds)]
        lines += [Line(f"{engine}: sealed", [seal_run]), Line(f"{engine}: verified by `qd audit verify`", verify_runs)]
        figures.append(
            Figure(
                f"Events verified per second, {engine}",
                [run.rate for run in verify_runs],
                "events/s",
                MIN_EVENTS_PER_SECOND,
            )
        )
        notes.append(
            f"{engine}: while {EVENTS:,} events were sealed without a pause, the event loop was blocked for "
            f"{gaps[0]:.1f} ms at the 99th percentile of its iterations, {gaps[1]:.1f} ms at most."
        )
    notes.append("`qd audit verify` is timed as a command, from start to exit, on a log of spawns.")
    return Findings("Verifying the event log", lines=lines, figures=figures, notes=notes)


async def _fill_and_seal(url: str, directory: Path) -> tuple[Run, tuple[float, float]]:
    """Fill a log with spawn events and seal it. Returns the run, and p99 and maximum of the loop's gaps in ms."""
    async with open_runtime(url) as runtime:
        await runtime.put_zone()
        await _fill_log(runtime)
        issuer = LocalIssuer.open(directory / "signing-key.pem")
        sealer = SweepRunner([LogSealer(runtime.cross_zone_engine, issuer, LogSettings()).sweep()])
        started_at, sealed = time.perf_counter(), 0
        gap_recorder = asyncio.create_task(_record_loop_gaps())
        while batch := await sealer.run_now(SEAL):
            sealed += batch
        seconds = time.perf_counter() - started_at
        gap_recorder.cancel()
        gaps = sorted(await gap_recorder)
    if sealed < EVENTS:
        raise BenchError(f"Only {sealed} of {EVENTS} events were sealed.")
    return Run(sealed / seconds, sealed, seconds), (gaps[len(gaps) * 99 // 100], gaps[-1])


async def _fill_log(runtime: RuntimeHarness) -> None:
    async def append_events(tx: Transaction) -> None:
        await tx.read()
        for number in range(BATCH_SIZE):
            subject = f"01a1e17e-bc83-7004-b491-{number:012d}"
            tx.emit(NewEvent("session.spawn", "z", subject, "local", None, "active", DATA))

    for _ in range(EVENTS // BATCH_SIZE):
        await runtime.engine.transact(append_events, zones=["z"])


async def _record_loop_gaps() -> list[float]:
    """The duration of each iteration of the event loop in milliseconds, until canceled."""
    gaps: list[float] = [0.0]
    last = time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            gaps.append((now - last) * 1000)
            last = now
    except asyncio.CancelledError:
        return gaps


def _run_verify(url: str, directory: Path) -> Run:
    command = [sys.executable, "-m", "quarterdeck", "audit", "verify", "--data", str(directory), "--database", url]
    started_at = time.perf_counter()
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started_at
    if completed.returncode != 0:
        raise BenchError(f"`qd audit verify` failed: {completed.stdout}{completed.stderr}")
    return Run(EVENTS / seconds, EVENTS, seconds)
