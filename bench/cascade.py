"""How long the end of a large tree takes, from the DELETE to its answer, with everything settled and in the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from bench import ledger
from bench.asks import spawn_body
from bench.meter import Meter
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target
from tests.support.callers import callers_of
from tests.support.raw import request
from tests.support.trees import grow

LEVELS = (1, *[1_000] * 9, 999)
"""The root, and how many stand at each distance from it, ten deep."""
SIZE = sum(LEVELS)
MOST_MS = 2_000.0
CONNECTIONS = 64


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        for engine in ("PostgreSQL", "SQLite"):
            runs.setdefault(engine, []).append(_cascade(stage, engine))
    return Findings(
        f"The end of a tree of {SIZE:,} sessions, ten deep",
        lines=[Line(f"sessions ended, {engine}", found) for engine, found in runs.items()],
        figures=[
            Figure(f"The end of {SIZE:,} sessions, {engine}", _times(found), "ms", MOST_MS, at_most=True)
            for engine, found in runs.items()
        ],
        notes=[
            "The tree is spawned over HTTP, session by session, as any other; whose child a session is, is left to "
            "chance. One DELETE with `receipt=true` then ends it: stamped in one transaction, settled in chunks, "
            f"{SIZE:,} events. The receipt, the rows, the counts and the log must agree on it.",
        ],
    )  # fmt: skip


def _times(runs: list[Run]) -> list[float]:
    return [run.seconds * 1e3 for run in runs]


def _cascade(stage: Stage, engine: str) -> Run:
    with stage.fresh(engine) as target, target.client() as client:
        [zone] = target.zones("tree", 1)
        root = asyncio.run(_tree(target, zone))[0]
        stage.settle()
        meter = Meter(target.watched)
        began = time.perf_counter()
        answer = client.delete(f"/zones/{zone}/agents/{root}", params={"receipt": "true"})
        seconds = time.perf_counter() - began
        usage = meter.stop()
        _check(answer.raise_for_status().json(), ledger.held(target, [zone]))
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


async def _tree(target: Target, zone: str) -> list[str]:
    body = spawn_body()

    def spawning(parent_id: str | None) -> bytes:
        asked = body if parent_id is None else f'{body[:-1]},"parent_id":"{parent_id}"}}'
        return request("POST", f"/zones/{zone}/agents", target.token, asked.encode())

    async with callers_of([target], CONNECTIONS) as callers:
        return await grow(callers, LEVELS, spawning)


def _check(receipt: Mapping[str, object], held: ledger.Held) -> None:
    """Everything was ended, and each session has an event of its end."""
    told = (receipt["asked"], receipt["stopped"], receipt["left"])
    if told != (SIZE, SIZE, []) or held != ledger.Held(SIZE, SIZE, 0, 0, SIZE):
        raise BenchError(f"A tree of {SIZE} sessions was ended: {receipt}, and the database holds {held}.")
