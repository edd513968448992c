"""Delegations on both engines: creation, idempotency keys, reads, events, expiry and retention."""

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
from tests.support.runtime import RuntimeOptions, open_runtime, result_names

# -- creation ----------------------------------------------------------------------------------------------------


async def test_created_edge_is_stored_and_read_unchanged(delegation_harness: DelegationHarness) -> None:
    source, target = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(
        source,
        target,
        scopes=("a",),
        resources=("r",),
        resource_id="r",
        constraints='{"note":{"x":[1,2]}}',
        hops=3,
        ttl_seconds=60,
    )
    assert edge == await delegation_harness.read(edge)
    assert edge.status is EdgeState.ACTIVE
    assert (edge.hops, edge.resources, edge.edge_version) == (3, '["r"]', 1)
    assert edge.expires_at == edge.created_at + 60_000


async def test_derived_edge_names_its_parent_and_cannot_exceed_its_scopes(
    delegation_harness: DelegationHarness,
) -> None:
    first, second, third = await delegation_harness.spawn_sessions(3)
    parent = await delegation_harness.delegate(first, second, scopes=("a", "b"))
    child = await delegation_harness.delegate(second, third, scopes=("b",))
    assert (child.parent_edge_id, child.hops) == (parent.id, parent.hops - 1)
    command = delegate_command(second.id, third.id, scopes=("c",))
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate_lane.submit(command)
    assert problem.value.code == "delegation_exceeds_authority"


async def test_edges_of_one_batch_are_decided_in_order(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    commands = [
        delegate_command(a.id, b.id, scopes=("a",)),
        delegate_command(b.id, c.id, scopes=("a",)),
        delegate_command(c.id, a.id, scopes=("a",)),
        delegate_command(b.id, c.id, scopes=("x",)),
    ]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, commands), return_exceptions=True)
    assert result_names(outcomes) == [
        "DelegatedEdge",
        "DelegatedEdge",
        "delegation_cycle_denied",
        "delegation_exceeds_authority",
    ]
    assert isinstance(outcomes[1], DelegatedEdge)
    assert outcomes[1].edge.parent_edge_id == commands[0].id


async def test_concurrent_edges_that_would_form_a_cycle_are_not_both_created(postgres_url: str) -> None:
    # Two processes on one database: the zone lock decides. SQLite has only one process.
    async with open_runtime(postgres_url) as first, open_runtime(postgres_url) as second:
        await first.put_zone()
        harnesses = [DelegationHarness(first), DelegationHarness(second)]
        for _ in range(10):
            a, b = await harnesses[0].spawn_sessions(2)
            commands = [delegate_command(a.id, b.id), delegate_command(b.id, a.id)]
            outcomes = await asyncio.gather(
                *(harness.delegate_lane.submit(command) for harness, command in zip(harnesses, commands, strict=True)),
                return_exceptions=True,
            )
            assert sorted(result_names(outcomes)) == ["DelegatedEdge", "delegation_cycle_denied"]


async def test_cycle_of_13_sessions_is_refused_whichever_edge_closes_it(delegation_harness: DelegationHarness) -> None:
    for closing in (0, 6, 12):
        nodes = await delegation_harness.spawn_sessions(13)
        pairs = [(nodes[n], nodes[(n + 1) % 13]) for n in range(13)]
        # Forward, each edge is derived from the one before it. Backward (once), no edge is derived.
        order = [*range(closing + 1, 13), *range(closing)]
        for n in reversed(order) if closing == 6 else order:
            await delegation_harness.delegate(*pairs[n])
        source, target = pairs[closing]
        with pytest.raises(Problem) as problem:
            await delegation_harness.delegate(source, target)
        assert problem.value.code == "delegation_cycle_denied"


async def test_expired_edge_does_not_count_for_cycles_before_any_sweep(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    expired = await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(c, b)
    delegation_harness.expire_edges(expired)
    commands = [delegate_command(b.id, a.id), delegate_command(a.id, b.id), delegate_command(c.id, a.id)]
    assert (await delegation_harness.delegate_lane.submit(commands[0])).created
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, commands[1:]), return_exceptions=True)
    assert result_names(outcomes) == ["delegation_cycle_denied", "DelegatedEdge"]


