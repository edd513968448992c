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
from tests.support.asking import APP, ZONE, admin, caller
from tests.support.keel import Keel, Rigging, codes, keel_on
from tests.support.lending import Lending, data_of, delegate


@pytest.fixture
def lending(keel: Keel) -> Lending:
    return Lending(keel)


# -- making ------------------------------------------------------------------------------------------------------


async def test_an_edge_is_kept_as_it_was_made_and_shown_as_it_is_kept(lending: Lending) -> None:
    one, other = await lending.sessions(2)
    made = await lending.lend(
        one,
        other,
        scopes=("a",),
        resources=("r",),
        resource_id="r",
        constraints='{"note":{"x":[1,2]}}',
        hops=3,
        ttl_seconds=60,
    )
    assert made == await lending.show(made)
    assert made.status is EdgeState.ACTIVE
    assert (made.hops, made.resources, made.edge_version) == (3, '["r"]', 1)
    assert made.expires_at == made.created_at + 60_000


async def test_a_line_of_edges_narrows_and_names_its_parents(lending: Lending) -> None:
    first, second, third = await lending.sessions(3)
    above = await lending.lend(first, second, scopes=("a", "b"))
    below = await lending.lend(second, third, scopes=("b",))
    assert (below.parent_edge_id, below.hops) == (above.id, above.hops - 1)
    refusal = delegate(second.id, third.id, scopes=("c",))
    with pytest.raises(Problem) as refused:
        await lending.delegates.submit(refusal)
    assert refused.value.code == "delegation_exceeds_authority"


