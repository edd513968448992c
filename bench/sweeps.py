"""How long the sweep takes that ends expired sessions, from the start of its pass to the last of them ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import msgspec

from bench import ledger
from bench.asks import spawn_body
from bench.filling import vacuum
from bench.load import run_alone
from bench.meter import CORES
from bench.orders import SweepOrder, SweepTally
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target
from quarterdeck.core.clock import DAY
from quarterdeck.domain.sessions.sweeps import TTL
from tests.support.callers import callers_of
from tests.support.keel import Side
from tests.support.raw import request
from tests.support.trees import grow

SIZE = 10_000
CONNECTIONS = 64
ENGINES = ("PostgreSQL", "SQLite")
LIMIT_SECONDS = 300.0


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        for engine in ENGINES:
            runs.setdefault(engine, []).append(_swept(stage, engine))
    return Findings(
        f"The sweep of {SIZE:,} expired sessions",
        lines=[Line(f"sessions ended, {engine}", found) for engine, found in runs.items()],
        figures=[
            Figure(f"The sweep of {SIZE:,} expired sessions, {engine}", [run.seconds * 1e3 for run in found], "ms")
            for engine, found in runs.items()
        ],
        notes=[
            "Each was spawned over HTTP and is a tree of its own, so each is an ending of its own; all are past their "
            "time. The sweep is made by a process that serves nobody meanwhile, built as a server is. Timed from the "
            "start of the pass to its end, when rows, counts and events of all of them are committed; they must agree.",
        ],
    )  # fmt: skip


def _swept(stage: Stage, engine: str) -> Run:
    with _expired(stage, engine) as (target, zone, url):
        stage.settle()
        said = run_alone("bench.sweeper", SweepOrder(str(target.data), url, TTL), LIMIT_SECONDS)
        tally = msgspec.json.decode(said, type=SweepTally)
        held = ledger.held(target, [zone])
    if tally.moved != SIZE or held != ledger.Held(SIZE, SIZE, 0, 0, SIZE):
        raise BenchError(f"{SIZE} sessions had expired, {tally.moved} were swept, and the database holds {held}.")
    return Run(
        rate=SIZE / tally.seconds,
        count=SIZE,
        seconds=tally.seconds,
        server_us=tally.cpu_seconds / SIZE * 1e6,
        server=tally.cpu_seconds / tally.seconds / CORES,
    )


@contextlib.contextmanager
def _expired(stage: Stage, engine: str) -> Iterator[tuple[Target, str, str]]:
    """A database whose server has gone, with sessions past their time: the zone, and the database's URL."""
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(stage.database()) if engine == "PostgreSQL" else None
        with stage.server(database) as target:
            [zone] = target.zones("sweep", 1)
            asyncio.run(_spawn(target, zone))
        url = database or f"sqlite:///{target.data / 'quarterdeck.db'}"
        # Now, when no server is left whose own sweep would be first.
        Side(url).run("update agent_sessions set expires_at = expires_at - ? where zone_id = ?", 2 * DAY, zone)
        if database:
            vacuum(database)
        yield target, zone, url


async def _spawn(target: Target, zone: str) -> None:
    asked = request("POST", f"/zones/{zone}/agents", target.token, spawn_body().encode())
    async with callers_of([target], CONNECTIONS) as callers:
        await grow(callers, [SIZE], lambda parent_id: asked)
