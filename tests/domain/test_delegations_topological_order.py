"""The topological order of a zone's delegations, on both engines: maintained by every change, built if missing."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations.model import DelegatedEdge, Edge
from quarterdeck.domain.sessions.model import Session
from tests.support.builders import ZONE
from tests.support.delegations import DelegationHarness, InMemoryGraph, delegate_command
from tests.support.runtime import SqlValue, open_runtime, result_names

STEPS = 60


class EdgeModel:
    """A model of the zone's active edges, maintained from replies only."""

    def __init__(self, harness: DelegationHarness, sessions: list[Session]) -> None:
        self.harness = harness
        self.sessions = sessions
        self.edges: list[Edge] = []
        self.received: set[str] = set()

    def has_path(self, start: Session, goal: Session) -> bool:
        pairs = [(edge.source_session_id, edge.target_session_id) for edge in self.edges]
        return goal.id in InMemoryGraph(pairs=pairs).walk_forward(start.id)

    async def delegate_and_check(self, source: Session, target: Session) -> None:
        expected = "DelegatedEdge"
        if self.has_path(target, source):
            expected = "delegation_cycle_denied"
        elif source.id in self.received and all(edge.target_session_id != source.id for edge in self.edges):
            expected = "delegation_exceeds_authority"
        [outcome] = await asyncio.gather(
            self.harness.delegate_lane.submit(delegate_command(source.id, target.id)), return_exceptions=True
        )
        if isinstance(outcome, DelegatedEdge):
            self.edges.append(outcome.edge)
            self.received.add(target.id)
        assert result_names([outcome]) == [expected]

    async def end_edge(self, edge: Edge, rng: Random) -> None:
        """End an edge by revocation, by expiry, or with its target session."""
        way = rng.randrange(3)
        if way == 0:
            await self.harness.revoke(edge, keep_sessions=True)
        elif way == 1:
            self.harness.expire_edges(*self._with_derived(edge))
        else:
            [ended] = [session for session in self.sessions if session.id == edge.target_session_id]
            await self.harness.runtime.terminate(ended)
            self.sessions.remove(ended)
            self.sessions += await self.harness.spawn_sessions(1)
        self.edges = [edge for edge in self.edges if (await self.harness.read(edge)).status == "active"]

    def _with_derived(self, edge: Edge) -> list[Edge]:
        found = [edge]
        for parent in found:
            found += [child for child in self.edges if child.parent_edge_id == parent.id]
        return found


@pytest.mark.parametrize("seed", range(2))
async def test_random_delegations_are_refused_only_for_cycles_or_missing_authority(
    delegation_harness: DelegationHarness, seed: int
) -> None:
    rng = Random(seed)
    model = EdgeModel(delegation_harness, await delegation_harness.spawn_sessions(7))
    for _ in range(STEPS):
        if model.edges and rng.random() < 0.25:
            await model.end_edge(rng.choice(model.edges), rng)
        else:
            await model.delegate_and_check(*rng.sample(model.sessions, 2))
        assert delegation_harness.edges_out_of_order() == []


async def test_edge_against_the_order_sees_earlier_edges_of_its_batch(delegation_harness: DelegationHarness) -> None:
    a, b, c, d, e = await delegation_harness.spawn_sessions(5)
    await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(c, d)
    # The first edge moves the sessions behind it. An edge that closes a cycle with it is refused, others are not.
    commands = [
        delegate_command(d.id, a.id),
        delegate_command(b.id, c.id),
        delegate_command(b.id, e.id),
        delegate_command(e.id, c.id),
    ]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, commands), return_exceptions=True)
    assert result_names(outcomes) == [
        "DelegatedEdge",
        "delegation_cycle_denied",
        "DelegatedEdge",
        "delegation_cycle_denied",
    ]
    assert delegation_harness.edges_out_of_order() == []