async def test_delegation_to_a_session_of_another_zone_is_not_found(delegation_harness: DelegationHarness) -> None:
    await delegation_harness.runtime.put_zone("other")
    [a, b], [c, d] = await delegation_harness.spawn_sessions(2), await delegation_harness.spawn_sessions(2, "other")
    await delegation_harness.delegate(a, b)
    await delegation_harness.delegate(d, c)
    for source, target in ((a.id, d.id), (c.id, b.id)):
        with pytest.raises(NotFound) as problem:
            await delegation_harness.delegate_lane.submit(delegate_command(source, target))
        assert problem.value.code == "delegation_endpoint_not_found"


async def test_suspended_session_cannot_be_source_or_target_until_resumed(
    delegation_harness: DelegationHarness,
) -> None:
    source, target = await delegation_harness.spawn_sessions(2)
    for suspended in (source, target):
        await delegation_harness.runtime.suspend(suspended)
        with pytest.raises(Problem) as problem:
            await delegation_harness.delegate(source, target)
        assert problem.value.code == "agent_suspended"
        await delegation_harness.runtime.resume(suspended)
    await delegation_harness.delegate(source, target)


async def test_bearer_of_an_ended_session_cannot_delegate_revoke_or_read(delegation_harness: DelegationHarness) -> None:
    source, target, bearer = await delegation_harness.spawn_sessions(3)
    edge = await delegation_harness.delegate(source, target)
    ended_caller = caller("console", COORDINATOR_ADMIN, session_id=bearer.id)
    await delegation_harness.runtime.terminate(bearer)
    with pytest.raises(Unauthenticated):
        await delegation_harness.delegate(target, source, caller=ended_caller)
    with pytest.raises(Unauthenticated):
        await delegation_harness.revoke(edge, ended_caller)
    with pytest.raises(Unauthenticated):
        await delegation_harness.show_lane.submit(EdgeRef(ZONE, edge.id, ended_caller.bearer))
    assert await delegation_harness.read_statuses(edge) == ["active"]


async def test_delegation_in_a_missing_zone_is_zone_not_found(delegation_harness: DelegationHarness) -> None:
    command = msgspec.structs.replace(delegate_command("a", "b"), zone_id="missing", caller=admin("missing"))
    with pytest.raises(NotFound) as problem:
        await delegation_harness.delegate_lane.submit(command)
    assert problem.value.code == "zone_not_found"
    with pytest.raises(NotFound):
        await delegation_harness.list_edges(zone_id="missing")


# -- idempotency keys --------------------------------------------------------------------------------------------


async def test_concurrent_requests_with_one_key_create_one_edge(delegation_harness: DelegationHarness) -> None:
    source, target = await delegation_harness.spawn_sessions(2)
    commands = [delegate_command(source.id, target.id, idempotency_key="k", request_digest="d") for _ in range(20)]
    outcomes = await asyncio.gather(*map(delegation_harness.delegate_lane.submit, commands))
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.edge.id for outcome in outcomes}) == 1
    [outcome] = await asyncio.gather(delegation_harness.delegate_lane.submit(commands[0]))
    assert (outcome.created, outcome.edge) == (False, outcomes[0].edge)
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate_lane.submit(
            delegate_command(source.id, target.id, idempotency_key="k", request_digest="other")
        )
    assert problem.value.code == "idempotency_key_conflict"


async def test_key_is_reusable_after_its_edge_ends_or_its_request_was_refused(
    delegation_harness: DelegationHarness,
) -> None:
    source, target, third = await delegation_harness.spawn_sessions(3)
    first = await delegation_harness.delegate(source, target, idempotency_key="k", request_digest="d")
    await delegation_harness.revoke(first, keep_sessions=True)
    second = await delegation_harness.delegate(source, target, idempotency_key="k", request_digest="other")
    assert second.id != first.id
    with pytest.raises(Problem):
        await delegation_harness.delegate(
            third, source, idempotency_key="k2", request_digest="d", scopes=("x",), caller=caller(APP)
        )
    await delegation_harness.delegate(third, source, idempotency_key="k2", request_digest="d")


# -- reads -------------------------------------------------------------------------------------------------------