async def test_of_edges_asked_for_in_one_instant_each_is_judged_after_those_before_it(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    asks = [
        delegate(a.id, b.id, scopes=("a",)),
        delegate(b.id, c.id, scopes=("a",)),
        delegate(c.id, a.id, scopes=("a",)),
        delegate(b.id, c.id, scopes=("x",)),
    ]
    outcomes = await asyncio.gather(*map(lending.delegates.submit, asks), return_exceptions=True)
    assert codes(outcomes) == [
        "DelegatedEdge",
        "DelegatedEdge",
        "delegation_cycle_denied",
        "delegation_exceeds_authority",
    ]
    assert isinstance(outcomes[1], DelegatedEdge)
    assert outcomes[1].edge.parent_edge_id == asks[0].id


async def test_two_edges_that_close_a_cycle_together_are_never_both_made(postgres_url: str) -> None:
    # Two processes' lanes on one database: what decides is the zone's lock. (One process owns a SQLite file.)
    async with keel_on(postgres_url) as here, keel_on(postgres_url) as there:
        await here.zone()
        lendings = [Lending(here), Lending(there)]
        for _ in range(10):
            a, b = await lendings[0].sessions(2)
            asks = [delegate(a.id, b.id), delegate(b.id, a.id)]
            outcomes = await asyncio.gather(
                *(each.delegates.submit(ask) for each, ask in zip(lendings, asks, strict=True)), return_exceptions=True
            )
            assert sorted(codes(outcomes)) == ["DelegatedEdge", "delegation_cycle_denied"]


async def test_a_cycle_of_13_nodes_is_refused_whichever_edge_would_close_it(lending: Lending) -> None:
    for closing in (0, 6, 12):
        nodes = await lending.sessions(13)
        pairs = [(nodes[n], nodes[(n + 1) % 13]) for n in range(13)]
        # Forward, each derived from the one before it, and once backward, where none is derived from another.
        order = [*range(closing + 1, 13), *range(closing)]
        for n in reversed(order) if closing == 6 else order:
            await lending.lend(*pairs[n])
        source, target = pairs[closing]
        with pytest.raises(Problem) as refused:
            await lending.lend(source, target)
        assert refused.value.code == "delegation_cycle_denied"


async def test_an_edge_past_its_time_closes_no_cycle_though_no_sweep_has_come(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    past = await lending.lend(a, b)
    await lending.lend(c, b)
    lending.let_expire(past)
    asks = [delegate(b.id, a.id), delegate(a.id, b.id), delegate(c.id, a.id)]
    assert (await lending.delegates.submit(asks[0])).created
    outcomes = await asyncio.gather(*map(lending.delegates.submit, asks[1:]), return_exceptions=True)
    assert codes(outcomes) == ["delegation_cycle_denied", "DelegatedEdge"]


async def test_the_edges_of_one_zone_close_no_cycle_in_another(lending: Lending) -> None:
    await lending.keel.zone("other")
    [a, b], [c, d] = await lending.sessions(2), await lending.sessions(2, "other")
    await lending.lend(a, b)
    await lending.lend(d, c)
    for source, target in ((a.id, d.id), (c.id, b.id)):
        with pytest.raises(NotFound) as refused:
            await lending.delegates.submit(delegate(source, target))
        assert refused.value.code == "delegation_endpoint_not_found"


async def test_a_suspended_session_neither_lends_nor_receives_until_it_is_resumed(lending: Lending) -> None:
    one, other = await lending.sessions(2)
    for asleep in (one, other):
        await lending.keel.suspend(asleep)
        with pytest.raises(Problem) as refused:
            await lending.lend(one, other)
        assert refused.value.code == "agent_suspended"
        await lending.keel.resume(asleep)
    await lending.lend(one, other)


async def test_a_token_that_speaks_for_an_ended_session_lends_revokes_and_sees_nothing(lending: Lending) -> None:
    one, other, own = await lending.sessions(3)
    edge = await lending.lend(one, other)
    ghost = caller("console", COORDINATOR_ADMIN, session_id=own.id)
    await lending.keel.end(own)
    with pytest.raises(Unauthenticated):
        await lending.lend(other, one, caller=ghost)
    with pytest.raises(Unauthenticated):
        await lending.revoke(edge, ghost)
    with pytest.raises(Unauthenticated):
        await lending.shows.submit(EdgeRef(ZONE, edge.id, ghost.bearer))
    assert await lending.status(edge) == ["active"]


async def test_a_zone_that_is_not_there_is_said_so(lending: Lending) -> None:
    ask = msgspec.structs.replace(delegate("a", "b"), zone_id="nowhere", caller=admin("nowhere"))
    with pytest.raises(NotFound) as refused:
        await lending.delegates.submit(ask)
    assert refused.value.code == "zone_not_found"
    with pytest.raises(NotFound):
        await lending.page(zone_id="nowhere")


# -- keys --------------------------------------------------------------------------------------------------------


async def test_of_many_who_ask_with_one_key_one_makes_and_all_are_shown_the_same(lending: Lending) -> None:
    one, other = await lending.sessions(2)
    asks = [delegate(one.id, other.id, idempotency_key="k", request_digest="d") for _ in range(20)]
    outcomes = await asyncio.gather(*map(lending.delegates.submit, asks))
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.edge.id for outcome in outcomes}) == 1
    [outcome] = await asyncio.gather(lending.delegates.submit(asks[0]))
    assert (outcome.created, outcome.edge) == (False, outcomes[0].edge)
    with pytest.raises(Problem) as refused:
        await lending.delegates.submit(delegate(one.id, other.id, idempotency_key="k", request_digest="other"))
    assert refused.value.code == "idempotency_key_conflict"


async def test_a_key_is_free_again_when_its_edge_is_over_and_a_refusal_binds_none(lending: Lending) -> None:
    one, other, third = await lending.sessions(3)
    first = await lending.lend(one, other, idempotency_key="k", request_digest="d")
    await lending.revoke(first, keep_sessions=True)
    again = await lending.lend(one, other, idempotency_key="k", request_digest="other")
    assert again.id != first.id
    with pytest.raises(Problem):
        await lending.lend(third, one, idempotency_key="k2", request_digest="d", scopes=("x",), caller=caller(APP))
    await lending.lend(third, one, idempotency_key="k2", request_digest="d")


# -- looking -----------------------------------------------------------------------------------------------------


