"""How long one delegation takes in a large graph: one at a time over HTTP, with the look for a cycle."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable

from bench.lending import EDGES, HOPS, LEVELS, PARALLEL, Graph, build
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage
from bench.wire import percentile
from tests.support.raw import Connection, request

ENGINES = ("PostgreSQL", "SQLite")
MOST_MS = 10.0
WALK_MOST_MS = 20.0
NUMBER_MAX = 200
EACH_SECOND = 25
WARM = 10
WITHIN = "made between two of the graph, by chance"
ABOVE_ALL = f"made to the one that leads to all {EDGES:,}"
AGAINST = "made against the order, with what is behind it"
REFUSED = f"refused, a cycle over {PARALLEL} parallel edges and {HOPS} hops"
SHOWN = f"shown, what {PARALLEL} parallel edges over {HOPS} hops reach"
KINDS = (WITHIN, ABOVE_ALL, AGAINST, REFUSED, SHOWN)
CREATED, CYCLE, OK = 201, 409, 200


def measure(stage: Stage) -> Findings:
    runs: dict[tuple[str, str], list[Run]] = {}
    for engine in ENGINES:
        with stage.fresh(engine) as target:
            graph = asyncio.run(build(target, target.zones("graph", 1)[0]))
            for _ in range(stage.plan.rounds):
                stage.settle()
                for kind, run in asyncio.run(_round(stage, graph)).items():
                    runs.setdefault((engine, kind), []).append(run)
            graph.check()
    return Findings(
        f"Delegations in a graph of {EDGES:,} edges",
        lines=[Line(f"{engine}: {kind}", found) for (engine, kind), found in runs.items()],
        figures=[
            figure
            for engine in ENGINES
            for figure in (
                _figure(f"One delegation among {EDGES:,}, {engine}", runs[engine, WITHIN], MOST_MS),
                _figure(f"The same with all {EDGES:,} ahead, {engine}", runs[engine, ABOVE_ALL], None),
                _figure(f"The same against the order, {engine}", runs[engine, AGAINST], None),
                _figure(f"{PARALLEL} parallel edges over {HOPS} hops, {engine}", runs[engine, REFUSED], WALK_MOST_MS),
            )
        ],
        notes=[
            f"Medians of single requests over HTTP, one after the other. The graph is {LEVELS} levels deep, in one "
            "zone, and was made edge by edge over HTTP; its sessions have two edges into them and about two out of "
            "them. An edge is made from one of them to another further down, both named by chance: their ranks rise, "
            "so there is no cycle and nothing is walked. What is made stays: some hundreds more.",
            "“All ahead”: the source stands outside of the graph, and the whole of it is ahead of the target. Nothing "
            "is walked for that either.",
            "“Against the order”: the source was lent to last and stands above its target, one of the last level. What "
            "is between the two is walked from both sides, a few sessions, and the smaller side moves.",
            f"Over {PARALLEL} parallel edges and {HOPS} hops there are {PARALLEL**HOPS:,} ways. The edge that would "
            "close a cycle over them is refused: that is seen by a walk of what is between its ends.",
        ],
    )  # fmt: skip


def _figure(name: str, runs: list[Run], most: float | None) -> Figure:
    return Figure(name, [run.p50_ms or 0.0 for run in runs], "ms", most, at_most=True)


async def _round(stage: Stage, graph: Graph) -> dict[str, Run]:
    chance = random.Random(graph.edges)
    number = min(NUMBER_MAX, int(EACH_SECOND * stage.plan.seconds))
    connection = await Connection.open(graph.target.url)
    try:
        made = [graph.lending(*graph.pair(chance)) for _ in range(number + WARM)]
        above = [graph.lending(graph.lender, graph.top)] * (number // 10 + WARM)
        closing = [graph.lending(graph.chain[-1], graph.chain[0])] * (number + WARM)
        path = f"/zones/{graph.zone}/delegations/{graph.first}/traverse"
        looking = [request("GET", path, graph.target.token)] * (number + WARM)
        late = await _late(connection, graph, number + WARM)
        against = [graph.lending(each, chance.choice(graph.levels[-1])) for each in late]
        graph.edges += len(made) + len(above) + len(late) + len(against)
        return {
            WITHIN: await _timed(connection, made, CREATED),
            ABOVE_ALL: await _timed(connection, above, CREATED),
            AGAINST: await _timed(connection, against, CREATED),
            REFUSED: await _timed(connection, closing, CYCLE),
            SHOWN: await _timed(connection, looking, OK),
        }
    finally:
        await connection.close()


async def _late(connection: Connection, graph: Graph, number: int) -> list[str]:
    """So many sessions that were lent to last, and so stand above all others."""
    late = []
    for _ in range(number):
        spawned = await connection.ask(graph.spawning())
        late.append(str(spawned.json()["id"]))
        lent = await connection.ask(graph.lending(graph.lender, late[-1]))
        if lent.status != CREATED:
            raise BenchError(f"An edge was refused: {lent.body.decode(errors='replace')}")
    return late


async def _timed(connection: Connection, requests: Iterable[bytes], status: int) -> Run:
    """One after the other; the first few are not counted."""
    times = []
    for asked in requests:
        began = time.perf_counter()
        answer = await connection.ask(asked)
        times.append(time.perf_counter() - began)
        if answer.status != status:
            raise BenchError(f"{status} was expected: {answer.status} {answer.body.decode(errors='replace')}")
    ordered = sorted(times[WARM:])
    return Run(
        rate=1 / statistics.fmean(ordered),
        count=len(ordered),
        seconds=sum(ordered),
        p50_ms=percentile(ordered, 0.5) * 1e3,
        p99_ms=percentile(ordered, 0.99) * 1e3,
    )