async def test_edges_are_listed_newest_first_and_filtered_by_source_target_and_status(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    active, expired = await delegation_harness.delegate(a, b), await delegation_harness.delegate(a, c)
    revoked, unswept = await delegation_harness.delegate(a, c), await delegation_harness.delegate(b, c)
    await delegation_harness.revoke(revoked, keep_sessions=True)
    delegation_harness.expire_edges(expired, unswept)
    await delegation_harness.expire_lane.submit(Expire(ZONE, expired.id))

    async def list_ids(**filters: object) -> list[str]:
        return [edge.id for edge in await delegation_harness.list_edges(**filters)]

    all_ids = [unswept.id, revoked.id, expired.id, active.id]
    assert await list_ids() == all_ids
    assert await list_ids(limit=2) == all_ids[:2]
    assert await list_ids(before=revoked.id) == all_ids[2:]
    assert await list_ids(source=a.id) == [revoked.id, expired.id, active.id]
    assert await list_ids(target=c.id) == [unswept.id, revoked.id, expired.id]
    assert await list_ids(source=a.id, target=c.id) == [revoked.id, expired.id]
    assert await list_ids(status=EdgeState.ACTIVE) == [active.id]
    assert await list_ids(status=EdgeState.REVOKED) == [revoked.id]
    assert await list_ids(status=EdgeState.EXPIRED) == [unswept.id, expired.id]
    assert await list_ids(source=b.id, status=EdgeState.EXPIRED) == [unswept.id]
    assert await list_ids(target=c.id, status=EdgeState.ACTIVE) == []


async def test_traversal_returns_edges_by_level_and_is_truncated_at_the_limit(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    underived = await delegation_harness.delegate(b, d)  # not derived: b has no inbound edge yet
    first = await delegation_harness.delegate(a, b)
    second, parallel = await delegation_harness.delegate(b, c), await delegation_harness.delegate(b, c)
    third = await delegation_harness.delegate(c, d)
    traversal = await delegation_harness.traverse(first)
    assert [(item.level, item.derived, item.edge.id) for item in traversal.items] == [
        (0, True, first.id),
        (1, False, underived.id),
        (1, True, second.id),
        (1, True, parallel.id),
        (2, True, third.id),
    ]
    assert not traversal.truncated
    for limit in range(1, 5):
        truncated = await delegation_harness.traverse(first, limit)
        assert (truncated.items, truncated.truncated) == (traversal.items[:limit], True)
    assert not (await delegation_harness.traverse(first, 5)).truncated
    await delegation_harness.revoke(first, keep_sessions=True)
    [only] = (await delegation_harness.traverse(first)).items
    assert only.edge.status == "revoked"


async def test_authority_of_a_session_is_the_union_of_its_active_edges(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    assert (await delegation_harness.read_authority(c)).why_none == "The session has no active inbound delegation."
    first = await delegation_harness.delegate(a, c, scopes=("a",), resources=("r",))
    second = await delegation_harness.delegate(b, c, scopes=("b",), resources=("q",))
    authority = await delegation_harness.read_authority(c)
    assert (authority.session_id, authority.scopes, authority.resources) == (c.id, ["a", "b"], ["q", "r"])
    assert [edge.id for edge in authority.edges] == [first.id, second.id]
    assert (authority.epoch, authority.why_none) == (delegation_harness.read_epoch(), None)
    unrestricted = await delegation_harness.delegate(a, c, scopes=())
    assert (await delegation_harness.read_authority(c)).resources is None
    delegation_harness.expire_edges(unrestricted)
    await delegation_harness.revoke(first, keep_sessions=True)
    assert (await delegation_harness.read_authority(c)).scopes == ["b"]


async def test_suspended_or_ended_session_has_no_authority_and_the_reply_says_why(
    delegation_harness: DelegationHarness,
) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    await delegation_harness.delegate(a, b, scopes=("a",))
    await delegation_harness.runtime.suspend(b)
    suspended = await delegation_harness.read_authority(b)
    assert (suspended.scopes, suspended.edges) == ([], [])
    assert "suspended" in str(suspended.why_none)
    await delegation_harness.runtime.resume(b)
    assert (await delegation_harness.read_authority(b)).scopes == ["a"]
    delegation_harness.runtime.database.expire_sessions(b)
    ended = await delegation_harness.read_authority(b)
    assert (ended.edges, ended.resources) == ([], [])
    assert "ended" in str(ended.why_none)


async def test_edge_expires_no_later_than_its_sessions_and_its_parent(delegation_harness: DelegationHarness) -> None:
    [a], [b, c] = await delegation_harness.spawn_sessions(1, ttl_seconds=60), await delegation_harness.spawn_sessions(2)
    first = await delegation_harness.delegate(a, b, scopes=("a",), ttl_seconds=3_600)
    second = await delegation_harness.delegate(b, c, scopes=("a",))
    last = await delegation_harness.delegate(
        c, (await delegation_harness.spawn_sessions(1, ttl_seconds=30))[0], ttl_seconds=50
    )
    assert first.expires_at == second.expires_at == a.expires_at
    assert last.expires_at < second.expires_at


async def test_authority_ends_when_its_source_session_expires_before_any_sweep(
    delegation_harness: DelegationHarness,
) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    edges = await delegation_harness.delegate_chain([a, b, c], scopes=("a",))
    delegation_harness.runtime.database.expire_sessions(a)
    delegation_harness.expire_edges(*edges)  # an edge never outlives its source session
    assert (await delegation_harness.read_authority(b)).edges == []
    assert (await delegation_harness.read_authority(c)).edges == []
    with pytest.raises(Problem) as problem:
        await delegation_harness.delegate(c, d, scopes=("a",))
    assert problem.value.code == "delegation_exceeds_authority"


async def test_authority_ends_when_a_cascade_marks_its_source(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        harness = DelegationHarness(runtime)
        tree = await runtime.spawn_tree(4)
        receiver, derived_receiver, other = await harness.spawn_sessions(3)
        edge = await harness.delegate(tree[0], receiver, scopes=("a",))
        await harness.delegate(receiver, derived_receiver, scopes=("a",))
        result = await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "requested", admin()))
        assert result.cascade_id
        assert await harness.read_statuses(edge) == ["active"], "no chunk has run yet"
        assert (await harness.read_authority(receiver)).edges == []
        assert (await harness.read_authority(derived_receiver)).edges == [], "a derived edge gives no authority either"
        with pytest.raises(Problem) as problem:
            await harness.delegate(derived_receiver, other, scopes=("a",))
        assert "has ended" in str(problem.value.members["exceeds"])
        assert "has ended" in (await harness.explain(edge)).why[0]
        await runtime.cascade_runner.run_to_end(result)
        assert await harness.read_statuses(edge) == ["revoked"]


async def test_explanation_of_an_edge_has_its_chain_and_its_limits(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    first = await delegation_harness.delegate(a, b, scopes=("a", "b"), resources=("r",), hops=2)
    second = await delegation_harness.delegate(b, c, scopes=("a",), resources=("r",), actions=("read",), budget=5)
    explanation = await delegation_harness.explain(second)
    assert [edge.id for edge in explanation.chain] == [first.id]
    assert explanation.ended_by is None
    assert any(first.id in sentence for sentence in explanation.why)
    for part in ("Scopes", "Resources", "hops", "expiry"):
        assert any(part in sentence for sentence in explanation.refuses), part
    await delegation_harness.revoke(first, caller("auditor", COORDINATOR_ADMIN), keep_sessions=True)
    ended = await delegation_harness.explain(second)
    assert ended.edge.ended_reason == "parent_revoked"
    assert ended.refuses == ["Everything: it is revoked."]
    assert ended.ended_by is not None
    assert ended.ended_by["actor"] == "tester"
    assert "from a caller's token" in (await delegation_harness.explain(first)).why[-1]


async def test_explanation_of_a_long_chain_is_truncated_to_the_nearest_edges(
    delegation_harness: DelegationHarness,
) -> None:
    edges = await delegation_harness.delegate_chain(await delegation_harness.spawn_sessions(CHAIN_MAX + 3))
    complete, truncated = (
        await delegation_harness.explain(edges[CHAIN_MAX]),
        await delegation_harness.explain(edges[CHAIN_MAX + 1]),
    )
    assert [edge.id for edge in complete.chain] == [edge.id for edge in reversed(edges[:CHAIN_MAX])]
    assert (complete.truncated, complete.why[-1]) == (
        False,
        f"Its chain has {CHAIN_MAX} parents and starts at {edges[0].id}.",
    )
    assert [edge.id for edge in truncated.chain] == [edge.id for edge in reversed(edges[1 : CHAIN_MAX + 1])]
    assert (truncated.truncated, truncated.why[-1]) == (True, f"Its chain has more than {CHAIN_MAX} parents.")


# -- events and epoch --------------------------------------------------------------------------------------------


async def test_events_have_both_sessions_and_each_transaction_raises_the_epoch(
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


async def test_one_transaction_raises_the_epoch_of_a_zone_once(delegation_harness: DelegationHarness) -> None:
    a, b, c, d = await delegation_harness.spawn_sessions(4)
    await delegation_harness.runtime.put_zone("other")
    [e, f] = await delegation_harness.spawn_sessions(2, "other")
    await asyncio.gather(
        *(delegation_harness.delegate_lane.submit(delegate_command(a.id, target.id)) for target in (b, c, d)),
        delegation_harness.delegate(e, f),
    )
    assert {event_data(event)["epoch"] for event in await delegation_harness.read_events()} <= {1, 2}
    before = delegation_harness.read_epoch()
    # Revoking and the listener for ended sessions run in one transaction.
    [edge] = await delegation_harness.list_edges(target=b.id)
    await delegation_harness.delegate(d, b)
    await delegation_harness.runtime.terminate(d)
    assert delegation_harness.read_epoch() == before + 2
    await delegation_harness.revoke(edge)
    assert delegation_harness.read_epoch() == before + 3
    assert delegation_harness.read_epoch("other") == 1


# -- expiry and retention ----------------------------------------------------------------------------------------


async def test_expiry_sweep_marks_edges_and_terminates_no_session(delegation_harness: DelegationHarness) -> None:
    a, b, c = await delegation_harness.spawn_sessions(3)
    edges = await delegation_harness.delegate_chain([a, b, c])
    delegation_harness.expire_edges(*edges)
    assert await delegation_harness.read_statuses(*edges) == ["expired", "expired"], (
        "edges read as expired before the sweep"
    )
    before = await delegation_harness.read(edges[0])
    assert await delegation_harness.run_sweep() == 2
    assert await delegation_harness.run_sweep() == 0
    after = await delegation_harness.read(edges[0])
    assert (after.ended_at, after.ended_reason) == (before.ended_at, before.ended_reason)
    assert (after.edge_version, after.status) == (2, EdgeState.EXPIRED)
    events = [event for event in await delegation_harness.read_events() if event.type == "delegation.expire"]
    assert {event.subject for event in events} == {edge.id for edge in edges}
    assert {event.actor for event in events} == {"sweep"}
    for session in (a, b, c):
        assert (await delegation_harness.runtime.read_session(session)).status == "active"


async def test_revoking_an_expired_edge_changes_nothing(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edge = await delegation_harness.delegate(a, b)
    delegation_harness.expire_edges(edge)
    result = await delegation_harness.revoke(edge)
    assert (result.revoked_edges, result.terminated_agents) == (0, 0)
    assert (await delegation_harness.runtime.read_session(b)).status == "active"


async def test_expiry_sweep_runs_in_batches_and_keeps_active_edges(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    edges = [await delegation_harness.delegate(a, b) for _ in range(5)]
    delegation_harness.expire_edges(*edges[:4])
    assert await delegation_harness.run_sweep(batch=3) == 4
    assert await delegation_harness.read_statuses(*edges) == ["expired"] * 4 + ["active"]


async def test_concurrent_sweeps_expire_each_edge_once(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as first_runtime, open_runtime(postgres_url) as second_runtime:
        await first_runtime.put_zone()
        first, second = DelegationHarness(first_runtime), DelegationHarness(second_runtime)
        a, b = await first.spawn_sessions(2)
        edges = [await first.delegate(a, b) for _ in range(20)]
        first.expire_edges(*edges)
        await asyncio.gather(first.run_sweep(), second.run_sweep())
        expired_ids = [event.subject for event in await first.read_events() if event.type == "delegation.expire"]
        assert sorted(expired_ids) == sorted(edge.id for edge in edges)


async def test_retention_deletes_only_edges_that_ended_before_the_window(delegation_harness: DelegationHarness) -> None:
    a, b = await delegation_harness.spawn_sessions(2)
    old, recent, active = [await delegation_harness.delegate(a, b) for _ in range(3)]
    await delegation_harness.revoke(old, keep_sessions=True)
    await delegation_harness.revoke(recent, keep_sessions=True)
    delegation_harness.runtime.database.execute(
        "update delegation_edges set ended_at = ended_at - 86400000 where id = ?", old.id
    )
    assert await delegation_harness.run_sweep(RETENTION, days=2.0) == 0
    assert await delegation_harness.run_sweep(RETENTION, days=0.5) == 1
    assert {edge.id for edge in await delegation_harness.list_edges()} == {recent.id, active.id}
    with pytest.raises(NotFound):
        await delegation_harness.read(old)