async def test_lists_are_newest_first_and_narrowed_by_source_target_and_how_edges_read(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    active, expired = await lending.lend(a, b), await lending.lend(a, c)
    revoked, past = await lending.lend(a, c), await lending.lend(b, c)
    await lending.revoke(revoked, keep_sessions=True)
    lending.let_expire(expired, past)
    await lending.expires.submit(Expire(ZONE, expired.id))

    async def found(**wanted: object) -> list[str]:
        return [edge.id for edge in await lending.page(**wanted)]

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


async def test_what_is_ahead_of_an_edge_is_found_level_by_level_and_cut_at_the_limit(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    beside = await lending.lend(b, d)  # before anything leads to b, and so derived from nothing
    first = await lending.lend(a, b)
    second, parallel = await lending.lend(b, c), await lending.lend(b, c)
    third = await lending.lend(c, d)
    found = await lending.traverse(first)
    assert [(each.level, each.derived, each.edge.id) for each in found.items] == [
        (0, True, first.id),
        (1, False, beside.id),
        (1, True, second.id),
        (1, True, parallel.id),
        (2, True, third.id),
    ]
    assert not found.truncated
    for limit in range(1, 5):
        cut = await lending.traverse(first, limit)
        assert (cut.items, cut.truncated) == (found.items[:limit], True)
    assert not (await lending.traverse(first, 5)).truncated
    await lending.revoke(first, keep_sessions=True)
    [alone] = (await lending.traverse(first)).items
    assert alone.edge.status == "revoked"


async def test_a_session_holds_what_its_active_edges_lend_edge_by_edge(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    assert (await lending.authority(c)).why_none == "No active delegation leads to it."
    one = await lending.lend(a, c, scopes=("a",), resources=("r",))
    two = await lending.lend(b, c, scopes=("b",), resources=("q",))
    held = await lending.authority(c)
    assert (held.session_id, held.scopes, held.resources) == (c.id, ["a", "b"], ["q", "r"])
    assert [edge.id for edge in held.edges] == [one.id, two.id]
    assert (held.epoch, held.why_none) == (lending.epoch(), None)
    everything = await lending.lend(a, c, scopes=())
    assert (await lending.authority(c)).resources is None
    lending.let_expire(everything)
    await lending.revoke(one, keep_sessions=True)
    assert (await lending.authority(c)).scopes == ["b"]


async def test_a_suspended_or_ended_session_holds_nothing_and_that_is_said(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    await lending.lend(a, b, scopes=("a",))
    await lending.keel.suspend(b)
    asleep = await lending.authority(b)
    assert (asleep.scopes, asleep.edges) == ([], [])
    assert "suspended" in str(asleep.why_none)
    await lending.keel.resume(b)
    assert (await lending.authority(b)).scopes == ["a"]
    lending.keel.side.expire(b)
    over = await lending.authority(b)
    assert (over.edges, over.resources) == ([], [])
    assert "ended" in str(over.why_none)


async def test_an_edge_ends_with_the_first_of_its_sessions_and_so_does_what_is_derived_from_it(
    lending: Lending,
) -> None:
    [a], [b, c] = await lending.sessions(1, ttl_seconds=60), await lending.sessions(2)
    first = await lending.lend(a, b, scopes=("a",), ttl_seconds=3_600)
    second = await lending.lend(b, c, scopes=("a",))
    into = await lending.lend(c, (await lending.sessions(1, ttl_seconds=30))[0], ttl_seconds=50)
    assert first.expires_at == second.expires_at == a.expires_at
    assert into.expires_at < second.expires_at


async def test_authority_ends_with_whoever_lent_it_though_no_sweep_has_come(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    edges = await lending.chain([a, b, c], scopes=("a",))
    lending.keel.side.expire(a)
    lending.let_expire(*edges)  # as it is with every edge whose lender's time is up
    assert (await lending.authority(b)).edges == []
    assert (await lending.authority(c)).edges == []
    with pytest.raises(Problem) as refused:
        await lending.lend(c, d, scopes=("a",))
    assert refused.value.code == "delegation_exceeds_authority"


async def test_authority_ends_with_the_stamp_of_a_large_ending(engine_url: str) -> None:
    async with keel_on(engine_url, Rigging(chunk=2)) as keel:
        await keel.zone()
        lending = Lending(keel)
        tree = await keel.tree(4)
        receiver, further, other = await lending.sessions(3)
        edge = await lending.lend(tree[0], receiver, scopes=("a",))
        await lending.lend(receiver, further, scopes=("a",))
        ended = await keel.endings.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert ended.cascade_id
        assert await lending.status(edge) == ["active"], "nothing of it is settled yet"
        assert (await lending.authority(receiver)).edges == []
        assert (await lending.authority(further)).edges == [], "nor does what is derived from it"
        with pytest.raises(Problem) as refused:
            await lending.lend(further, other, scopes=("a",))
        assert "has ended" in str(refused.value.members["exceeds"])
        assert "has ended" in (await lending.explain(edge)).why[0]
        await keel.finisher.run_to_end(ended)
        assert await lending.status(edge) == ["revoked"]


async def test_an_edge_is_explained_with_its_line_and_what_it_would_refuse(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    first = await lending.lend(a, b, scopes=("a", "b"), resources=("r",), hops=2)
    second = await lending.lend(b, c, scopes=("a",), resources=("r",), actions=("read",), budget=5)
    told = await lending.explain(second)
    assert [edge.id for edge in told.chain] == [first.id]
    assert told.ended_by is None
    assert any(first.id in sentence for sentence in told.why)
    for part in ("Scopes", "Resources", "hops", "time"):
        assert any(part in sentence for sentence in told.refuses), part
    await lending.revoke(first, caller("auditor", COORDINATOR_ADMIN), keep_sessions=True)
    over = await lending.explain(second)
    assert over.edge.ended_reason == "parent_revoked"
    assert over.refuses == ["Everything: it is revoked."]
    assert over.ended_by is not None
    assert over.ended_by["actor"] == "tester"
    assert "out of a caller's token" in (await lending.explain(first)).why[-1]


async def test_of_a_long_line_the_nearest_are_shown_and_that_there_are_more_is_said(lending: Lending) -> None:
    edges = await lending.chain(await lending.sessions(CHAIN_MAX + 3))
    whole, cut = await lending.explain(edges[CHAIN_MAX]), await lending.explain(edges[CHAIN_MAX + 1])
    assert [edge.id for edge in whole.chain] == [edge.id for edge in reversed(edges[:CHAIN_MAX])]
    assert (whole.truncated, whole.why[-1]) == (
        False,
        f"It stands {CHAIN_MAX} below the first edge of its line, {edges[0].id}.",
    )
    assert [edge.id for edge in cut.chain] == [edge.id for edge in reversed(edges[1 : CHAIN_MAX + 1])]
    assert (cut.truncated, cut.why[-1]) == (True, f"It stands more than {CHAIN_MAX} below the first edge of its line.")


# -- the log, the epoch ------------------------------------------------------------------------------------------


async def test_every_change_is_told_with_both_sessions_and_the_epoch_rises_with_each_transaction(
    lending: Lending,
) -> None:
    a, b, c = await lending.sessions(3)
    first, second = await lending.chain([a, b, c], scopes=("a",))
    await lending.revoke(first, keep_sessions=True)
    events = await lending.events()
    assert [(event.type, event.subject) for event in events] == [
        ("delegation.create", first.id),
        ("delegation.create", second.id),
        ("delegation.revoke", first.id),
        ("delegation.revoke", second.id),
    ]
    assert [data_of(event)["epoch"] for event in events] == [1, 2, 3, 3]
    assert lending.epoch() == 3
    assert data_of(events[3]) == {
        "source_session_id": b.id,
        "target_session_id": c.id,
        "parent_edge_id": first.id,
        "scopes": ["a"],
        "epoch": 3,
        "reason": "parent_revoked",
    }
    assert [(event.from_state, event.to_state) for event in events[1:3]] == [(None, "active"), ("active", "revoked")]


async def test_one_transaction_raises_the_epoch_once_whatever_changes_in_it(lending: Lending) -> None:
    a, b, c, d = await lending.sessions(4)
    await lending.keel.zone("other")
    [e, f] = await lending.sessions(2, "other")
    await asyncio.gather(*(lending.delegates.submit(delegate(a.id, each.id)) for each in (b, c, d)), lending.lend(e, f))
    assert {data_of(event)["epoch"] for event in await lending.events()} <= {1, 2}
    before = lending.epoch()
    # By whoever revokes, and by who hears of the sessions that end by it: one transaction.
    [edge] = await lending.page(target=b.id)
    await lending.lend(d, b)
    await lending.keel.end(d)
    assert lending.epoch() == before + 2
    await lending.revoke(edge)
    assert lending.epoch() == before + 3
    assert lending.epoch("other") == 1


# -- time --------------------------------------------------------------------------------------------------------


async def test_expiry_is_written_down_by_a_sweep_and_ends_nobody(lending: Lending) -> None:
    a, b, c = await lending.sessions(3)
    edges = await lending.chain([a, b, c])
    lending.let_expire(*edges)
    assert await lending.status(*edges) == ["expired", "expired"], "it reads so before the sweep"
    shown = await lending.show(edges[0])
    assert await lending.sweep() == 2
    assert await lending.sweep() == 0
    after = await lending.show(edges[0])
    assert (after.ended_at, after.ended_reason) == (shown.ended_at, shown.ended_reason)
    assert (after.edge_version, after.status) == (2, EdgeState.EXPIRED)
    told = [event for event in await lending.events() if event.type == "delegation.expire"]
    assert {event.subject for event in told} == {edge.id for edge in edges}
    assert {event.actor for event in told} == {"sweep"}
    for session in (a, b, c):
        assert (await lending.keel.show(session)).status == "active"


async def test_an_edge_that_is_past_its_time_is_not_revoked_and_ends_nobody(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    edge = await lending.lend(a, b)
    lending.let_expire(edge)
    done = await lending.revoke(edge)
    assert (done.revoked_edges, done.terminated_agents) == (0, 0)
    assert (await lending.keel.show(b)).status == "active"


async def test_the_sweep_takes_as_many_as_its_batch_and_leaves_what_still_lasts(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    edges = [await lending.lend(a, b) for _ in range(5)]
    lending.let_expire(*edges[:4])
    assert await lending.sweep(batch=3) == 4
    assert await lending.status(*edges) == ["expired"] * 4 + ["active"]


async def test_two_sweeps_of_the_same_edges_mark_each_once(postgres_url: str) -> None:
    async with keel_on(postgres_url) as here, keel_on(postgres_url) as there:
        await here.zone()
        one, other = Lending(here), Lending(there)
        a, b = await one.sessions(2)
        edges = [await one.lend(a, b) for _ in range(20)]
        one.let_expire(*edges)
        await asyncio.gather(one.sweep(), other.sweep())
        told = [event.subject for event in await one.events() if event.type == "delegation.expire"]
        assert sorted(told) == sorted(edge.id for edge in edges)


async def test_what_was_over_before_the_window_is_removed_and_nothing_else(lending: Lending) -> None:
    a, b = await lending.sessions(2)
    old, young, active = [await lending.lend(a, b) for _ in range(3)]
    await lending.revoke(old, keep_sessions=True)
    await lending.revoke(young, keep_sessions=True)
    lending.keel.side.run("update delegation_edges set ended_at = ended_at - 86400000 where id = ?", old.id)
    assert await lending.sweep(RETENTION, days=2.0) == 0
    assert await lending.sweep(RETENTION, days=0.5) == 1
    assert {edge.id for edge in await lending.page()} == {young.id, active.id}
    with pytest.raises(NotFound):
        await lending.show(old)
