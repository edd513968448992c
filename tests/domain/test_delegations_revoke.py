"""Revocation of delegations, and the edges of sessions that end: complete, in one transaction, and nothing else."""

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
from tests.support.runtime import RuntimeOptions, assert_counts_match_rows, open_runtime


async def live_ids(harness: DelegationHarness, sessions: Sequence[Session]) -> list[str]:
    rows = [await harness.runtime.read_session(session) for session in sessions]
    return [session.id for session in rows if session.status != "terminated"]


def counts(result: RevokeResult) -> tuple[int, int, int]:
    return result.revoked_edges, result.affected_sessions, result.terminated_agents


# -- revocation --------------------------------------------------------------------------------------------------


async def test_revoking_the_first_edge_of_a_chain_of_12_terminates_every_receiver(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(12)
    edges = await delegation_harness.delegate_chain(chain, scopes=("a",))
    assert [edge.parent_edge_id for edge in edges] == [None, *(edge.id for edge in edges[:-1])]
    assert counts(await delegation_harness.revoke(edges[0])) == (11, 11, 11)
    assert await live_ids(delegation_harness, chain) == [chain[0].id], "the first session has no inbound edge"
    assert await delegation_harness.read_statuses(*edges) == ["revoked"] * 11


async def test_chain_of_edges_that_are_not_derived_is_revoked_completely(delegation_harness: DelegationHarness) -> None:
    chain = await delegation_harness.spawn_sessions(30)
    edges = [await delegation_harness.delegate(chain[n], chain[n + 1]) for n in reversed(range(29))]
    assert {edge.parent_edge_id for edge in edges} == {None}
    assert counts(await delegation_harness.revoke(edges[-1])) == (29, 29, 29)
    assert await live_ids(delegation_harness, chain) == [chain[0].id]


async def test_revoking_again_changes_nothing_and_logs_nothing(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    await delegation_harness.revoke(edge)
    before = await delegation_harness.runtime.read_log()
    assert counts(await delegation_harness.revoke(edge)) == (0, 0, 0)
    assert await delegation_harness.runtime.read_log() == before


async def test_concurrent_revocations_of_an_edge_take_effect_once(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    outcomes = await asyncio.gather(*(delegation_harness.revoke(edge) for _ in range(10)))
    assert sorted(map(counts, outcomes)) == [(0, 0, 0)] * 9 + [(1, 1, 1)]


async def test_keep_sessions_revokes_authority_without_terminating_sessions(
    delegation_harness: DelegationHarness,
) -> None:
    chain = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain(chain, scopes=("a",))
    assert counts(await delegation_harness.revoke(edges[0], keep_sessions=True)) == (3, 3, 0)
    assert len(await live_ids(delegation_harness, chain)) == 4
    for session in chain[1:]:
        assert (await delegation_harness.read_authority(session)).scopes == []
    assert not [event for event in await delegation_harness.runtime.read_log() if event.type == "session.terminate"]


async def test_session_with_another_active_inbound_edge_is_not_terminated(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    first, second = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    derived = await delegation_harness.delegate(c, d, parent_edge_id=first.id)
    assert counts(await delegation_harness.revoke(first)) == (2, 2, 1)
    assert await delegation_harness.read_statuses(first, second, derived) == ["revoked", "active", "revoked"]
    assert await live_ids(delegation_harness, [a, b, c, d]) == [a.id, b.id, c.id]


async def test_expired_edge_does_not_keep_its_target_live(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first, second = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    delegation_harness.expire_edges(second)
    assert counts(await delegation_harness.revoke(first)) == (1, 1, 1)
    assert (await delegation_harness.read(second)).status == "expired", "it stays expired and is not revoked"


async def test_edge_from_a_marked_session_does_not_keep_its_target_live(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime)
        source, intermediate, target, second_target = await harness.spawn_sessions(4)
        tree = await runtime.spawn_tree(4)
        direct, second_direct = await harness.delegate(source, target), await harness.delegate(source, second_target)
        marked_edge = await harness.delegate(tree[0], target)
        await harness.delegate(tree[1], intermediate)
        derived_edge = await harness.delegate(intermediate, second_target)
        result = await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert result.cascade_id
        assert await harness.read_statuses(marked_edge, derived_edge) == ["active", "active"], "no chunk has run yet"
        assert (await harness.revoke(direct)).terminated_agents == 1
        assert (await harness.revoke(second_direct)).terminated_agents == 1, "its other edge depends on the marked tree"
        assert await live_ids(harness, [source, intermediate, target, second_target]) == [source.id, intermediate.id]
        await runtime.cascade_runner.run_to_end(result)
        assert_counts_match_rows(runtime.database)


async def test_edge_from_an_expired_session_does_not_keep_its_target_live(
    delegation_harness: DelegationHarness,
) -> None:
    [short_lived], [other, target] = (
        await delegation_harness.spawn_sessions(1, ttl_seconds=60),
        await delegation_harness.spawn_sessions(2),
    )
    direct, expiring = (
        await delegation_harness.delegate(other, target),
        await delegation_harness.delegate(short_lived, target, ttl_seconds=3_600),
    )
    assert expiring.expires_at == short_lived.expires_at
    delegation_harness.runtime.database.expire_sessions(short_lived)
    delegation_harness.expire_edges(expiring)
    assert counts(await delegation_harness.revoke(direct)) == (1, 1, 1)


async def test_revocation_ends_only_derived_edges_if_no_session_is_terminated(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    unrelated = await delegation_harness.delegate(b, d)
    first, second = await delegation_harness.delegate(a, b), await delegation_harness.delegate(a, b)
    from_first = await delegation_harness.delegate(b, c, parent_edge_id=first.id)
    from_second = await delegation_harness.delegate(b, c, parent_edge_id=second.id)
    assert counts(await delegation_harness.revoke(first)) == (2, 2, 0)
    assert await delegation_harness.read_statuses(unrelated, second, from_first, from_second) == [
        "active",
        "active",
        "revoked",
        "active",
    ]


async def test_terminated_target_takes_its_subtree_and_their_delegations(delegation_harness: DelegationHarness) -> None:
    source, borrower, last = await delegation_harness.spawn_sessions(3)
    receiver, child, grandchild, *_ = await delegation_harness.runtime.spawn_tree(1, 1)
    edge = await delegation_harness.delegate(source, receiver)
    subtree_edge = await delegation_harness.delegate(grandchild, borrower)
    next_edge = await delegation_harness.delegate(borrower, last)
    result = await delegation_harness.revoke(edge)
    assert counts(result) == (3, 3, 5)
    assert await live_ids(delegation_harness, [source, receiver, child, grandchild, borrower, last]) == [source.id]
    assert [(await delegation_harness.read(item)).ended_reason for item in (edge, subtree_edge, next_edge)] == [
        "requested",
        "session_ended",
        "session_ended",
    ]


async def test_events_of_a_revocation_have_its_actor_and_reasons(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first, _ = await delegation_harness.delegate_chain([a, b, c])
    auditor = msgspec.structs.replace(admin(), subject="auditor")
    await delegation_harness.revoke_lane.submit(Revoke(ZONE, first.id, auditor, trace="00-t"))
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


async def test_revocation_larger_than_a_chunk_reads_as_ended_immediately(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime, chunk=2)
        [receiver] = await harness.spawn_sessions(1)
        tree = await runtime.spawn_tree(6)
        tree_edge = await harness.delegate(tree[3], receiver)
        edge = await harness.delegate((await harness.spawn_sessions(1))[0], tree[0])
        result = await harness.revoke_lane.submit(Revoke(ZONE, edge.id, admin()))
        assert result.cascade_id
        assert result.terminated_agents == 8, "the tree, and the session whose only edge came from it"
        assert await live_ids(harness, [*tree, receiver]) == []
        assert await harness.read_statuses(edge, tree_edge) == ["revoked", "revoked"], (
            "in the transaction that marks the tree"
        )
        await runtime.cascade_runner.finish_cascade(ZONE, result.cascade_id)
        events = [event for event in await runtime.read_log() if event.type == "session.terminate"]
        assert {event.subject for event in events} == {session.id for session in [*tree, receiver]}
        assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize(
    ("client", "scope", "allowed"),
    [
        ("source-app", None, True),
        ("target-app", None, True),
        ("third", None, False),
        ("third", "coordinator.delegate_from:source-app", True),
        ("third", "coordinator.delegate_to:target-app", True),
        ("third", "coordinator.delegate_to:source-app", False),
        ("third", "coordinator.admin", True),
    ],
)
async def test_edge_can_be_revoked_by_source_or_target_application(
    delegation_harness: DelegationHarness, client: str, scope: str | None, allowed: bool
) -> None:
    [a], [b] = (
        await delegation_harness.spawn_sessions(1, application_id="source-app"),
        await delegation_harness.spawn_sessions(1, application_id="target-app"),
    )
    edge = await delegation_harness.delegate(a, b)
    requester = caller(client, *([scope] if scope else []))
    if allowed:
        assert counts(await delegation_harness.revoke(edge, requester)) == (1, 1, 1)
        return
    with pytest.raises(Forbidden) as problem:
        await delegation_harness.revoke(edge, requester)
    assert problem.value.code == "application_ownership_required"
    assert await delegation_harness.read_statuses(edge) == ["active"]


async def test_revoking_a_missing_edge_does_not_affect_the_rest_of_the_batch(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    command = Revoke(ZONE, "missing", admin())
    missing, result = await asyncio.gather(
        delegation_harness.revoke_lane.submit(command), delegation_harness.revoke(edge), return_exceptions=True
    )
    assert isinstance(missing, NotFound)
    assert missing.code == "delegation_not_found"
    assert isinstance(result, RevokeResult)


async def test_revocations_of_one_batch_count_each_edge_once(delegation_harness: DelegationHarness) -> None:
    chain = await delegation_harness.spawn_sessions(5)
    edges = await delegation_harness.delegate_chain(chain)
    commands = [Revoke(ZONE, edges[n].id, admin()) for n in (2, 0, 3)]
    outcomes = await asyncio.gather(*map(delegation_harness.revoke_lane.submit, commands))
    assert [counts(result) for result in outcomes] == [(2, 2, 2), (2, 2, 2), (0, 0, 0)]


async def test_every_verb_changes_only_active_edges(delegation_harness: DelegationHarness) -> None:
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


# -- edges of sessions that end ----------------------------------------------------------------------------------


async def test_ended_session_revokes_its_edges_and_derived_ones_but_ends_no_session(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain([a, b, c, d])
    await delegation_harness.runtime.terminate(b)
    assert await delegation_harness.read_statuses(*edges) == ["revoked"] * 3
    assert [(await delegation_harness.read(edge)).ended_reason for edge in edges] == ["session_ended"] * 3
    assert await live_ids(delegation_harness, [a, b, c, d]) == [a.id, c.id, d.id]
    end_positions = [
        event.pos for event in await delegation_harness.runtime.read_log() if event.type == "session.terminate"
    ]
    revocations = [event for event in await delegation_harness.read_events() if event.type == "delegation.revoke"]
    assert len(revocations) == 3
    assert {event_data(event)["epoch"] for event in revocations} == {delegation_harness.read_epoch()}
    assert end_positions[0] < min(event.pos for event in revocations)


async def test_every_way_to_end_a_session_revokes_its_edges(delegation_harness: DelegationHarness) -> None:
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
    actors = {
        event.subject: event.actor
        for event in await delegation_harness.read_events()
        if event.type == "delegation.revoke"
    }
    assert actors == {by_parent.id: "tester", by_time.id: "sweep", by_stop.id: "tester"}
    assert delegation_harness.runtime.database.count("delegation_edges", "status = 'active'") == 0


async def test_cascade_revokes_the_edges_of_every_chunk(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=3)) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime)
        tree = await runtime.spawn_tree(9)
        [other] = await harness.spawn_sessions(1)
        edges = [await harness.delegate(session, other) for session in tree]
        await runtime.terminate(tree[0])
        assert await harness.read_statuses(*edges) == ["revoked"] * 10
        assert (await runtime.read_session(other)).status == "active"


async def test_ending_a_session_without_edges_does_not_change_delegations(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    await delegation_harness.delegate(a, b)
    await delegation_harness.runtime.terminate(c)
    assert delegation_harness.read_epoch() == 1
    assert len(await delegation_harness.read_events()) == 1


async def test_concurrent_delegation_and_termination_leave_no_active_edge(
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
