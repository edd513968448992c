"""Delegating: load under the zones' locks, decide by `rules.lending`, write set by set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Binding, Key
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Delegate, Delegated, Edge, Standing
from quarterdeck.domain.delegations.operations import topological_order
from quarterdeck.domain.delegations.operations.end_edges import created, load_zones, raise_epochs, standings_of
from quarterdeck.domain.delegations.operations.reads import hollow
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import Known, Ledger, Ref
from quarterdeck.domain.delegations.rules.creation import key_of
from quarterdeck.domain.delegations.rules.topological_order import Crowded, Walk
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.operations.caller_session import bearers_of
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import idempotency
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

Batch = list[tuple[object, ...]]


async def delegate(tx: Tx, asks: Sequence[Delegate]) -> list[Delegated | Problem | Busy]:
    """Makes edges. One round trip before they are written; more only for keys, for an edge against the order, and while
    an ending is under way. Nothing is walked for a zone that is busy."""
    concerned = zones_of(asks)
    sources: Batch = [*sorted({(ask.zone_id, ask.source_session_id) for ask in asks})]
    ends = {(ask.zone_id, name) for ask in asks for name in (ask.source_session_id, ask.target_session_id)}
    locked_rows, named, into, led_to, rank_rows, zone_rows, session_rows = await tx.read(
        zones.lock(tx, concerned),
        Q.delegations_get(batch=_named(asks)),
        Q.delegations_into(batch=sources),
        Q.delegations_led_to(batch=sources),
        Q.delegation_ranks_get(batch=[*sorted(ends)]),
        load_zones(concerned),
        sessions.get(sorted(ends | bearers_of(asks))),
    )
    why_not = await zones.unlocked(tx, concerned - zones.locked(locked_rows).keys())
    waiting = [sessions.held_up(ask, why_not) if why_not else None for ask in asks]
    judged = [ask for ask, wait in zip(asks, waiting, strict=True) if wait is None]
    standings = standings_of(zone_rows)
    edges = _by_ref([*named, *into])
    known = Known(
        now=tx.now,
        sessions=sessions.by_ref(session_rows),
        edges=edges,
        hollow=await hollow(tx, _of_zones(edges, judged), standings),
        led_to={(str(zone_id), str(session_id)) for zone_id, session_id in led_to},
        ranks={(str(zone_id), str(name)): int(str(rank)) for zone_id, name, rank in rank_rows},
        bounds={zone_id: standing.bounds for zone_id, standing in standings.items()},
    )
    ledger = rules.Ledger(await _with_keys(tx, judged, known))
    for zone_id in sorted({ask.zone_id for ask in judged}):
        if standings[zone_id].ranked != standings[zone_id].epoch:
            await topological_order.make(tx, zone_id, ledger.order)
    decided = iter([await _decide(tx, ledger, ask) for ask in judged])
    outcomes = [wait or next(decided) for wait in waiting]
    _write(tx, ledger)
    _tell(tx, asks, outcomes, standings)
    return outcomes


async def _decide(tx: Tx, ledger: Ledger, ask: Delegate) -> Delegated | Problem:
    while isinstance(found := ledger.decide(ask), Walk | Crowded):
        # What was decided before it counts, so it must be there to be seen.
        _write(tx, ledger)
        await topological_order.supply(tx, ledger.order, found)
    return found


def _of_zones(edges: Iterable[Ref], asks: Sequence[Delegate]) -> list[Ref]:
    judged = {ask.zone_id for ask in asks}
    return [ref for ref in edges if ref[0] in judged]


def _named(asks: Iterable[Delegate]) -> Batch:
    """The edges that asks name as their parents, and those that callers' tokens are held to."""
    names = {
        (ask.zone_id, name)
        for ask in asks
        for name in (ask.parent_edge_id, ask.caller.delegation_edge_id)
        if name is not None
    }
    return [*sorted(names)]


def _by_ref(rows: Sequence[Row]) -> dict[Ref, Edge]:
    return {(edge.zone_id, edge.id): edge for edge in decode(rows, Edge)}


async def _with_keys(tx: Tx, asks: Sequence[Delegate], known: Known) -> Known:
    """What the keys of a batch stand for. Whose they are is known only now: they are their sources' applications'."""
    keys: set[Key] = set()
    for ask in asks:
        source = known.sessions.get((ask.zone_id, ask.source_session_id))
        if ask.key is not None and source is not None:
            keys.add(key_of(ask, source))
    if not keys:
        return known
    bound, edges = await tx.read(
        idempotency.load([*keys]), Q.delegations_of_keys(batch=[msgspec.structs.astuple(key) for key in keys])
    )
    return dataclasses.replace(known, keys=idempotency.loaded(bound), edges={**known.edges, **_by_ref(edges)})


def _write(tx: Tx, ledger: Ledger) -> None:
    """The edges that were made since the last time, and the order they stand in."""
    if made := ledger.take():
        tx.write(Q.delegations_insert(batch=[msgspec.structs.astuple(edge) for edge in made]))
    topological_order.write(tx, ledger.order)


def _tell(
    tx: Tx, asks: Sequence[Delegate], outcomes: Sequence[Delegated | Problem | Busy], standings: Mapping[str, Standing]
) -> None:
    """Binds the keys of what was made, raises the epochs, and tells of each edge."""
    made = [
        (ask, outcome.edge)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, Delegated) and outcome.created
    ]
    if bindings := [_binding(ask, edge) for ask, edge in made if ask.key is not None]:
        tx.write(idempotency.store(bindings, tx.now))
    raised = raise_epochs(tx, {edge.zone_id for _, edge in made}, standings)
    for _, edge in made:
        tx.emit(created(edge, raised[edge.zone_id]))


def _binding(ask: Delegate, edge: Edge) -> Binding:
    return Binding(ask.zone_id, edge.issuer_application_id, rules.CREATE, ask.key or "", ask.digest, edge.id)
