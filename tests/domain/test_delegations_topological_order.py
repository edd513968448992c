"""The order of a zone's delegations on both engines: kept by whatever changes them, and made where there is none."""

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
from tests.support.runtime import RuntimeHarness, SqlValue, open_runtime, result_names

STEPS = 60


@pytest.fixture
def delegation_harness(runtime: RuntimeHarness) -> DelegationHarness:
    return DelegationHarness(runtime)


class Zone:
    """What the edges are, kept beside the room by somebody who reads nothing but its answers."""

    def __init__(self, lending: DelegationHarness, sessions: list[Session]) -> None:
        self.lending = lending
        self.sessions = sessions
        self.edges: list[Edge] = []
        self.received: set[str] = set()

    def leads(self, start: Session, goal: Session) -> bool:
        pairs = [(edge.source_session_id, edge.target_session_id) for edge in self.edges]
        return goal.id in InMemoryGraph(pairs=pairs).walk_forward(start.id)

    async def lend(self, source: Session, target: Session) -> None:
        expected = "DelegatedEdge"
        if self.leads(target, source):
            expected = "delegation_cycle_denied"
        elif source.id in self.received and all(edge.target_session_id != source.id for edge in self.edges):
            expected = "delegation_exceeds_authority"
        [outcome] = await asyncio.gather(
            self.lending.delegate_lane.submit(delegate_command(source.id, target.id)), return_exceptions=True
        )
        if isinstance(outcome, DelegatedEdge):
            self.edges.append(outcome.edge)
            self.received.add(target.id)
        assert result_names([outcome]) == [expected]

    async def drop(self, edge: Edge, chance: Random) -> None:
        """By somebody, by its time, or with its session."""
        how = chance.randrange(3)
        if how == 0:
            await self.lending.revoke(edge, keep_sessions=True)
        elif how == 1:
            self.lending.expire_edges(*self._with_derived(edge))
        else:
            [ended] = [each for each in self.sessions if each.id == edge.target_session_id]
            await self.lending.runtime.terminate(ended)
            self.sessions.remove(ended)
            self.sessions += await self.lending.spawn_sessions(1)
        self.edges = [each for each in self.edges if (await self.lending.read(each)).status == "active"]

    def _with_derived(self, edge: Edge) -> list[Edge]:
        found = [edge]
        for one in found:
            found += [each for each in self.edges if each.parent_edge_id == one.id]
        return found


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_lent_and_ends_a_cycle_is_refused_and_nothing_else(
    delegation_harness: DelegationHarness, seed: int
) -> None:
    chance = Random(seed)
    zone = Zone(delegation_harness, await delegation_harness.spawn_sessions(7))
    for _ in range(STEPS):
        if zone.edges and chance.random() < 0.25:
            await zone.drop(chance.choice(zone.edges), chance)
        else:
            await zone.lend(*chance.sample(zone.sessions, 2))
        assert delegation_harness.edges_out_of_order() == []


async def test_an_edge_against_the_order_sees_what_was_made_a_moment_ago_in_its_own_batch(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d, e = await delegation_harness.spawn_sessions(5)
    await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(c, d)
    # The first moves what is behind it. What closes a cycle over it is refused, what goes along with it is not.
    asks = [
        delegate_command(d.id, a.id),
        delegate_command(b.id, c.id),
        delegate_command(b.id, e.id),
        delegate_command(e.id, c.id),
    ]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, asks), return_exceptions=True)
    assert result_names(outcomes) == [
        "DelegatedEdge",
        "delegation_cycle_denied",
        "DelegatedEdge",
        "delegation_cycle_denied",
    ]
    assert delegation_harness.edges_out_of_order() == []


