"""A graph of delegations, created edge by edge over HTTP.

One session delegates to all sessions of the first level, twice to each. Each session of a lower level gets edges from
two random sessions of the level above; there are ten levels. So the first session reaches the complete graph over very
many paths, and every edge of the last level has a chain of nine parents. A source has a lower rank than its target, so
a new edge in the same direction needs no search for cycles.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import session_counts
from bench.plan import BenchError
from bench.request_bodies import APPLICATION
from bench.testbed import Target
from quarterdeck.domain.delegations.model import UNLIMITED_HOPS
from tests.support.client_pool import ClientPool, open_clients
from tests.support.http_trees import spawn_tree
from tests.support.raw_http import RawConnection, build_request

LEVELS = 10
WIDTH = 500
EDGES = LEVELS * WIDTH * 2
HOPS, PARALLEL = 10, 3
CONNECTIONS = 64
TTL_SECONDS = 86_400
EDGE_COUNTS_QUERY = """
select (select count(*) from delegation_edges where zone_id in {zones} and status = 'active'),
       (select count(*) from events where zone_id in {zones} and type = 'delegation.create'),
       (select count(*) from events where zone_id in {zones} and type = 'delegation.revoke'),
       (select min(hops) from delegation_edges where zone_id in {zones})
"""


@dataclass(slots=True)
class DelegationGraph:
    target: Target
    zone: str
    top: str = ""
    """The session from which the complete graph is reachable."""
    levels: list[list[str]] = field(default_factory=list)
    outside_source: str = ""
    """A session outside of the graph, which is the target of an edge."""
    chain: list[str] = field(default_factory=list)
    """Each has three parallel edges to the next."""
    first_edge_id: str = ""
    """The first edge of the chain."""
    edge_count: int = 0

    def spawn_request(self) -> bytes:
        body = {"application_id": APPLICATION, "ttl_seconds": TTL_SECONDS}
        return build_request("POST", f"/zones/{self.zone}/agents", self.target.token, body)

    def delegation_request(self, source_id: str, target_id: str) -> bytes:
        body = {"source_session_id": source_id, "target_session_id": target_id, "scopes": ["read"]}
        return build_request("POST", f"/zones/{self.zone}/delegations", self.target.token, body)

    def random_pair(self, rng: random.Random) -> tuple[str, str]:
        """Two sessions, the second on a lower level: an edge between them closes no cycle."""
        upper, lower = sorted(rng.sample(range(LEVELS), 2))
        return rng.choice(self.levels[upper]), rng.choice(self.levels[lower])

    def check(self) -> None:
        """Every edge is stored, active and in the log, and the longest chain of parents has the expected length."""
        active, created, revoked, fewest_hops = session_counts.read_numbers(self.target, EDGE_COUNTS_QUERY, [self.zone])
        if (active, created, revoked) != (self.edge_count, self.edge_count, 0) or fewest_hops > UNLIMITED_HOPS - LEVELS:
            raise BenchError(
                f"{self.edge_count} edges were acknowledged. The database holds {active} active edges, {created} "
                f"events of created and {revoked} of revoked edges, and the fewest remaining hops are {fewest_hops}."
            )


async def build_graph(target: Target, zone: str) -> DelegationGraph:
    graph, rng = DelegationGraph(target, zone), random.Random(LEVELS)
    async with open_clients([target], CONNECTIONS) as callers:
        spawn_request = graph.spawn_request()
        session_ids = iter(await spawn_tree(callers, [LEVELS * WIDTH + HOPS + 4], lambda parent_id: spawn_request))
        graph.top, outside_granter, graph.outside_source = (next(session_ids) for _ in range(3))
        graph.chain = [next(session_ids) for _ in range(HOPS + 1)]
        graph.levels = [[next(session_ids) for _ in range(WIDTH)] for _ in range(LEVELS)]
        await _delegate(callers, graph, [(outside_granter, graph.outside_source)])
        for upper, lower in zip(graph.chain, graph.chain[1:], strict=False):
            edge_ids = await _delegate(callers, graph, [(upper, lower)] * PARALLEL)
            graph.first_edge_id = graph.first_edge_id or edge_ids[0]
        await _delegate(callers, graph, [(graph.top, session_id) for session_id in graph.levels[0]] * 2)
        for above, level in zip(graph.levels, graph.levels[1:], strict=False):
            await _delegate(
                callers, graph, [(source, session_id) for session_id in level for source in rng.sample(above, 2)]
            )
    graph.check()
    return graph


async def _delegate(callers: ClientPool, graph: DelegationGraph, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Create these edges over all connections in parallel. Returns their ids."""
    remaining, edge_ids = iter(pairs), list[str]()

    async def send_requests(connection: RawConnection) -> None:
        for source_id, target_id in remaining:
            response = await connection.send_and_read(graph.delegation_request(source_id, target_id))
            if response.status != 201:
                raise BenchError(f"An edge was refused: {response.body.decode(errors='replace')}")
            edge_ids.append(response.json()["id"])

    await asyncio.gather(*(send_requests(connection) for connection in callers.connections))
    graph.edge_count += len(edge_ids)
    return edge_ids
