"""Delegating: load under the zones' locks, decide by `rules.lending`, write set by set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.keys import Binding, Key
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Delegate, Delegated, Edge
from quarterdeck.domain.delegations.operations.ending import created, epochs_of, load_epochs, raise_epochs
from quarterdeck.domain.delegations.operations.holding import hollow, lenders, sessions_as_read
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import Known, Ref
from quarterdeck.domain.delegations.rules.lending import key_of
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.operations.bearers import bearers_of
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import idempotency
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row, decode

Batch = list[tuple[object, ...]]


async def delegate(tx: Tx, asks: Sequence[Delegate]) -> list[Delegated | Problem | Busy]:
    """Makes edges. One round trip for the locks and the graph, one for the sessions; seldom more."""
    concerned = zones_of(asks)
    sources: Batch = [*sorted({(ask.zone_id, ask.source_session_id) for ask in asks})]
    locked_rows, named, into, led_to, line_rows, ahead, epoch_rows = await tx.read(
        zones.lock(tx, concerned),
        Q.delegations_get(batch=_named(asks)),
        Q.delegations_into(batch=sources),
        Q.delegations_led_to(batch=sources),
        Q.delegations_lenders(batch=sources),
        Q.delegations_ahead(batch=_walks(asks)),
        load_epochs(concerned),
    )
    lines = lenders(line_rows)
    ends = {(ask.zone_id, name) for ask in asks for name in (ask.source_session_id, ask.target_session_id)}
    wanted = ends | bearers_of(asks) | {ref for line in lines.values() for ref in line}
    found = await sessions_as_read(tx, wanted)
    known = Known(
        now=tx.now,
        sessions=found,
        edges=_by_ref([*named, *into]),
        hollow=hollow(lines, found),
        led_to={(str(zone_id), str(session_id)) for zone_id, session_id in led_to},
        reach=await _reach(tx, asks, ahead),
    )
    why_not = await zones.unlocked(tx, concerned - zones.locked(locked_rows).keys())
    waiting = [sessions.held_up(ask, why_not) if why_not else None for ask in asks]
    judged = [ask for ask, wait in zip(asks, waiting, strict=True) if wait is None]
    known = await _with_keys(tx, judged, known)
    decided = iter(rules.lend(judged, known))
    outcomes = [wait or next(decided) for wait in waiting]
    _write(tx, asks, outcomes, epochs_of(epoch_rows))
    return outcomes


def _named(asks: Iterable[Delegate]) -> Batch:
    """The edges that asks name as their parents, and those that callers' tokens are held to."""
    names = {
        (ask.zone_id, name)
        for ask in asks
        for name in (ask.parent_edge_id, ask.caller.delegation_edge_id)
        if name is not None
    }
    return [*sorted(names)]


def _walks(asks: Sequence[Delegate]) -> Batch:
    """From where the graph is walked. A batch may itself make the edge that leads to a source."""
    targets = {(ask.zone_id, ask.target_session_id) for ask in asks}
    return [
        (
            ask.zone_id,
            ask.source_session_id,
            ask.target_session_id,
            int((ask.zone_id, ask.source_session_id) in targets),
        )
        for ask in asks
    ]


async def _reach(tx: Tx, asks: Sequence[Delegate], ahead: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Who leads to whom. `ahead` are the sources that targets lead to: nearly always there are none."""
    if not ahead:
        return []
    if len(asks) == 1:
        [ask] = asks
        return [(ask.zone_id, ask.target_session_id, ask.source_session_id)]
    [rows] = await tx.read(Q.delegations_between(batch=_walks(asks)))
    return [(str(zone_id), str(source), str(target)) for zone_id, source, target in rows]


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


def _write(
    tx: Tx,
    asks: Sequence[Delegate],
    outcomes: Sequence[Delegated | Problem | Busy],
    epochs: dict[str, int],
) -> None:
    made = [
        (ask, outcome.edge)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, Delegated) and outcome.created
    ]
    if not made:
        return
    tx.write(Q.delegations_insert(batch=[msgspec.structs.astuple(edge) for _, edge in made]))
    if bindings := [_binding(ask, edge) for ask, edge in made if ask.key is not None]:
        tx.write(idempotency.store(bindings, tx.now))
    raised = raise_epochs(tx, {edge.zone_id for _, edge in made}, epochs)
    for _, edge in made:
        tx.emit(created(edge, raised[edge.zone_id]))


def _binding(ask: Delegate, edge: Edge) -> Binding:
    return Binding(ask.zone_id, edge.issuer_application_id, rules.CREATE, ask.key or "", ask.digest, edge.id)
