"""Revoking, and what goes with sessions that end: whole, at once, and nothing beyond."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from quarterdeck.core.errors import Forbidden, NotFound
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, Expire, Revoke, RevokeResult
from quarterdeck.domain.delegations.rules import DELEGATION_STATES
from quarterdeck.domain.sessions.model import Session, Terminate
from tests.support.asking import ZONE, admin, caller
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, keel_on
from tests.support.lending import Lending, data_of, delegate


@pytest.fixture
def lending(keel: Keel) -> Lending:
    return Lending(keel)


async def alive(lending: Lending, sessions: Sequence[Session]) -> list[str]:
    shown = [await lending.keel.show(session) for session in sessions]
    return [session.id for session in shown if session.status != "terminated"]


def counts(done: RevokeResult) -> tuple[int, int, int]:
    return done.revoked_edges, done.affected_sessions, done.terminated_agents


# -- revoking ----------------------------------------------------------------------------------------------------


async def test_revoking_the_head_of_a_chain_of_12_leaves_no_session_alive(lending: Lending) -> None:
    chain = await lending.sessions(12)
    edges = await lending.chain(chain, scopes=("a",))
    assert [edge.parent_edge_id for edge in edges] == [None, *(edge.id for edge in edges[:-1])]
    assert counts(await lending.revoke(edges[0])) == (11, 11, 11)
    assert await alive(lending, chain) == [chain[0].id], "the one at its head holds nothing by an edge"
    assert await lending.status(*edges) == ["revoked"] * 11


async def test_a_chain_of_edges_that_are_not_derived_is_revoked_to_its_end_as_well(lending: Lending) -> None:
    chain = await lending.sessions(30)
    edges = [await lending.lend(chain[n], chain[n + 1]) for n in reversed(range(29))]
    assert {edge.parent_edge_id for edge in edges} == {None}
    assert counts(await lending.revoke(edges[-1])) == (29, 29, 29)
    assert await alive(lending, chain) == [chain[0].id]


async def test_revoking_again_moves_nothing_and_tells_nothing(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    edge = await lending.lend(a, b)
    await lending.revoke(edge)
    before = await lending.keel.log()
    assert counts(await lending.revoke(edge)) == (0, 0, 0)
    assert await lending.keel.log() == before


async def test_of_many_who_revoke_one_edge_in_one_instant_one_moves_it(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    edge = await lending.lend(a, b)
    outcomes = await asyncio.gather(*(lending.revoke(edge) for _ in range(10)))
    assert sorted(map(counts, outcomes)) == [(0, 0, 0)] * 9 + [(1, 1, 1)]


async def test_whoever_keeps_the_sessions_leaves_them_running_without_the_authority(lending: Lending) -> None:
    chain = await lending.sessions(4)
    edges = await lending.chain(chain, scopes=("a",))
    assert counts(await lending.revoke(edges[0], keep_sessions=True)) == (3, 3, 0)
    assert len(await alive(lending, chain)) == 4
    for session in chain[1:]:
        assert (await lending.authority(session)).scopes == []
    assert not [event for event in await lending.keel.log() if event.type == "session.terminate"]


async def test_a_session_that_another_active_edge_leads_to_lives_on(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    first, second = await lending.lend(a, c), await lending.lend(b, c)
    derived = await lending.lend(c, d, parent_edge_id=first.id)
    assert counts(await lending.revoke(first)) == (2, 2, 1)
    assert await lending.status(first, second, derived) == ["revoked", "active", "revoked"]
    assert await alive(lending, [a, b, c, d]) == [a.id, b.id, c.id]


async def test_what_has_expired_keeps_nobody_alive(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    first, second = await lending.lend(a, c), await lending.lend(b, c)
    lending.let_expire(second)
    assert counts(await lending.revoke(first)) == (1, 1, 1)
    assert (await lending.show(second)).status == "expired", "as it was before, and not revoked"


async def test_an_edge_whose_lender_is_about_to_have_ended_keeps_nobody_alive(engine_url: str) -> None:
    async with keel_on(engine_url, Rigging(chunk=2)) as keel:
        await keel.zone()
        lending = Lending(keel)
        lender, between, held, under = await lending.sessions(4)
        tree = await keel.tree(4)
        direct, derived = await lending.lend(lender, held), await lending.lend(lender, under)
        hollow = await lending.lend(tree[0], held)
        await lending.lend(tree[1], between)
        below = await lending.lend(between, under)
        ended = await keel.endings.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert ended.cascade_id
        assert await lending.status(hollow, below) == ["active", "active"], "nothing of it is settled yet"
        assert (await lending.revoke(direct)).terminated_agents == 1
        assert (await lending.revoke(derived)).terminated_agents == 1, "by the line of the other"
        assert await alive(lending, [lender, between, held, under]) == [lender.id, between.id]
        await keel.finisher.run_to_end(ended)
        assert_counts_are_what_the_rows_say(keel.side)


async def test_what_is_lent_by_one_whose_time_is_up_keeps_nobody_alive(lending: Lending) -> None:
    [brief], [other, held] = await lending.sessions(1, ttl_seconds=60), await lending.sessions(2)
    direct, empty = await lending.lend(other, held), await lending.lend(brief, held, ttl_seconds=3_600)
    assert empty.expires_at == brief.expires_at
    lending.keel.side.expire(brief)
    lending.let_expire(empty)
    assert counts(await lending.revoke(direct)) == (1, 1, 1)


async def test_an_edge_takes_only_what_is_derived_from_it_if_nobody_ends(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    own = await lending.lend(b, d)
    one, other = await lending.lend(a, b), await lending.lend(a, b)
    by_one = await lending.lend(b, c, parent_edge_id=one.id)
    by_other = await lending.lend(b, c, parent_edge_id=other.id)
    assert counts(await lending.revoke(one)) == (2, 2, 0)
    assert await lending.status(own, other, by_one, by_other) == ["active", "active", "revoked", "active"]


async def test_a_session_that_ends_takes_its_subtree_and_what_that_has_lent(lending: Lending) -> None:
    top, borrower, behind = await lending.sessions(3)
    receiver, child, grandchild, *_ = await lending.keel.tree(1, 1)
    edge = await lending.lend(top, receiver)
    lent = await lending.lend(grandchild, borrower)
    further = await lending.lend(borrower, behind)
    done = await lending.revoke(edge)
    assert counts(done) == (3, 3, 5)
    assert await alive(lending, [top, receiver, child, grandchild, borrower, behind]) == [top.id]
    assert [(await lending.show(each)).ended_reason for each in (edge, lent, further)] == [
        "requested",
        "session_ended",
        "session_ended",
    ]


async def test_the_log_tells_who_revoked_and_why_each_edge_and_each_session_is_over(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    first, _ = await lending.chain([a, b, c])
    who = msgspec.structs.replace(admin(), subject="auditor")
    await lending.revokes.submit(Revoke(ZONE, first.id, who, trace="00-t"))
    events = [event for event in await lending.keel.log() if event.trace == "00-t"]
    assert Counter(event.type for event in events) == {"delegation.revoke": 2, "session.terminate": 2}
    assert {event.actor for event in events} == {"auditor"}
    assert [data_of(event)["reason"] for event in events] == [
        "requested",
        "parent_revoked",
        "delegation_revoked",
        "delegation_revoked",
    ]
    assert (await lending.keel.show(b)).termination_reason == "delegation_revoked"
    assert_counts_are_what_the_rows_say(lending.keel.side)


async def test_an_ending_too_large_for_one_transaction_reads_as_ended_at_once_and_is_seen_through(
    engine_url: str,
) -> None:
    async with keel_on(engine_url, Rigging(chunk=2)) as keel:
        await keel.zone()
        lending = Lending(keel, chunk=2)
        [top] = await lending.sessions(1)
        tree = await keel.tree(6)
        lent = await lending.lend(tree[3], top)
        edge = await lending.lend((await lending.sessions(1))[0], tree[0])
        done = await lending.revokes.submit(Revoke(ZONE, edge.id, admin()))
        assert done.cascade_id
        assert done.terminated_agents == 8, "the tree, and who held nothing but what it had lent"
        assert await alive(lending, [*tree, top]) == []
        assert await lending.status(edge, lent) == ["revoked", "revoked"], "in the transaction of the stamp"
        await keel.finisher.finish_cascade(ZONE, done.cascade_id)
        ended = [event for event in await keel.log() if event.type == "session.terminate"]
        assert {event.subject for event in ended} == {session.id for session in [*tree, top]}
        assert_counts_are_what_the_rows_say(keel.side)


@pytest.mark.parametrize(
    ("client", "power", "allowed"),
    [
        ("lender", None, True),
        ("receiver", None, True),
        ("third", None, False),
        ("third", "coordinator.delegate_from:lender", True),
        ("third", "coordinator.delegate_to:receiver", True),
        ("third", "coordinator.delegate_to:lender", False),
        ("third", "coordinator.admin", True),
    ],
)
async def test_an_edge_is_revoked_by_who_lends_and_given_up_by_who_receives(
    lending: Lending, client: str, power: str | None, allowed: bool
) -> None:
    [a], [b] = (
        await lending.sessions(1, application_id="lender"),
        await lending.sessions(1, application_id="receiver"),
    )
    edge = await lending.lend(a, b)
    who = caller(client, *([power] if power else []))
    if allowed:
        assert counts(await lending.revoke(edge, who)) == (1, 1, 1)
        return
    with pytest.raises(Forbidden) as refused:
        await lending.revoke(edge, who)
    assert refused.value.code == "application_ownership_required"
    assert await lending.status(edge) == ["active"]


async def test_an_edge_that_is_not_there_is_not_found_and_costs_its_neighbours_nothing(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    edge = await lending.lend(a, b)
    absent = Revoke(ZONE, "none", admin())
    missing, done = await asyncio.gather(lending.revokes.submit(absent), lending.revoke(edge), return_exceptions=True)
    assert isinstance(missing, NotFound)
    assert missing.code == "delegation_not_found"
    assert isinstance(done, RevokeResult)


async def test_edges_of_one_batch_fall_each_once_and_each_answer_counts_its_own(lending: Lending) -> None:
    chain = await lending.sessions(5)
    edges = await lending.chain(chain)
    asks = [Revoke(ZONE, edges[n].id, admin()) for n in (2, 0, 3)]
    outcomes = await asyncio.gather(*map(lending.revokes.submit, asks))
    assert [counts(done) for done in outcomes] == [(2, 2, 2), (2, 2, 2), (0, 0, 0)]


async def test_every_verb_moves_an_active_edge_and_no_other(lending: Lending) -> None:
    a, b = await lending.sessions(2)

    async def edge_in(state: EdgeState) -> Edge:
        edge = await lending.lend(a, b)
        if state is EdgeState.REVOKED:
            await lending.revoke(edge, keep_sessions=True)
        if state is EdgeState.EXPIRED:
            lending.let_expire(edge)
            await lending.expires.submit(Expire(ZONE, edge.id))
        assert await lending.status(edge) == [state]
        return edge

    for state in EdgeState:
        for verb in EdgeVerb:
            edge = await edge_in(state)
            if verb is EdgeVerb.REVOKE:
                await lending.revoke(edge, keep_sessions=True)
            else:
                lending.let_expire(edge)
                await lending.expires.submit(Expire(ZONE, edge.id))
            assert await lending.status(edge) == [DELEGATION_STATES.next_state(verb, state) or state], (state, verb)


# -- what goes with sessions that end ----------------------------------------------------------------------------


async def test_a_session_that_ends_takes_its_edges_and_the_derived_ones_and_nobody_else(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    edges = await lending.chain([a, b, c, d])
    await lending.keel.end(b)
    assert await lending.status(*edges) == ["revoked"] * 3
    assert [(await lending.show(edge)).ended_reason for edge in edges] == ["session_ended"] * 3
    assert await alive(lending, [a, b, c, d]) == [a.id, c.id, d.id]
    ends = [event.pos for event in await lending.keel.log() if event.type == "session.terminate"]
    told = [event for event in await lending.events() if event.type == "delegation.revoke"]
    assert len(told) == 3
    assert {data_of(event)["epoch"] for event in told} == {lending.epoch()}
    assert ends[0] < min(event.pos for event in told)


async def test_every_way_to_end_a_session_ends_its_edges_in_the_same_transaction(lending: Lending) -> None:
    async def edge_of(target: Session) -> Edge:
        return await lending.lend((await lending.sessions(1))[0], target)

    parent, child = await lending.keel.tree(1)
    by_parent = await edge_of(child)
    await lending.keel.end(parent)
    [expiring] = await lending.sessions(1)
    by_time = await edge_of(expiring)
    lending.keel.side.expire(expiring)
    await lending.keel.sweep()
    [stopped] = await lending.sessions(1)
    by_stop = await edge_of(stopped)
    await lending.keel.stop()
    assert await lending.status(by_parent, by_time, by_stop) == ["revoked"] * 3
    told = {event.subject: event.actor for event in await lending.events() if event.type == "delegation.revoke"}
    assert told == {by_parent.id: "tester", by_time.id: "sweep", by_stop.id: "tester"}
    assert lending.keel.side.count("delegation_edges", "status = 'active'") == 0


async def test_a_large_ending_ends_edges_chunk_by_chunk(engine_url: str) -> None:
    async with keel_on(engine_url, Rigging(chunk=3)) as keel:
        await keel.zone()
        lending = Lending(keel)
        tree = await keel.tree(9)
        [other] = await lending.sessions(1)
        edges = [await lending.lend(session, other) for session in tree]
        await keel.end(tree[0])
        assert await lending.status(*edges) == ["revoked"] * 10
        assert (await keel.show(other)).status == "active"


async def test_a_session_without_edges_changes_nothing_by_its_end(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    await lending.lend(a, b)
    await lending.keel.end(c)
    assert lending.epoch() == 1
    assert len(await lending.events()) == 1


async def test_no_edge_is_made_after_an_end_that_was_first_and_none_stays_that_was_before(lending: Lending) -> None:
    for _ in range(10):
        a, b = await lending.sessions(2)
        await asyncio.gather(
            lending.delegates.submit(delegate(a.id, b.id)), lending.keel.end(b), return_exceptions=True
        )
        assert not [edge for edge in await lending.page(target=b.id) if edge.status == "active"]
