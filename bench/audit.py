"""How fast a log is sealed beside a loop that has other things to do, and how fast `qd audit verify` proves it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.log_sealer import SEAL, LogSealer
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Transaction
from quarterdeck.http.auth import LocalIssuer
from tests.support.databases import SqliteDatabases
from tests.support.keel import Keel, keel_on

EVENTS = 200_000
AT_ONCE = 1_000
LEAST = 50_000.0
DATA = (
    '{"application_id":"planner","parent_id":"01a1e17e-bc83-7004-b491-f17d5139144f","root_id":'
    '"01a1e17e-bc83-7004-b491-f17d5139144f","session_sid":"local","depth":3,"expires_at":"2026-01-02T03:04:05.678Z"}'
)


def measure(stage: Stage) -> Findings:
    lines: list[Line] = []
    figures: list[Figure] = []
    notes: list[str] = []
    for engine in ("PostgreSQL", "SQLite"):
        directory = stage.directory()
        if engine == "SQLite":
            url = SqliteDatabases(stage.directory()).fresh(directory)
            sealing, held = asyncio.run(_prepare(url, directory))
            proving = [_prove(url, directory) for _ in range(stage.plan.rounds)]
        else:
            with stage.database() as url:
                sealing, held = asyncio.run(_prepare(url, directory))
                proving = [_prove(url, directory) for _ in range(stage.plan.rounds)]
        lines += [Line(f"{engine}: sealed", [sealing]), Line(f"{engine}: proved by `qd audit verify`", proving)]
        figures.append(Figure(f"Events proved per second, {engine}", [run.rate for run in proving], "events/s", LEAST))
        notes.append(
            f"{engine}: while {EVENTS:,} events were sealed without a pause, the loop was held for {held[0]:.1f} ms at "
            f"the 99th percentile of its turns, {held[1]:.1f} ms at most."
        )
    notes.append("`qd audit verify` is timed as a command, from its start to its end, on a log of spawns.")
    return Findings("Proving the log", lines=lines, figures=figures, notes=notes)


async def _prepare(url: str, directory: Path) -> tuple[Run, tuple[float, float]]:
    """A log of spawns, sealed; how fast, and for how long the loop was held."""
    async with keel_on(url) as keel:
        await keel.zone()
        await _fill(keel)
        issuer = LocalIssuer.open(directory / "signing-key.pem")
        sealer = SweepRunner([LogSealer(keel.everywhere, issuer, LogSettings()).sweep()])
        began, sealed = time.perf_counter(), 0
        ticking = asyncio.create_task(_ticks())
        while moved := await sealer.run_now(SEAL):
            sealed += moved
        seconds = time.perf_counter() - began
        ticking.cancel()
        gaps = sorted(await ticking)
    if sealed < EVENTS:
        raise BenchError(f"Of {EVENTS} events {sealed} were sealed.")
    return Run(sealed / seconds, sealed, seconds), (gaps[len(gaps) * 99 // 100], gaps[-1])


async def _fill(keel: Keel) -> None:
    async def operation(tx: Transaction) -> None:
        await tx.read()
        for number in range(AT_ONCE):
            subject = f"01a1e17e-bc83-7004-b491-{number:012d}"
            tx.emit(NewEvent("session.spawn", "z", subject, "local", None, "active", DATA))

    for _ in range(EVENTS // AT_ONCE):
        await keel.engine.transact(operation, zones=["z"])


async def _ticks() -> list[float]:
    """How long each turn of the loop took, in milliseconds, until cancelled."""
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


def _prove(url: str, directory: Path) -> Run:
    command = [sys.executable, "-m", "quarterdeck", "audit", "verify", "--data", str(directory), "--database", url]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise BenchError(f"The log was not proved: {done.stdout}{done.stderr}")
    return Run(EVENTS / seconds, EVENTS, seconds)
