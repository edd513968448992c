"""The order of a zone's delegations on both engines: kept by whatever changes them, and made where there is none."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations.model import DelegatedEdge, Edge
from quarterdeck.domain.sessions.model import Session
from tests.support.asking import ZONE
from tests.support.keel import Cell, Keel, codes, keel_on
from tests.support.lending import Graph, Lending, delegate

STEPS = 60


@pytest.fixture
def lending(keel: Keel) -> Lending:
    return Lending(keel)


class Zone:
    """What the edges are, kept beside the room by somebody who reads nothing but its answers."""

    def __init__(self, lending: Lending, sessions: list[Session]) -> None:
        self.lending = lending
        self.sessions = sessions
        self.edges: list[Edge] = []
        self.received: set[str] = set()

    def leads(self, start: Session, goal: Session) -> bool:
        pairs = [(edge.source_session_id, edge.target_session_id) for edge in self.edges]
        return goal.id in Graph(pairs=pairs).ahead(start.id)

    async def lend(self, source: Session, target: Session) -> None:
        expected = "DelegatedEdge"
        if self.leads(target, source):
            expected = "delegation_cycle_denied"
        elif source.id in self.received and all(edge.target_session_id != source.id for edge in self.edges):
            expected = "delegation_exceeds_authority"
        [outcome] = await asyncio.gather(
            self.lending.delegates.submit(delegate(source.id, target.id)), return_exceptions=True
        )
        if isinstance(outcome, DelegatedEdge):
            self.edges.append(outcome.edge)
            self.received.add(target.id)
        assert codes([outcome]) == [expected]

    async def drop(self, edge: Edge, chance: Random) -> None:
        """By somebody, by its time, or with its session."""
        how = chance.randrange(3)
        if how == 0:
            await self.lending.revoke(edge, keep_sessions=True)
        elif how == 1:
            self.lending.let_expire(*self._with_derived(edge))
        else:
            [ended] = [each for each in self.sessions if each.id == edge.target_session_id]
            await self.lending.keel.end(ended)
            self.sessions.remove(ended)
            self.sessions += await self.lending.sessions(1)
        self.edges = [each for each in self.edges if (await self.lending.show(each)).status == "active"]

    def _with_derived(self, edge: Edge) -> list[Edge]:
        found = [edge]
        for one in found:
            found += [each for each in self.edges if each.parent_edge_id == one.id]
        return found


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_lent_and_ends_a_cycle_is_refused_and_nothing_else(lending: Lending, seed: int) -> None:
    chance = Random(seed)
    zone = Zone(lending, await lending.sessions(7))
    for _ in range(STEPS):
        if zone.edges and chance.random() < 0.25:
            await zone.drop(chance.choice(zone.edges), chance)
        else:
            await zone.lend(*chance.sample(zone.sessions, 2))
        assert lending.out_of_order() == []


async def test_an_edge_against_the_order_sees_what_was_made_a_moment_ago_in_its_own_batch(lending: Lending) -> None:
    a, b, c, d, e = await lending.sessions(5)
    await lending.lend(a, b)
    await lending.lend(c, d)
    # The first moves what is behind it. What closes a cycle over it is refused, what goes along with it is not.
    asks = [delegate(d.id, a.id), delegate(b.id, c.id), delegate(b.id, e.id), delegate(e.id, c.id)]
    outcomes = await asyncio.gather(*map(lending.delegates.submit, asks), return_exceptions=True)
    assert codes(outcomes) == ["DelegatedEdge", "delegation_cycle_denied", "DelegatedEdge", "delegation_cycle_denied"]
    assert lending.out_of_order() == []


async def test_a_refused_edge_moves_nobody(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    await lending.lend(a, b, scopes=("a",))
    await lending.lend(c, d, scopes=("a",))
    before = ranks(lending)
    with pytest.raises(Problem) as refused:
        await lending.lend(d, a, scopes=("x",))
    assert refused.value.code == "delegation_exceeds_authority"
    assert ranks(lending) == before


def ranks(lending: Lending) -> list[tuple[Cell, ...]]:
    return lending.keel.side.run("select session_id, rank from delegation_ranks order by rank")


async def test_a_rank_goes_with_its_session(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    await lending.chain([a, b, c])
    await lending.keel.end(b)
    assert [row[0] for row in ranks(lending)] == [a.id, c.id]
    await lending.lend(a, (await lending.sessions(1))[0])
    assert lending.out_of_order() == []


async def test_where_no_room_is_left_the_zone_is_spaced_anew(
    lending: Lending, caplog: pytest.LogCaptureFixture
) -> None:
    *line, last, behind = await lending.sessions(7)
    await lending.chain(line)
    await lending.chain([line[0], last, behind])
    for place, (session_id, _) in enumerate(ranks(lending)):
        lending.keel.side.run("update delegation_ranks set rank = ? where session_id = ?", place, session_id)
    with caplog.at_level(logging.WARNING, "quarterdeck.delegations"):
        # Just below the target somebody stands, and so does somebody just above the source.
        await lending.lend(last, line[3])
        assert len(caplog.records) == 1
        await lending.lend(behind, line[4])
        assert len(caplog.records) == 1
    assert lending.out_of_order() == []
    with pytest.raises(Problem):
        await lending.lend(line[4], last)


async def test_a_zone_whose_edges_were_made_without_an_order_is_put_in_one(lending: Lending) -> None:
    nodes = await lending.sessions(6)
    await lending.chain(nodes)
    # As an older release leaves it: edges, an epoch, and no ranks that are of it.
    for change in ("delete from delegation_ranks", "update delegation_epochs set ranked = 0"):
        lending.keel.side.run(change)
    await lending.keel.zone("other")
    with pytest.raises(Problem) as refused:
        await lending.lend(nodes[5], nodes[0])
    assert refused.value.code == "delegation_cycle_denied"
    assert lending.out_of_order() == []
    assert lending.keel.side.run("select epoch, ranked from delegation_epochs") == [(5, 5)]
    await lending.lend(nodes[0], nodes[5])
    assert lending.keel.side.run("select epoch, ranked from delegation_epochs") == [(6, 6)]


async def test_edges_that_somebody_without_an_order_has_added_are_noticed(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    await lending.lend(a, b)
    crossed = await lending.lend(c, d)
    # By hand, as a server of an older release would: against the order, and with an epoch of its own.
    lending.keel.side.run(
        "update delegation_edges set source_session_id = ?, target_session_id = ? where id = ?", d.id, a.id, crossed.id
    )
    lending.keel.side.run("update delegation_epochs set epoch = epoch + 1")
    with pytest.raises(Problem) as refused:
        await lending.lend(b, d)
    assert refused.value.code == "delegation_cycle_denied"
    assert lending.out_of_order() == []


async def test_a_busy_zone_is_passed_over_and_decided_when_it_is_free(postgres_url: str) -> None:
    async with keel_on(postgres_url) as here, keel_on(postgres_url) as there:
        await here.zone()
        one, other = Lending(here), Lending(there)
        nodes = await one.sessions(8)
        asks = [delegate(a.id, b.id) for a in nodes for b in nodes if a is not b]
        Random(5).shuffle(asks)
        lanes = [one.delegates, other.delegates]
        outcomes = await asyncio.gather(
            *(lanes[n % 2].submit(ask) for n, ask in enumerate(asks)), return_exceptions=True
        )
        assert {*codes(outcomes)} == {"DelegatedEdge", "delegation_cycle_denied"}
        assert len([each for each in outcomes if isinstance(each, DelegatedEdge)]) == 28
        assert one.out_of_order() == []
        assert one.keel.side.count("delegation_ranks", "zone_id = ?", ZONE) == 8
