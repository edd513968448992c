"""The statements of delegations: none slows down as tables grow, and a traversal costs as much as it has edges."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.delegations.model import Edge, EdgeState
from quarterdeck.domain.delegations.operations import reads
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.sweeps import RETENTION
from quarterdeck.domain.sessions.model import SessionRef, Terminate
from quarterdeck.store.postgres_roles import SERVER, SWEEP
from quarterdeck.store.sql import BoundStatement
from tests.support.builders import ZONE, admin, caller
from tests.support.delegations import DelegationHarness, delegate_command
from tests.support.query_plans import Plan, Planner, RecordingStore
from tests.support.runtime import DirectDatabase, RuntimeHarness, RuntimeOptions, open_runtime, open_stores

MANY = 20_000


@contextlib.asynccontextmanager
async def record_workload(url: str) -> AsyncIterator[dict[str, BoundStatement]]:
    """Run a workload, and yield every statement of the component with its parameters."""
    zone_store, cross_zone_store = map(RecordingStore, await open_stores(url))
    runtime = RuntimeHarness(url, (zone_store, cross_zone_store), RuntimeOptions(chunk=2))
    await runtime.put_zone()
    harness = DelegationHarness(runtime)
    a, b, c, d = await harness.spawn_sessions(4)
    first = await harness.delegate(a, b, idempotency_key="k", request_digest="d")
    second = await harness.delegate(b, c)
    commands = [delegate_command(c.id, a.id, parent_edge_id=second.id), delegate_command(c.id, d.id)]
    await asyncio.gather(*map(harness.delegate_lane.submit, commands), return_exceptions=True)
    for filters in ({}, {"source": a.id}, {"target": b.id}, {"status": EdgeState.ACTIVE}):
        await harness.list_edges(limit=10, before="ffffffff", **filters)
    await harness.traverse(first)
    await harness.explain(second)
    ref = SessionRef(ZONE, b.id)
    await runtime.engine.read(lambda tx: reads.read_authority(tx, ref), zones=[ZONE])
    expired = await harness.delegate(a, d)
    harness.expire_edges(expired)
    await harness.run_sweep()
    await harness.run_sweep(RETENTION, days=-1.0)
    await run_rank_workload(harness)
    await runtime.terminate(d)
    tree = await runtime.spawn_tree(3)
    await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
    # While a cascade is running, ancestors are read.
    await harness.read_authority(c)
    await harness.revoke(first)
    yield {
        name: bound
        for name, bound in {**zone_store.statements, **cross_zone_store.statements}.items()
        if name in statement_names()
    }
    await runtime.lanes.drain()
    for store in (zone_store, cross_zone_store):
        await store.close()


async def run_rank_workload(harness: DelegationHarness) -> None:
    """Respace the ranks of a zone, and assign them from scratch."""
    *chain, last, after_last = await harness.spawn_sessions(5)
    await harness.delegate_chain(chain)
    await harness.delegate_chain([chain[0], last, after_last])
    database = harness.runtime.database
    for rank, row in enumerate(database.execute("select session_id from delegation_ranks order by rank")):
        database.execute("update delegation_ranks set rank = ? where session_id = ?", rank, row[0])
    await harness.delegate(last, chain[2])
    database.execute("update delegation_epochs set ranked = 0")
    await harness.delegate(chain[0], chain[2])


READS_WHOLE_ZONE = {
    "delegation_pairs": "once, when a zone gets its ranks",
    "delegation_ranks_of_zone": "when the ranks of a zone are respaced",
    "delegation_ranks_delete_of_zone": "once, when a zone gets its ranks",
}
"""Statements that read a whole zone on purpose."""


def statement_names() -> set[str]:
    return {statement.name for statement in Q}


def grow(database: DirectDatabase) -> None:
    """Insert tens of thousands of ended and active edges in several zones. Table statistics stay stale."""
    database.execute(
        """
        insert into delegation_edges
        select '0' || to_char(n, 'FM0000000') || md5(n::text), case when n % 4 = 0 then ? else 'zone' || n % 7 end,
               's' || n % 5000, 't' || n % 5000, 'app', 'app', '[]', null, null, 10, '{}', 'p' || n,
               case n % 3 when 0 then 'active' when 1 then 'revoked' else 'expired' end, 9000000000000, 1, 'a', null,
               case n % 3 when 0 then null else 9000000000000 end, null, 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute("insert into delegation_epochs select 'zone' || n, 1, 1 from generate_series(1, ?) n", MANY)
    database.execute(
        """
        insert into delegation_ranks
        select case when n % 4 = 0 then ? else 'zone' || n % 7 end, 't' || n, (n + 100) * 65536 + 7
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )


async def test_no_statement_scans_a_table_or_touches_more_pages_as_tables_grow(postgres_url: str) -> None:
    async with record_workload(postgres_url) as statements:
        assert statements.keys() == statement_names()
        with Planners(postgres_url) as planners:
            small = planners.run(statements)
            grow(DirectDatabase(postgres_url))
            large = {name: plan for name, plan in planners.run(statements).items() if name not in READS_WHOLE_ZONE}
    assert not {name: plan.scans("Seq Scan") for name, plan in large.items() if plan.scans("Seq Scan")}
    grown = {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if plan.pages > 3 * small[name].pages + 12
    }
    assert not grown, f"pages touched before and after, by statement: {grown}"


class Planners(contextlib.ExitStack):
    """Plans of lanes are made while the tables are empty. Statements planned each time use the current tables."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._generic = self.enter_context(contextlib.closing(Planner(url, "force_generic_plan", SERVER)))
        self._custom = self.enter_context(contextlib.closing(Planner(url, "force_custom_plan", SERVER)))
        self._sweep = self.enter_context(contextlib.closing(Planner(url, "force_generic_plan", SWEEP)))

    def run(self, statements: dict[str, BoundStatement]) -> dict[str, Plan]:
        return {name: self._for(bound).run(_repeatable(bound)) for name, bound in statements.items()}

    def _for(self, bound: BoundStatement) -> Planner:
        if bound.statement in (Q.delegations_expired, Q.delegations_delete_expired):
            return self._sweep
        return self._custom if bound.statement.planned_each_time else self._generic


def _repeatable(bound: BoundStatement) -> BoundStatement:
    """The statement with fresh ids for its inserts, and with a retention that deletes nothing."""
    batch = bound.params.get("batch")
    if bound.statement is Q.delegations_insert and isinstance(batch, list):
        return bound.statement(batch=[(new_id(), *row[1:]) for row in batch])
    return bound.statement(before=0, limit=10) if bound.statement is Q.delegations_delete_expired else bound


# -- traversals --------------------------------------------------------------------------------------------------


async def best_of(work: Callable[[], Awaitable[object]], times: int = 5) -> float:
    """The shortest duration in milliseconds, which excludes most other load of the machine."""
    durations = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        durations.append((time.perf_counter() - started) * 1_000)
    return min(durations)


async def test_three_parallel_edges_over_ten_hops_are_traversed_in_under_20_ms(engine_url: str) -> None:
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime)
        nodes = await harness.spawn_sessions(11)
        edges: list[Edge] = []
        for n in range(10):
            edges += [await harness.delegate(nodes[n], nodes[n + 1]) for _ in range(3)]

        async def delegate_cycle() -> None:
            with pytest.raises(Problem) as refusal:
                await harness.delegate(nodes[10], nodes[0])
            assert refusal.value.code == "delegation_cycle_denied"

        assert len((await harness.traverse(edges[0])).items) == 28
        assert await best_of(lambda: harness.traverse(edges[0])) < 20
        assert await best_of(delegate_cycle) < 20
        started = time.perf_counter()
        result = await harness.revoke(edges[0])
        elapsed = (time.perf_counter() - started) * 1_000
        assert elapsed < 200
        # The second session keeps two edges. All later edges derive from the first of each three.
        assert (result.revoked_edges, result.affected_sessions, result.terminated_agents) == (28, 10, 9)


