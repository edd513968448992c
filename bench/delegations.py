"""How long a delegation takes in a large graph: one request at a time over HTTP, including the search for cycles."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable

from bench.delegation_graph import EDGES, HOPS, LEVELS, PARALLEL, DelegationGraph, build_graph
from bench.plan import BenchError
from bench.raw_http import percentile
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Testbed
from tests.support.raw_http import RawConnection, build_request

ENGINES = ("PostgreSQL", "SQLite")
MAX_MS = 10.0
WALK_MAX_MS = 20.0
REQUESTS_MAX = 200
REQUESTS_PER_SECOND = 25
WARM_UP_REQUESTS = 10
INSIDE_GRAPH = "created between two random sessions of the graph"
ABOVE_GRAPH = f"created to the session that reaches all {EDGES:,} edges"
AGAINST_RANKS = "created against the rank order"
CYCLE_REFUSED = f"refused: a cycle over {PARALLEL} parallel edges and {HOPS} hops"
TRAVERSED = f"traversed: {PARALLEL} parallel edges over {HOPS} hops"
REQUEST_KINDS = (INSIDE_GRAPH, ABOVE_GRAPH, AGAINST_RANKS, CYCLE_REFUSED, TRAVERSED)
CREATED, CYCLE, OK = 201, 409, 200


def measure(testbed: Testbed) -> Findings:
    runs: dict[tuple[str, str], list[Run]] = {}
    for engine in ENGINES:
        with testbed.start_fresh_server(engine) as target:
            graph = asyncio.run(build_graph(target, target.create_zones("graph", 1)[0]))
            for _ in range(testbed.plan.rounds):
                testbed.flush_to_disk()
                for kind, run in asyncio.run(_run_round(testbed, graph)).items():
                    runs.setdefault((engine, kind), []).append(run)
            graph.check()
    return Findings(
        f"Delegations in a graph of {EDGES:,} edges",
        lines=[Line(f"{engine}: {kind}", line_runs) for (engine, kind), line_runs in runs.items()],
        figures=[
            figure
            for engine in ENGINES
            for figure in (
                _figure(f"One delegation among {EDGES:,}, {engine}", runs[engine, INSIDE_GRAPH], MAX_MS),
                _figure(f"The same with all {EDGES:,} below the target, {engine}", runs[engine, ABOVE_GRAPH], None),
                _figure(f"The same against the rank order, {engine}", runs[engine, AGAINST_RANKS], None),
                _figure(
                    f"{PARALLEL} parallel edges over {HOPS} hops, {engine}", runs[engine, CYCLE_REFUSED], WALK_MAX_MS
                ),
            )
        ],
        notes=[
            f"Medians of single requests over HTTP, one after the other. The graph has {LEVELS} levels in one zone and "
            "was created edge by edge over HTTP; each session has two incoming and about two outgoing edges. New edges "
            "go from a random session to another on a lower level: the ranks rise, so there is no cycle and no search. "
            "The new edges stay: a few hundred.",
            "“All below the target”: the source is outside of the graph, and the target reaches the complete graph. "
            "This needs no search either.",
            "“Against the rank order”: the source became a target last and has a higher rank than its target, which is "
            "on the last level. The sessions between the two ranks are searched from both sides, and the smaller side "
            "gets new ranks.",
            f"{PARALLEL} parallel edges over {HOPS} hops have {PARALLEL**HOPS:,} paths. The edge that would close a "
            "cycle over them is refused after a search of the sessions between its ends.",
        ],
    )  # fmt: skip


def _figure(name: str, runs: list[Run], limit: float | None) -> Figure:
    return Figure(name, [run.p50_ms or 0.0 for run in runs], "ms", limit, at_most=True)


async def _run_round(testbed: Testbed, graph: DelegationGraph) -> dict[str, Run]:
    rng = random.Random(graph.edge_count)
    count = min(REQUESTS_MAX, int(REQUESTS_PER_SECOND * testbed.plan.seconds))
    connection = await RawConnection.open(graph.target.url)
    try:
        inside = [graph.delegation_request(*graph.random_pair(rng)) for _ in range(count + WARM_UP_REQUESTS)]
        above = [graph.delegation_request(graph.outside_source, graph.top)] * (count // 10 + WARM_UP_REQUESTS)
        cycles = [graph.delegation_request(graph.chain[-1], graph.chain[0])] * (count + WARM_UP_REQUESTS)
        path = f"/zones/{graph.zone}/delegations/{graph.first_edge_id}/traverse"
        traversals = [build_request("GET", path, graph.target.token)] * (count + WARM_UP_REQUESTS)
        late_ids = await _spawn_late_targets(connection, graph, count + WARM_UP_REQUESTS)
        against = [graph.delegation_request(session_id, rng.choice(graph.levels[-1])) for session_id in late_ids]
        graph.edge_count += len(inside) + len(above) + len(late_ids) + len(against)
        return {
            INSIDE_GRAPH: await _time_requests(connection, inside, CREATED),
            ABOVE_GRAPH: await _time_requests(connection, above, CREATED),
            AGAINST_RANKS: await _time_requests(connection, against, CREATED),
            CYCLE_REFUSED: await _time_requests(connection, cycles, CYCLE),
            TRAVERSED: await _time_requests(connection, traversals, OK),
        }
    finally:
        await connection.close()


async def _spawn_late_targets(connection: RawConnection, graph: DelegationGraph, count: int) -> list[str]:
    """New sessions that became targets last and so have the highest ranks."""
    late_ids = []
    for _ in range(count):
        spawned = await connection.send_and_read(graph.spawn_request())
        late_ids.append(str(spawned.json()["id"]))
        delegated = await connection.send_and_read(graph.delegation_request(graph.outside_source, late_ids[-1]))
        if delegated.status != CREATED:
            raise BenchError(f"An edge was refused: {delegated.body.decode(errors='replace')}")
    return late_ids


async def _time_requests(connection: RawConnection, requests: Iterable[bytes], status: int) -> Run:
    """One request after the other. The first `WARM_UP_REQUESTS` are not counted."""
    times = []
    for request_bytes in requests:
        started_at = time.perf_counter()
        response = await connection.send_and_read(request_bytes)
        times.append(time.perf_counter() - started_at)
        if response.status != status:
            raise BenchError(f"Expected {status}, got {response.status}: {response.body.decode(errors='replace')}")
    ordered = sorted(times[WARM_UP_REQUESTS:])
    return Run(
        rate=1 / statistics.fmean(ordered),
        count=len(ordered),
        seconds=sum(ordered),
        p50_ms=percentile(ordered, 0.5) * 1e3,
        p99_ms=percentile(ordered, 0.99) * 1e3,
    )
