"""Delegations on both engines: made by authority, seen by whoever looks, told in the log, over with their time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN
from quarterdeck.core.errors import NotFound, Problem, Unauthenticated
from quarterdeck.domain.delegations.model import CHAIN_MAX, DelegatedEdge, EdgeRef, EdgeState, Expire
from quarterdeck.domain.delegations.sweeps import RETENTION
from quarterdeck.domain.sessions.model import Terminate
from tests.support.builders import APP, ZONE, admin, caller
from tests.support.delegations import DelegationHarness, delegate_command, event_data
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, result_names


@pytest.fixture
def delegation_harness(runtime: RuntimeHarness) -> DelegationHarness:
    return DelegationHarness(runtime)


# -- making ------------------------------------------------------------------------------------------------------


async def test_an_edge_is_kept_as_it_was_made_and_shown_as_it_is_kept(delegation_harness: DelegationHarness) -> None:
    one, other = await delegation_harness.spawn_sessions(2)
    made = await delegation_harness.delegate(
        one,
        other,
        scopes=("a",),
        resources=("r",),
        resource_id="r",
        constraints='{"note":{"x":[1,2]}}',
        hops=3,
        ttl_seconds=60,
    )
    assert made == await delegation_harness.read(made)
    assert made.status is EdgeState.ACTIVE
    assert (made.hops, made.resources, made.edge_version) == (3, '["r"]', 1)
    assert made.expires_at == made.created_at + 60_000


async def test_a_line_of_edges_narrows_and_names_its_parents(delegation_harness: DelegationHarness) -> None:
    first, second, third = await delegation_harness.spawn_sessions(3)
    above = await delegation_harness.delegate(first, second, scopes=("a", "b"))
    below = await delegation_harness.delegate(second, third, scopes=("b",))
    assert (below.parent_edge_id, below.hops) == (above.id, above.hops - 1)
    refusal = delegate_command(second.id, third.id, scopes=("c",))
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate_lane.submit(refusal)
    assert refused.value.code == "delegation_exceeds_authority"


async def test_of_edges_asked_for_in_one_instant_each_is_judged_after_those_before_it(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    asks = [
        delegate_command(a.id, b.id, scopes=("a",)),
        delegate_command(b.id, c.id, scopes=("a",)),
        delegate_command(c.id, a.id, scopes=("a",)),
        delegate_command(b.id, c.id, scopes=("x",)),
    ]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, asks), return_exceptions=True)
    assert result_names(outcomes) == [
        "DelegatedEdge",
        "DelegatedEdge",
        "delegation_cycle_denied",
        "delegation_exceeds_authority",
    ]
    assert isinstance(outcomes[1], DelegatedEdge)
    assert outcomes[1].edge.parent_edge_id == asks[0].id


async def test_two_edges_that_close_a_cycle_together_are_never_both_made(postgres_url: str) -> None:
    # Two processes' lanes on one database: what decides is the zone's lock. (One process owns a SQLite file.)
    async with open_runtime(postgres_url) as here, open_runtime(postgres_url) as there:
        await here.put_zone()
        lendings = [DelegationHarness(here), DelegationHarness(there)]
        for _ in range(10):
            a, b = await lendings[0].spawn_sessions(2)
            asks = [delegate_command(a.id, b.id), delegate_command(b.id, a.id)]
            outcomes = await asyncio.gather(
                *(each.delegate_lane.submit(ask) for each, ask in zip(lendings, asks, strict=True)),
                return_exceptions=True,
            )
            assert sorted(result_names(outcomes)) == ["DelegatedEdge", "delegation_cycle_denied"]


async def test_a_cycle_of_13_nodes_is_refused_whichever_edge_would_close_it(
    delegation_harness: DelegationHarness,
) -> None:
    for closing in (0, 6, 12):
        nodes = await delegation_harness.spawn_sessions(13)
        pairs = [(nodes[n], nodes[(n + 1) % 13]) for n in range(13)]
        # Forward, each derived from the one before it, and once backward, where none is derived from another.
        order = [*range(closing + 1, 13), *range(closing)]
        for n in reversed(order) if closing == 6 else order:
            await delegation_harness.delegate(*pairs[n])
        source, target = pairs[closing]
        with pytest.raises(Problem) as refused:
            await delegation_harness.delegate(source, target)
        assert refused.value.code == "delegation_cycle_denied"


async def test_an_edge_past_its_time_closes_no_cycle_though_no_sweep_has_come(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    past = await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(c, b)
    delegation_harness.expire_edges(past)
    asks = [delegate_command(b.id, a.id), delegate_command(a.id, b.id), delegate_command(c.id, a.id)]
    assert (await delegation_harness.delegate_lane.submit(asks[0])).created
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, asks[1:]), return_exceptions=True)
    assert result_names(outcomes) == ["delegation_cycle_denied", "DelegatedEdge"]


async def test_the_edges_of_one_zone_close_no_cycle_in_another(delegation_harness: DelegationHarness) -> None:
    await delegation_harness.runtime.put_zone("other")
    [a, b], [c, d] = await delegation_harness.spawn_sessions(2), await delegation_harness.spawn_sessions(2, "other")
    await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(d, c)
    for source, target in ((a.id, d.id), (c.id, b.id)):
        with pytest.raises(NotFound) as refused:
            await delegation_harness.delegate_lane.submit(delegate_command(source, target))
        assert refused.value.code == "delegation_endpoint_not_found"


async def test_a_suspended_session_neither_lends_nor_receives_until_it_is_resumed(
    delegation_harness: DelegationHarness,
) -> None:
    one, other = await delegation_harness.spawn_sessions(2)
    for asleep in (one, other):
        await delegation_harness.runtime.suspend(asleep)
        with pytest.raises(Problem) as refused:
            await delegation_harness.delegate(one, other)
        assert refused.value.code == "agent_suspended"
        await delegation_harness.runtime.resume(asleep)
    await delegation_harness.delegate(one, other)


async def test_a_token_that_speaks_for_an_ended_session_lends_revokes_and_sees_nothing(
    delegation_harness: DelegationHarness,
) -> None:
    one, other, own = await delegation_harness.spawn_sessions(3)
    edge = await delegation_harness.delegate(one, other)
    ghost = caller("console", COORDINATOR_ADMIN, session_id=own.id)
    await delegation_harness.runtime.terminate(own)
    with pytest.raises(Unauthenticated):
        await delegation_harness.delegate(other, one, caller=ghost)
    with pytest.raises(Unauthenticated):
        await delegation_harness.revoke(edge, ghost)
    with pytest.raises(Unauthenticated):
        await delegation_harness.show_lane.submit(EdgeRef(ZONE, edge.id, ghost.bearer))
    assert await delegation_harness.read_statuses(edge) == ["active"]


async def test_a_zone_that_is_not_there_is_said_so(delegation_harness: DelegationHarness) -> None:
    ask = msgspec.structs.replace(delegate_command("a", "b"), zone_id="nowhere", caller=admin("nowhere"))
    with pytest.raises(NotFound) as refused:
        await delegation_harness.delegate_lane.submit(ask)
    assert refused.value.code == "zone_not_found"
    with pytest.raises(NotFound):
        await delegation_harness.list_edges(zone_id="nowhere")


# -- keys --------------------------------------------------------------------------------------------------------


async def test_of_many_who_ask_with_one_key_one_makes_and_all_are_shown_the_same(
    delegation_harness: DelegationHarness,
) -> None:
    one, other = await delegation_harness.spawn_sessions(2)
    asks = [delegate_command(one.id, other.id, idempotency_key="k", request_digest="d") for _ in range(20)]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, asks))
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.edge.id for outcome in outcomes}) == 1
    [outcome] = await asyncio.gather(delegation_harness.delegate_lane.submit(asks[0]))
    assert (outcome.created, outcome.edge) == (False, outcomes[0].edge)
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate_lane.submit(
            delegate_command(one.id, other.id, idempotency_key="k", request_digest="other")
        )
    assert refused.value.code == "idempotency_key_conflict"


async def test_a_key_is_free_again_when_its_edge_is_over_and_a_refusal_binds_none(
    delegation_harness: DelegationHarness,
) -> None:
    one, other, third = await delegation_harness.spawn_sessions(3)
    first = await delegation_harness.delegate(one, other, idempotency_key="k", request_digest="d")
    await delegation_harness.revoke(first, keep_sessions=True)
    again = await delegation_harness.delegate(one, other, idempotency_key="k", request_digest="other")
    assert again.id != first.id
    with pytest.raises(Problem):
        await delegation_harness.delegate(
            third, one, idempotency_key="k2", request_digest="d", scopes=("x",), caller=caller(APP)
        )
    await delegation_harness.delegate(third, one, idempotency_key="k2", request_digest="d")


# -- looking -----------------------------------------------------------------------------------------------------


async def test_lists_are_newest_first_and_narrowed_by_source_target_and_how_edges_read(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    active, expired = await delegation_harness.delegate(a, b), await delegation_harness.delegate(a, c)
    revoked, past = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    await delegation_harness.revoke(revoked, keep_sessions=True)
    delegation_harness.expire_edges(expired, past)
    await delegation_harness.expire_lane.submit(Expire(ZONE, expired.id))

    async def found(**wanted: object) -> list[str]:
        return [edge.id for edge in await delegation_harness.list_edges(**wanted)]

    everything = [past.id, revoked.id, expired.id, active.id]
    assert await found() == everything
    assert await found(limit=2) == everything[:2]
    assert await found(before=revoked.id) == everything[2:]
    assert await found(source=a.id) == [revoked.id, expired.id, active.id]
    assert await found(target=c.id) == [past.id, revoked.id, expired.id]
    assert await found(source=a.id, target=c.id) == [revoked.id, expired.id]
    assert await found(status=EdgeState.ACTIVE) == [active.id]
    assert await found(status=EdgeState.REVOKED) == [revoked.id]
    assert await found(status=EdgeState.EXPIRED) == [past.id, expired.id]
    assert await found(source=b.id, status=EdgeState.EXPIRED) == [past.id]
    assert await found(target=c.id, status=EdgeState.ACTIVE) == []


async def test_what_is_ahead_of_an_edge_is_found_level_by_level_and_cut_at_the_limit(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    beside = await delegation_harness.delegate(b, d)  # before anything leads to b, and so derived from nothing
    first = await delegation_harness.delegate(a, b)
    second, parallel = await delegation_harness.delegate(b, c), await delegation_harness.delegate(b, c)
    third = await delegation_harness.delegate(c, d)
    found = await delegation_harness.traverse(first)
    assert [(each.level, each.derived, each.edge.id) for each in found.items] == [
        (0, True, first.id),
        (1, False, beside.id),
        (1, True, second.id),
        (1, True, parallel.id),
        (2, True, third.id),
    ]
    assert not found.truncated
    for limit in range(1, 5):
        cut = await delegation_harness.traverse(first, limit)
        assert (cut.items, cut.truncated) == (found.items[:limit], True)
    assert not (await delegation_harness.traverse(first, 5)).truncated
    await delegation_harness.revoke(first, keep_sessions=True)
    [alone] = (await delegation_harness.traverse(first)).items
    assert alone.edge.status == "revoked"


async def test_a_session_holds_what_its_active_edges_lend_edge_by_edge(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    assert (await delegation_harness.read_authority(c)).why_none == "No active delegation leads to it."
    one = await delegation_harness.delegate(a, c, scopes=("a",), resources=("r",))
    two = await delegation_harness.delegate(b, c, scopes=("b",), resources=("q",))
    held = await delegation_harness.read_authority(c)
    assert (held.session_id, held.scopes, held.resources) == (c.id, ["a", "b"], ["q", "r"])
    assert [edge.id for edge in held.edges] == [one.id, two.id]
    assert (held.epoch, held.why_none) == (delegation_harness.read_epoch(), None)
    everything = await delegation_harness.delegate(a, c, scopes=())
    assert (await delegation_harness.read_authority(c)).resources is None
    delegation_harness.expire_edges(everything)
    await delegation_harness.revoke(one, keep_sessions=True)
    assert (await delegation_harness.read_authority(c)).scopes == ["b"]


async def test_a_suspended_or_ended_session_holds_nothing_and_that_is_said(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    await delegation_harness.delegate(a, b, scopes=("a",))
    await delegation_harness.runtime.suspend(b)
    asleep = await delegation_harness.read_authority(b)
    assert (asleep.scopes, asleep.edges) == ([], [])
    assert "suspended" in str(asleep.why_none)
    await delegation_harness.runtime.resume(b)
    assert (await delegation_harness.read_authority(b)).scopes == ["a"]
    delegation_harness.runtime.database.expire_sessions(b)
    over = await delegation_harness.read_authority(b)
    assert (over.edges, over.resources) == ([], [])
    assert "ended" in str(over.why_none)


async def test_an_edge_ends_with_the_first_of_its_sessions_and_so_does_what_is_derived_from_it(
    delegation_harness: DelegationHarness,
) -> None:
    [a], [b, c] = await delegation_harness.spawn_sessions(1, ttl_seconds=60), await delegation_harness.spawn_sessions(2)
    first = await delegation_harness.delegate(a, b, scopes=("a",), ttl_seconds=3_600)
    second = await delegation_harness.delegate(b, c, scopes=("a",))
    into = await delegation_harness.delegate(
        c, (await delegation_harness.spawn_sessions(1, ttl_seconds=30))[0], ttl_seconds=50
    )
    assert first.expires_at == second.expires_at == a.expires_at
    assert into.expires_at < second.expires_at


async def test_authority_ends_with_whoever_lent_it_though_no_sweep_has_come(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain([a, b, c], scopes=("a",))
    delegation_harness.runtime.database.expire_sessions(a)
    delegation_harness.expire_edges(*edges)  # as it is with every edge whose lender's time is up
    assert (await delegation_harness.read_authority(b)).edges == []
    assert (await delegation_harness.read_authority(c)).edges == []
    with pytest.raises(Problem) as refused:
        await delegation_harness.delegate(c, d, scopes=("a",))
    assert refused.value.code == "delegation_exceeds_authority"


async def test_authority_ends_with_the_stamp_of_a_large_ending(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        lending = DelegationHarness(keel)
        tree = await keel.spawn_tree(4)
        receiver, further, other = await lending.spawn_sessions(3)
        edge = await lending.delegate(tree[0], receiver, scopes=("a",))
        await lending.delegate(receiver, further, scopes=("a",))
        ended = await keel.terminate_lane.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert ended.cascade_id
        assert await lending.read_statuses(edge) == ["active"], "nothing of it is settled yet"
        assert (await lending.read_authority(receiver)).edges == []
        assert (await lending.read_authority(further)).edges == [], "nor does what is derived from it"
        with pytest.raises(Problem) as refused:
            await lending.delegate(further, other, scopes=("a",))
        assert "has ended" in str(refused.value.members["exceeds"])
        assert "has ended" in (await lending.explain(edge)).why[0]
        await keel.cascade_runner.run_to_end(ended)
        assert await lending.read_statuses(edge) == ["revoked"]


async def test_an_edge_is_explained_with_its_line_and_what_it_would_refuse(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first = await delegation_harness.delegate(a, b, scopes=("a", "b"), resources=("r",), hops=2)
    second = await delegation_harness.delegate(b, c, scopes=("a",), resources=("r",), actions=("read",), budget=5)
    told = await delegation_harness.explain(second)
    assert [edge.id for edge in told.chain] == [first.id]
    assert told.ended_by is None
    assert any(first.id in sentence for sentence in told.why)
    for part in ("Scopes", "Resources", "hops", "time"):
        assert any(part in sentence for sentence in told.refuses), part
    await delegation_harness.revoke(first, caller("auditor", COORDINATOR_ADMIN), keep_sessions=True)
    over = await delegation_harness.explain(second)
    assert over.edge.ended_reason == "parent_revoked"
    assert over.refuses == ["Everything: it is revoked."]
    assert over.ended_by is not None
    assert over.ended_by["actor"] == "tester"
    assert "out of a caller's token" in (await delegation_harness.explain(first)).why[-1]


async def test_of_a_long_line_the_nearest_are_shown_and_that_there_are_more_is_said(
    delegation_harness: DelegationHarness,
) -> None:
    edges = await delegation_harness.delegate_chain(await delegation_harness.spawn_sessions(CHAIN_MAX + 3))
    whole, cut = (
        await delegation_harness.explain(edges[CHAIN_MAX]),
        await delegation_harness.explain(edges[CHAIN_MAX + 1]),
    )
    assert [edge.id for edge in whole.chain] == [edge.id for edge in reversed(edges[:CHAIN_MAX])]
    assert (whole.truncated, whole.why[-1]) == (
        False,
        f"It stands {CHAIN_MAX} below the first edge of its line, {edges[0].id}.",
    )
    assert [edge.id for edge in cut.chain] == [edge.id for edge in reversed(edges[1 : CHAIN_MAX + 1])]
    assert (cut.truncated, cut.why[-1]) == (True, f"It stands more than {CHAIN_MAX} below the first edge of its line.")


# -- the log, the epoch ------------------------------------------------------------------------------------------


async def test_every_change_is_told_with_both_sessions_and_the_epoch_rises_with_each_transaction(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first, second = await delegation_harness.delegate_chain([a, b, c], scopes=("a",))
    await delegation_harness.revoke(first, keep_sessions=True)
    events = await delegation_harness.read_events()
    assert [(event.type, event.subject) for event in events] == [
        ("delegation.create", first.id),
        ("delegation.create", second.id),
        ("delegation.revoke", first.id),
        ("delegation.revoke", second.id),
    ]
    assert [event_data(event)["epoch"] for event in events] == [1, 2, 3, 3]
    assert delegation_harness.read_epoch() == 3
    assert event_data(events[3]) == {
        "source_session_id": b.id,
        "target_session_id": c.id,
        "parent_edge_id": first.id,
        "scopes": ["a"],
        "epoch": 3,
        "reason": "parent_revoked",
    }
    assert [(event.from_state, event.to_state) for event in events[1:3]] == [(None, "active"), ("active", "revoked")]


async def test_one_transaction_raises_the_epoch_once_whatever_changes_in_it(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.runtime.put_zone("other")
    [e, f] = await delegation_harness.spawn_sessions(2, "other")
    await asyncio.gather(
        *(delegation_harness.delegate_lane.submit(delegate_command(a.id, each.id)) for each in (b, c, d)),
        delegation_harness.delegate(e, f),
    )
    assert {event_data(event)["epoch"] for event in await delegation_harness.read_events()} <= {1, 2}
    before = delegation_harness.read_epoch()
    # By whoever revokes, and by who hears of the sessions that end by it: one transaction.
    [edge] = await delegation_harness.list_edges(target=b.id)
    await delegation_harness.delegate(d, b)
    await delegation_harness.runtime.terminate(d)
    assert delegation_harness.read_epoch() == before + 2
    await delegation_harness.revoke(edge)
    assert delegation_harness.read_epoch() == before + 3
    assert delegation_harness.read_epoch("other") == 1


# -- time --------------------------------------------------------------------------------------------------------


async def test_expiry_is_written_down_by_a_sweep_and_ends_nobody(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    edges = await delegation_harness.delegate_chain([a, b, c])
    delegation_harness.expire_edges(*edges)
    assert await delegation_harness.read_statuses(*edges) == ["expired", "expired"], "it reads so before the sweep"
    shown = await delegation_harness.read(edges[0])
    assert await delegation_harness.run_sweep() == 2
    assert await delegation_harness.run_sweep() == 0
    after = await delegation_harness.read(edges[0])
    assert (after.ended_at, after.ended_reason) == (shown.ended_at, shown.ended_reason)
    assert (after.edge_version, after.status) == (2, EdgeState.EXPIRED)
    told = [event for event in await delegation_harness.read_events() if event.type == "delegation.expire"]
    assert {event.subject for event in told} == {edge.id for edge in edges}
    assert {event.actor for event in told} == {"sweep"}
    for session in (a, b, c):
        assert (await delegation_harness.runtime.read_session(session)).status == "active"


async def test_an_edge_that_is_past_its_time_is_not_revoked_and_ends_nobody(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    delegation_harness.expire_edges(edge)
    done = await delegation_harness.revoke(edge)
    assert (done.revoked_edges, done.terminated_agents) == (0, 0)
    assert (await delegation_harness.runtime.read_session(b)).status == "active"


async def test_the_sweep_takes_as_many_as_its_batch_and_leaves_what_still_lasts(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edges = [await delegation_harness.delegate(a, b) for _ in range(5)]
    delegation_harness.expire_edges(*edges[:4])
    assert await delegation_harness.run_sweep(batch=3) == 4
    assert await delegation_harness.read_statuses(*edges) == ["expired"] * 4 + ["active"]


async def test_two_sweeps_of_the_same_edges_mark_each_once(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as here, open_runtime(postgres_url) as there:
        await here.put_zone()
        one, other = DelegationHarness(here), DelegationHarness(there)
        a, b = await one.spawn_sessions(2)
        edges = [await one.delegate(a, b) for _ in range(20)]
        one.expire_edges(*edges)
        await asyncio.gather(one.run_sweep(), other.run_sweep())
        told = [event.subject for event in await one.read_events() if event.type == "delegation.expire"]
        assert sorted(told) == sorted(edge.id for edge in edges)


async def test_what_was_over_before_the_window_is_removed_and_nothing_else(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    old, young, active = [await delegation_harness.delegate(a, b) for _ in range(3)]
    await delegation_harness.revoke(old, keep_sessions=True)
    await delegation_harness.revoke(young, keep_sessions=True)
    delegation_harness.runtime.database.execute(
        "update delegation_edges set ended_at = ended_at - 86400000 where id = ?", old.id
    )
    assert await delegation_harness.run_sweep(RETENTION, days=2.0) == 0
    assert await delegation_harness.run_sweep(RETENTION, days=0.5) == 1
    assert {edge.id for edge in await delegation_harness.list_edges()} == {young.id, active.id}
    with pytest.raises(NotFound):
        await delegation_harness.read(old)