@pytest.fixture
async def edge_chain(engine_url: str) -> AsyncIterator[tuple[DelegationHarness, list[str]]]:
    """A chain of 10,000 edges without ranks, and the sessions at its ends."""
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime)
        first, second, third = await harness.spawn_sessions(3)
        await harness.delegate(first, second)
        session_ids = [second.id, *(f"x{n}" for n in range(9_999)), third.id]
        insert_edges(runtime.database, list(itertools.pairwise(session_ids)))
        yield harness, [first.id, third.id]


async def test_chain_of_10000_edges_is_extended_as_fast_as_an_empty_one(
    edge_chain: tuple[DelegationHarness, list[str]],
) -> None:
    harness, [first, last] = edge_chain
    console = caller("console", "coordinator.admin")

    async def extend_chain(at_start: bool) -> None:
        [session] = await harness.spawn_sessions(1)
        pair = (session.id, first) if at_start else (last, session.id)
        assert (await harness.delegate_lane.submit(delegate_command(*pair, caller=console))).created

    async def delegate_unrelated() -> None:
        await harness.delegate(*await harness.spawn_sessions(2))

    await extend_chain(at_start=True)
    assert harness.edges_out_of_order() == [], "the first delegation assigns the ranks"
    baseline = await best_of(delegate_unrelated)
    for at_start in (True, False):
        assert await best_of(partial(extend_chain, at_start)) < 3 * baseline + 5


async def test_cycle_over_10000_edges_is_refused(edge_chain: tuple[DelegationHarness, list[str]]) -> None:
    harness, [first, last] = edge_chain
    with pytest.raises(Problem) as refusal:
        await harness.delegate_lane.submit(delegate_command(last, first))
    assert refusal.value.code == "delegation_cycle_denied"
    assert (await harness.delegate_lane.submit(delegate_command(first, last))).created


def insert_edges(database: DirectDatabase, pairs: Sequence[tuple[str, str]]) -> None:
    """Insert edges between these ids without ranks. Most ids have no session."""
    for start in range(0, len(pairs), 500):
        values = ", ".join(
            f"('g{start + n}', '{ZONE}', '{source}', '{target}', 'app', 'app', '[]', null, null, 10, '{{}}', null, "
            "'active', 9000000000000, 1, 'a', null, null, null, 1, 1)"
            for n, (source, target) in enumerate(pairs[start : start + 500])
        )
        database.execute(f"insert into delegation_edges values {values}")
    database.execute("update delegation_epochs set epoch = epoch + 1")
