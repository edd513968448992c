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
from tests.support.builders import ZONE, admin, caller
from tests.support.delegations import DelegationHarness, delegate_command, event_data
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime


@pytest.fixture
def delegation_harness(runtime: RuntimeHarness) -> DelegationHarness:
    return DelegationHarness(runtime)


async def alive(lending: DelegationHarness, sessions: Sequence[Session]) -> list[str]:
    shown = [await lending.runtime.read_session(session) for session in sessions]
    return [session.id for session in shown if session.status != "terminated"]


def counts(done: RevokeResult) -> tuple[int, int, int]:
    return done.revoked_edges, done.affected_sessions, done.terminated_agents


# -- revoking ----------------------------------------------------------------------------------------------------


async def test_revoking_the_head_of_a_chain_of_12_leaves_no_session_alive(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(12)
    edges = await delegation_harness.delegate_chain(chain, scopes=("a",))
    assert [edge.parent_edge_id for edge in edges] == [None, *(edge.id for edge in edges[:-1])]
    assert counts(await delegation_harness.revoke(edges[0])) == (11, 11, 11)
    assert await alive(delegation_harness, chain) == [chain[0].id], "the one at its head holds nothing by an edge"
    assert await delegation_harness.read_statuses(*edges) == ["revoked"] * 11


async def test_a_chain_of_edges_that_are_not_derived_is_revoked_to_its_end_as_well(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(30)
    edges = [await delegation_harness.delegate(chain[n], chain[n + 1]) for n in reversed(range(29))]
    assert {edge.parent_edge_id for edge in edges} == {None}
    assert counts(await delegation_harness.revoke(edges[-1])) == (29, 29, 29)
    assert await alive(delegation_harness, chain) == [chain[0].id]


async def test_revoking_again_moves_nothing_and_tells_nothing(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    await delegation_harness.revoke(edge)
    before = await delegation_harness.runtime.read_log()
    assert counts(await delegation_harness.revoke(edge)) == (0, 0, 0)
    assert await delegation_harness.runtime.read_log() == before


async def test_of_many_who_revoke_one_edge_in_one_instant_one_moves_it(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    outcomes = await asyncio.gather(*(delegation_harness.revoke(edge) for _ in range(10)))
    assert sorted(map(counts, outcomes)) == [(0, 0, 0)] * 9 + [(1, 1, 1)]


async def test_whoever_keeps_the_sessions_leaves_them_running_without_the_authority(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain(chain, scopes=("a",))
    assert counts(await delegation_harness.revoke(edges[0], keep_sessions=True)) == (3, 3, 0)
    assert len(await alive(delegation_harness, chain)) == 4
    for session in chain[1:]:
        assert (await delegation_harness.read_authority(session)).scopes == []
    assert not [event for event in await delegation_harness.runtime.read_log() if event.type == "session.terminate"]


async def test_a_session_that_another_active_edge_leads_to_lives_on(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    first, second = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    derived = await delegation_harness.delegate(c, d, parent_edge_id=first.id)
    assert counts(await delegation_harness.revoke(first)) == (2, 2, 1)
    assert await delegation_harness.read_statuses(first, second, derived) == ["revoked", "active", "revoked"]
    assert await alive(delegation_harness, [a, b, c, d]) == [a.id, b.id, c.id]


async def test_what_has_expired_keeps_nobody_alive(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first, second = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    delegation_harness.expire_edges(second)
    assert counts(await delegation_harness.revoke(first)) == (1, 1, 1)
    assert (await delegation_harness.read(second)).status == "expired", "as it was before, and not revoked"


async def test_an_edge_whose_lender_is_about_to_have_ended_keeps_nobody_alive(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        lending = DelegationHarness(keel)
        lender, between, held, under = await lending.spawn_sessions(4)
        tree = await keel.spawn_tree(4)
        direct, derived = await lending.delegate(lender, held), await lending.delegate(lender, under)
        hollow = await lending.delegate(tree[0], held)
        await lending.delegate(tree[1], between)
        below = await lending.delegate(between, under)
        ended = await keel.terminate_lane.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert ended.cascade_id
        assert await lending.read_statuses(hollow, below) == ["active", "active"], "nothing of it is settled yet"
        assert (await lending.revoke(direct)).terminated_agents == 1
        assert (await lending.revoke(derived)).terminated_agents == 1, "by the line of the other"
        assert await alive(lending, [lender, between, held, under]) == [lender.id, between.id]
        await keel.cascade_runner.run_to_end(ended)
        assert_counts_match_rows(keel.database)


async def test_what_is_lent_by_one_whose_time_is_up_keeps_nobody_alive(delegation_harness: DelegationHarness) -> None:
    [brief], [other, held] = (
        await delegation_harness.spawn_sessions(1, ttl_seconds=60),
        await delegation_harness.spawn_sessions(2),
    )
    direct, empty = (
        await delegation_harness.delegate(other, held),
        await delegation_harness.delegate(brief, held, ttl_seconds=3_600),
    )
    assert empty.expires_at == brief.expires_at
    delegation_harness.runtime.database.expire_sessions(brief)
    delegation_harness.expire_edges(empty)
    assert counts(await delegation_harness.revoke(direct)) == (1, 1, 1)


async def test_an_edge_takes_only_what_is_derived_from_it_if_nobody_ends(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    own = await delegation_harness.delegate(b, d)
    one, other = await delegation_harness.delegate(a, b), await delegation_harness.delegate(a, b)
    by_one = await delegation_harness.delegate(b, c, parent_edge_id=one.id)
    by_other = await delegation_harness.delegate(b, c, parent_edge_id=other.id)
    assert counts(await delegation_harness.revoke(one)) == (2, 2, 0)
    assert await delegation_harness.read_statuses(own, other, by_one, by_other) == [
        "active",
        "active",
        "revoked",
        "active",
    ]


async def test_a_session_that_ends_takes_its_subtree_and_what_that_has_lent(
    delegation_harness: DelegationHarness,
) -> None:
    top, borrower, behind = await delegation_harness.spawn_sessions(3)
    receiver, child, grandchild, *_ = await delegation_harness.runtime.spawn_tree(1, 1)
    edge = await delegation_harness.delegate(top, receiver)
    lent = await delegation_harness.delegate(grandchild, borrower)
    further = await delegation_harness.delegate(borrower, behind)
    done = await delegation_harness.revoke(edge)
    assert counts(done) == (3, 3, 5)
    assert await alive(delegation_harness, [top, receiver, child, grandchild, borrower, behind]) == [top.id]
    assert [(await delegation_harness.read(each)).ended_reason for each in (edge, lent, further)] == [
        "requested",
        "session_ended",
        "session_ended",
    ]


async def test_the_log_tells_who_revoked_and_why_each_edge_and_each_session_is_over(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first, _ = await delegation_harness.delegate_chain([a, b, c])
    who = msgspec.structs.replace(admin(), subject="auditor")
    await delegation_harness.revoke_lane.submit(Revoke(ZONE, first.id, who, trace="00-t"))
    events = [event for event in await delegation_harness.runtime.read_log() if event.trace == "00-t"]
    assert Counter(event.type for event in events) == {"delegation.revoke": 2, "session.terminate": 2}
    assert {event.actor for event in events} == {"auditor"}
    assert [event_data(event)["reason"] for event in events] == [
        "requested",
        "parent_revoked",
        "delegation_revoked",
        "delegation_revoked",
    ]
    assert (await delegation_harness.runtime.read_session(b)).termination_reason == "delegation_revoked"
    assert_counts_match_rows(delegation_harness.runtime.database)


async def test_an_ending_too_large_for_one_transaction_reads_as_ended_at_once_and_is_seen_through(
    engine_url: str,
) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        lending = DelegationHarness(keel, chunk=2)
        [top] = await lending.spawn_sessions(1)
        tree = await keel.spawn_tree(6)
        lent = await lending.delegate(tree[3], top)
        edge = await lending.delegate((await lending.spawn_sessions(1))[0], tree[0])
        done = await lending.revoke_lane.submit(Revoke(ZONE, edge.id, admin()))
        assert done.cascade_id
        assert done.terminated_agents == 8, "the tree, and who held nothing but what it had lent"
        assert await alive(lending, [*tree, top]) == []
        assert await lending.read_statuses(edge, lent) == ["revoked", "revoked"], "in the transaction of the stamp"
        await keel.cascade_runner.finish_cascade(ZONE, done.cascade_id)
        ended = [event for event in await keel.read_log() if event.type == "session.terminate"]
        assert {event.subject for event in ended} == {session.id for session in [*tree, top]}
        assert_counts_match_rows(keel.database)


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
    delegation_harness: DelegationHarness, client: str, power: str | None, allowed: bool
) -> None:
    [a], [b] = (
        await delegation_harness.spawn_sessions(1, application_id="lender"),
        await delegation_harness.spawn_sessions(1, application_id="receiver"),
    )
    edge = await delegation_harness.delegate(a, b)
    who = caller(client, *([power] if power else []))
    if allowed:
        assert counts(await delegation_harness.revoke(edge, who)) == (1, 1, 1)
        return
    with pytest.raises(Forbidden) as refused:
        await delegation_harness.revoke(edge, who)
    assert refused.value.code == "application_ownership_required"
    assert await delegation_harness.read_statuses(edge) == ["active"]


async def test_an_edge_that_is_not_there_is_not_found_and_costs_its_neighbours_nothing(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    absent = Revoke(ZONE, "none", admin())
    missing, done = await asyncio.gather(
        delegation_harness.revoke_lane.submit(absent), delegation_harness.revoke(edge), return_exceptions=True
    )
    assert isinstance(missing, NotFound)
    assert missing.code == "delegation_not_found"
    assert isinstance(done, RevokeResult)


async def test_edges_of_one_batch_fall_each_once_and_each_answer_counts_its_own(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(5)
    edges = await delegation_harness.delegate_chain(chain)
    asks = [Revoke(ZONE, edges[n].id, admin()) for n in (2, 0, 3)]
    outcomes = await asyncio.gather(*map(delegation_harness.revoke_lane.submit, asks))
    assert [counts(done) for done in outcomes] == [(2, 2, 2), (2, 2, 2), (0, 0, 0)]


async def test_every_verb_moves_an_active_edge_and_no_other(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)

    async def edge_in(state: EdgeState) -> Edge:
        edge = await delegation_harness.delegate(a, b)
        if state is EdgeState.REVOKED:
            await delegation_harness.revoke(edge, keep_sessions=True)
        if state is EdgeState.EXPIRED:
            delegation_harness.expire_edges(edge)
            await delegation_harness.expire_lane.submit(Expire(ZONE, edge.id))
        assert await delegation_harness.read_statuses(edge) == [state]
        return edge

    for state in EdgeState:
        for verb in EdgeVerb:
            edge = await edge_in(state)
            if verb is EdgeVerb.REVOKE:
                await delegation_harness.revoke(edge, keep_sessions=True)
            else:
                delegation_harness.expire_edges(edge)
                await delegation_harness.expire_lane.submit(Expire(ZONE, edge.id))
            assert await delegation_harness.read_statuses(edge) == [
                DELEGATION_STATES.next_state(verb, state) or state
            ], (state, verb)


# -- what goes with sessions that end ----------------------------------------------------------------------------


async def test_a_session_that_ends_takes_its_edges_and_the_derived_ones_and_nobody_else(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain([a, b, c, d])
    await delegation_harness.runtime.terminate(b)
    assert await delegation_harness.read_statuses(*edges) == ["revoked"] * 3
    assert [(await delegation_harness.read(edge)).ended_reason for edge in edges] == ["session_ended"] * 3
    assert await alive(delegation_harness, [a, b, c, d]) == [a.id, c.id, d.id]
    ends = [event.pos for event in await delegation_harness.runtime.read_log() if event.type == "session.terminate"]
    told = [event for event in await delegation_harness.read_events() if event.type == "delegation.revoke"]
    assert len(told) == 3
    assert {event_data(event)["epoch"] for event in told} == {delegation_harness.read_epoch()}
    assert ends[0] < min(event.pos for event in told)


async def test_every_way_to_end_a_session_ends_its_edges_in_the_same_transaction(
    delegation_harness: DelegationHarness,
) -> None:
    async def edge_of(target: Session) -> Edge:
        return await delegation_harness.delegate((await delegation_harness.spawn_sessions(1))[0], target)

    parent, child = await delegation_harness.runtime.spawn_tree(1)
    by_parent = await edge_of(child)
    await delegation_harness.runtime.terminate(parent)
    [expiring] = await delegation_harness.spawn_sessions(1)
    by_time = await edge_of(expiring)
    delegation_harness.runtime.database.expire_sessions(expiring)
    await delegation_harness.runtime.run_sweep()
    [stopped] = await delegation_harness.spawn_sessions(1)
    by_stop = await edge_of(stopped)
    await delegation_harness.runtime.stop_zone()
    assert await delegation_harness.read_statuses(by_parent, by_time, by_stop) == ["revoked"] * 3
    told = {
        event.subject: event.actor
        for event in await delegation_harness.read_events()
        if event.type == "delegation.revoke"
    }
    assert told == {by_parent.id: "tester", by_time.id: "sweep", by_stop.id: "tester"}
    assert delegation_harness.runtime.database.count("delegation_edges", "status = 'active'") == 0


async def test_a_large_ending_ends_edges_chunk_by_chunk(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=3)) as keel:
        await keel.put_zone()
        lending = DelegationHarness(keel)
        tree = await keel.spawn_tree(9)
        [other] = await lending.spawn_sessions(1)
        edges = [await lending.delegate(session, other) for session in tree]
        await keel.terminate(tree[0])
        assert await lending.read_statuses(*edges) == ["revoked"] * 10
        assert (await keel.read_session(other)).status == "active"


async def test_a_session_without_edges_changes_nothing_by_its_end(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    await delegation_harness.delegate(a, b)
    await delegation_harness.runtime.terminate(c)
    assert delegation_harness.read_epoch() == 1
    assert len(await delegation_harness.read_events()) == 1


async def test_no_edge_is_made_after_an_end_that_was_first_and_none_stays_that_was_before(
    delegation_harness: DelegationHarness,
) -> None:
    for _ in range(10):
        a, b = await delegation_harness.spawn_sessions(2)
        await asyncio.gather(
            delegation_harness.delegate_lane.submit(delegate_command(a.id, b.id)),
            delegation_harness.runtime.terminate(b),
            return_exceptions=True,
        )
        assert not [edge for edge in await delegation_harness.list_edges(target=b.id) if edge.status == "active"]
