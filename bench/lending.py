"""A graph of delegations, made over HTTP edge by edge as any other.

One session lends to a level of others, twice to each; each of these levels to the next, where every session receives
from two that chance names; ten levels deep. So from the first session all of the graph is ahead, over more ways than
could be counted, and every edge of the last level has a line of nine parents. Whoever lends has a lower rank than
whoever receives, so of all this nothing is walked where a new edge goes the same way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import ledger
from bench.asks import APPLICATION
from bench.plan import BenchError
from bench.stage import Target
from quarterdeck.domain.delegations.model import UNLIMITED_HOPS
from tests.support.callers import Callers, callers_of
from tests.support.raw import Connection, request
from tests.support.trees import grow

LEVELS = 10
WIDTH = 500
EDGES = LEVELS * WIDTH * 2
HOPS, PARALLEL = 10, 3
CONNECTIONS = 64
TTL_SECONDS = 86_400
QUERY = """
select (select count(*) from delegation_edges where zone_id in {zones} and status = 'active'),
       (select count(*) from events where zone_id in {zones} and type = 'delegation.create'),
       (select count(*) from events where zone_id in {zones} and type = 'delegation.revoke'),
       (select min(hops) from delegation_edges where zone_id in {zones})
"""


@dataclass(slots=True)
class Graph:
    target: Target
    zone: str
    top: str = ""
    """From here everything is ahead."""
    levels: list[list[str]] = field(default_factory=list)
    lender: str = ""
    """Stands apart, and something is lent to it."""
    chain: list[str] = field(default_factory=list)
    """Each lends to the next three times over."""
    first: str = ""
    """The first edge of the chain."""
    edges: int = 0

    def spawning(self) -> bytes:
        body = {"application_id": APPLICATION, "ttl_seconds": TTL_SECONDS}
        return request("POST", f"/zones/{self.zone}/agents", self.target.token, body)

    def lending(self, source: str, receiver: str) -> bytes:
        body = {"source_session_id": source, "target_session_id": receiver, "scopes": ["read"]}
        return request("POST", f"/zones/{self.zone}/delegations", self.target.token, body)

    def pair(self, chance: random.Random) -> tuple[str, str]:
        """Two of the graph, the second further down: no edge between them closes a cycle."""
        upper, lower = sorted(chance.sample(range(LEVELS), 2))
        return chance.choice(self.levels[upper]), chance.choice(self.levels[lower])

    def check(self) -> None:
        """Every edge is there, active and in the log, and the longest line of parents is as long as it should be."""
        active, created, revoked, fewest_hops = ledger.read(self.target, QUERY, [self.zone])
        if (active, created, revoked) != (self.edges, self.edges, 0) or fewest_hops > UNLIMITED_HOPS - LEVELS:
            raise BenchError(
                f"{self.edges} edges were acknowledged. The database holds {active}, with {created} events of edges "
                f"made and {revoked} of edges revoked; the deepest may be passed on {fewest_hops} times."
            )


async def build(target: Target, zone: str) -> Graph:
    graph, chance = Graph(target, zone), random.Random(LEVELS)
    async with callers_of([target], CONNECTIONS) as callers:
        spawning = graph.spawning()
        everyone = iter(await grow(callers, [LEVELS * WIDTH + HOPS + 4], lambda parent_id: spawning))
        graph.top, giver, graph.lender = (next(everyone) for _ in range(3))
        graph.chain = [next(everyone) for _ in range(HOPS + 1)]
        graph.levels = [[next(everyone) for _ in range(WIDTH)] for _ in range(LEVELS)]
        await _lend(callers, graph, [(giver, graph.lender)])
        for upper, lower in zip(graph.chain, graph.chain[1:], strict=False):
            made = await _lend(callers, graph, [(upper, lower)] * PARALLEL)
            graph.first = graph.first or made[0]
        await _lend(callers, graph, [(graph.top, each) for each in graph.levels[0]] * 2)
        for above, level in zip(graph.levels, graph.levels[1:], strict=False):
            await _lend(callers, graph, [(source, each) for each in level for source in chance.sample(above, 2)])
    graph.check()
    return graph


async def _lend(callers: Callers, graph: Graph, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The edges that were made of these, each asked for by whoever of the callers is free."""
    waiting, made = iter(pairs), list[str]()

    async def client(connection: Connection) -> None:
        for source, receiver in waiting:
            answer = await connection.ask(graph.lending(source, receiver))
            if answer.status != 201:
                raise BenchError(f"An edge was refused: {answer.body.decode(errors='replace')}")
            made.append(answer.json()["id"])

    await asyncio.gather(*(client(connection) for connection in callers.connections))
    graph.edges += len(made)
    return made