async def test_refused_edge_changes_no_rank(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.delegate(a, b, scopes=("a",))
    await delegation_harness.delegate(c, d, scopes=("a",))
    before = ranks(delegation_harness)
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate(d, a, scopes=("x",))
    assert problem.value.code == "delegation_exceeds_authority"
    assert ranks(delegation_harness) == before


def ranks(harness: DelegationHarness) -> list[tuple[SqlValue, ...]]:
    return harness.runtime.database.execute("select session_id, rank from delegation_ranks order by rank")


async def test_rank_is_deleted_with_its_session(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    await delegation_harness.delegate_chain([a, b, c])
    await delegation_harness.runtime.terminate(b)
    assert [row[0] for row in ranks(delegation_harness)] == [a.id, c.id]
    await delegation_harness.delegate(a, (await delegation_harness.spawn_sessions(1))[0])
    assert delegation_harness.edges_out_of_order() == []


async def test_ranks_of_a_zone_are_respaced_when_no_gap_is_left(
    delegation_harness: DelegationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    *chain, last, behind = await delegation_harness.spawn_sessions(7)
    await delegation_harness.delegate_chain(chain)
    await delegation_harness.delegate_chain([chain[0], last, behind])
    for position, (session_id, _) in enumerate(ranks(delegation_harness)):
        delegation_harness.runtime.database.execute(
            "update delegation_ranks set rank = ? where session_id = ?", position, session_id
        )
    with caplog.at_level(logging.WARNING, "quarterdeck.delegations"):
        # The ranks just below the target and just above the source are taken.
        await delegation_harness.delegate(last, chain[3])
        assert len(caplog.records) == 1
        await delegation_harness.delegate(behind, chain[4])
        assert len(caplog.records) == 1
    assert delegation_harness.edges_out_of_order() == []
    with pytest.raises(Problem):
        await delegation_harness.delegate(chain[4], last)


async def test_order_is_built_for_edges_of_an_older_release(delegation_harness: DelegationHarness) -> None:
    nodes = await delegation_harness.spawn_sessions(6)
    await delegation_harness.delegate_chain(nodes)
    # As an older release leaves it: edges and an epoch, but no ranks.
    for change in ("delete from delegation_ranks", "update delegation_epochs set ranked = 0"):
        delegation_harness.runtime.database.execute(change)
    await delegation_harness.runtime.put_zone("other")
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate(nodes[5], nodes[0])
    assert problem.value.code == "delegation_cycle_denied"
    assert delegation_harness.edges_out_of_order() == []
    assert delegation_harness.runtime.database.execute("select epoch, ranked from delegation_epochs") == [(5, 5)]
    await delegation_harness.delegate(nodes[0], nodes[5])
    assert delegation_harness.runtime.database.execute("select epoch, ranked from delegation_epochs") == [(6, 6)]


async def test_edges_added_by_an_older_release_are_detected(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.delegate(a, b)
    crossed = await delegation_harness.delegate(c, d)
    # As a server of an older release would: an edge against the order, and a higher epoch.
    delegation_harness.runtime.database.execute(
        "update delegation_edges set source_session_id = ?, target_session_id = ? where id = ?", d.id, a.id, crossed.id
    )
    delegation_harness.runtime.database.execute("update delegation_epochs set epoch = epoch + 1")
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate(b, d)
    assert problem.value.code == "delegation_cycle_denied"
    assert delegation_harness.edges_out_of_order() == []


async def test_concurrent_delegations_of_two_processes_create_no_cycle(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as first_runtime, open_runtime(postgres_url) as second_runtime:
        await first_runtime.put_zone()
        first, second = DelegationHarness(first_runtime), DelegationHarness(second_runtime)
        nodes = await first.spawn_sessions(8)
        commands = [delegate_command(a.id, b.id) for a in nodes for b in nodes if a is not b]
        Random(5).shuffle(commands)
        lanes = [first.delegate_lane, second.delegate_lane]
        outcomes = await asyncio.gather(
            *(lanes[n % 2].submit(command) for n, command in enumerate(commands)), return_exceptions=True
        )
        assert {*result_names(outcomes)} == {"DelegatedEdge", "delegation_cycle_denied"}
        assert len([outcome for outcome in outcomes if isinstance(outcome, DelegatedEdge)]) == 28
        assert first.edges_out_of_order() == []
        assert first.runtime.database.count("delegation_ranks", "zone_id = ?", ZONE) == 8