async def test_a_refused_edge_moves_nobody(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.delegate(a, b, scopes=("a",))
    await delegation_harness.delegate(c, d, scopes=("a",))
    before = ranks(delegation_harness)
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate(d, a, scopes=("x",))
    assert refused.value.code == "delegation_exceeds_authority"
    assert ranks(delegation_harness) == before


def ranks(lending: DelegationHarness) -> list[tuple[SqlValue, ...]]:
    return lending.runtime.database.execute("select session_id, rank from delegation_ranks order by rank")


async def test_a_rank_goes_with_its_session(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    await delegation_harness.delegate_chain([a, b, c])
    await delegation_harness.runtime.terminate(b)
    assert [row[0] for row in ranks(delegation_harness)] == [a.id, c.id]
    await delegation_harness.delegate(a, (await delegation_harness.spawn_sessions(1))[0])
    assert delegation_harness.edges_out_of_order() == []


async def test_where_no_room_is_left_the_zone_is_spaced_anew(
    delegation_harness: DelegationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    *line, last, behind = await delegation_harness.spawn_sessions(7)
    await delegation_harness.delegate_chain(line)
    await delegation_harness.delegate_chain([line[0], last, behind])
    for place, (session_id, _) in enumerate(ranks(delegation_harness)):
        delegation_harness.runtime.database.execute(
            "update delegation_ranks set rank = ? where session_id = ?", place, session_id
        )
    with caplog.at_level(logging.WARNING, "quarterdeck.delegations"):
        # Just below the target somebody stands, and so does somebody just above the source.
        await delegation_harness.delegate(last, line[3])
        assert len(caplog.records) == 1
        await delegation_harness.delegate(behind, line[4])
        assert len(caplog.records) == 1
    assert delegation_harness.edges_out_of_order() == []
    with pytest.raises(Problem):
        await delegation_harness.delegate(line[4], last)


async def test_a_zone_whose_edges_were_made_without_an_order_is_put_in_one(
    delegation_harness: DelegationHarness,
) -> None:
    nodes = await delegation_harness.spawn_sessions(6)
    await delegation_harness.delegate_chain(nodes)
    # As an older release leaves it: edges, an epoch, and no ranks that are of it.
    for change in ("delete from delegation_ranks", "update delegation_epochs set ranked = 0"):
        delegation_harness.runtime.database.execute(change)
    await delegation_harness.runtime.put_zone("other")
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate(nodes[5], nodes[0])
    assert refused.value.code == "delegation_cycle_denied"
    assert delegation_harness.edges_out_of_order() == []
    assert delegation_harness.runtime.database.execute("select epoch, ranked from delegation_epochs") == [(5, 5)]
    await delegation_harness.delegate(nodes[0], nodes[5])
    assert delegation_harness.runtime.database.execute("select epoch, ranked from delegation_epochs") == [(6, 6)]


async def test_edges_that_somebody_without_an_order_has_added_are_noticed(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.delegate(a, b)
    crossed = await delegation_harness.delegate(c, d)
    # By hand, as a server of an older release would: against the order, and with an epoch of its own.
    delegation_harness.runtime.database.execute(
        "update delegation_edges set source_session_id = ?, target_session_id = ? where id = ?", d.id, a.id, crossed.id
    )
    delegation_harness.runtime.database.execute("update delegation_epochs set epoch = epoch + 1")
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate(b, d)
    assert refused.value.code == "delegation_cycle_denied"
    assert delegation_harness.edges_out_of_order() == []


async def test_a_busy_zone_is_passed_over_and_decided_when_it_is_free(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as here, open_runtime(postgres_url) as there:
        await here.put_zone()
        one, other = DelegationHarness(here), DelegationHarness(there)
        nodes = await one.spawn_sessions(8)
        asks = [delegate_command(a.id, b.id) for a in nodes for b in nodes if a is not b]
        Random(5).shuffle(asks)
        lanes = [one.delegate_lane, other.delegate_lane]
        outcomes = await asyncio.gather(
            *(lanes[n % 2].submit(ask) for n, ask in enumerate(asks)), return_exceptions=True
        )
        assert {*result_names(outcomes)} == {"DelegatedEdge", "delegation_cycle_denied"}
        assert len([each for each in outcomes if isinstance(each, DelegatedEdge)]) == 28
        assert one.edges_out_of_order() == []
        assert one.runtime.database.count("delegation_ranks", "zone_id = ?", ZONE) == 8
