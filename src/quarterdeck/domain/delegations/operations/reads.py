"""Looking at delegations: one, many, what is ahead of one, what a session holds, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import (
    LINE_MAX,
    Above,
    Authority,
    Edge,
    EdgeExplanation,
    EdgeFilter,
    EdgeRef,
    EdgeState,
    EdgeVerb,
    Link,
    ReachedEdge,
    Standing,
    Traversal,
)
from quarterdeck.domain.delegations.operations.end_edges import PREFIX, link_of, load_zones, standings_of
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import Ref
from quarterdeck.domain.delegations.rules.explain import refusals_explained, state_explained
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import EventFilter
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode


async def show(tx: Tx, asks: Sequence[EdgeRef]) -> list[Edge | Problem | Busy]:
    """Edges by id, as they read now."""
    [rows] = await tx.read(Q.delegations_get(batch=sorted({(ask.zone_id, ask.edge_id) for ask in asks})))
    found = {(edge.zone_id, edge.id): edge for edge in decode(rows, Edge)}
    outcomes: list[Edge | Problem | Busy] = []
    for ask in asks:
        edge = found.get((ask.zone_id, ask.edge_id))
        outcomes.append(rules.as_read(edge, tx.now) if edge else rules.not_found(ask.edge_id))
    return outcomes


async def page(tx: Tx, wanted: EdgeFilter) -> list[Edge]:
    """Up to `limit` edges, newest first, by the index that narrows most."""
    await sessions.require_bearer(tx, wanted.bearer)
    edges = await _page(tx, wanted)
    if not edges:
        await zones.require(tx, wanted.zone_id)
    return edges


async def edges_of(tx: Tx, ref: SessionRef, wanted: EdgeFilter) -> list[Edge]:
    """The same for a session that must be there: an empty answer would hide a mistyped name."""
    await _session(tx, ref)
    return await _page(tx, wanted)


async def _page(tx: Tx, wanted: EdgeFilter) -> list[Edge]:
    common = {"zone_id": wanted.zone_id, "before": wanted.before, "limit": wanted.limit}
    if wanted.source is not None:
        statement = Q.delegations_page_of_source(
            source=wanted.source, target=wanted.target, status=wanted.status, **common
        )
    elif wanted.target is not None:
        statement = Q.delegations_page_of_target(target=wanted.target, status=wanted.status, **common)
    elif wanted.status is EdgeState.ACTIVE:
        statement = Q.delegations_page_active(**common)
    else:
        statement = Q.delegations_page(status=wanted.status, **common)
    [rows] = await tx.read(statement)
    return [rules.as_read(edge, tx.now) for edge in decode(rows, Edge)]


async def traverse(tx: Tx, ref: EdgeRef, limit: int) -> Traversal:
    """An edge and what is ahead of it, nearest first: up to `limit` edges in all."""
    first = await _edge(tx, ref)
    # One more than can be shown of each: if there is more, that is seen.
    [rows] = await tx.read(Q.delegations_reached(zone_id=ref.zone_id, id=ref.edge_id, limit=limit + 1, most=limit + 1))
    links = [link for link in decode(rows, Link) if link.expires_at > tx.now]
    found = rules.levels(link_of(first), links if rules.holds(first, tx.now) else [])
    [edge_rows] = await tx.read(Q.delegations_get(batch=[(ref.zone_id, link.id) for _, _, link in found[:limit]]))
    edges = {edge.id: edge for edge in decode(edge_rows, Edge)}
    items = [
        ReachedEdge(level, derived, rules.view(rules.as_read(edges[link.id], tx.now)))
        for level, derived, link in found[:limit]
    ]
    return Traversal(ref.edge_id, items, truncated=len(found) > limit or len(rows) > limit)


async def authority(tx: Tx, ref: SessionRef) -> Authority:
    """By which edges a session holds what."""
    session = await _session(tx, ref)
    batch: list[tuple[object, ...]] = [(ref.zone_id, ref.session_id)]
    into, zone_rows = await tx.read(Q.delegations_into(batch=batch), load_zones([ref.zone_id]))
    edges, standings = decode(into, Edge), standings_of(zone_rows)
    hollow_ones = await hollow(tx, ((edge.zone_id, edge.id) for edge in edges), standings)
    return rules.authority(session, edges, hollow_ones, standings[ref.zone_id].epoch, tx.now)


async def explain(tx: Tx, ref: EdgeRef) -> EdgeExplanation:
    """Why an edge is in its state, what it is derived from, and what it would refuse."""
    edge = await _edge(tx, ref)
    # One parent more than is shown: if there are more, that is seen.
    rows, zone_rows = await tx.read(
        Q.delegations_line(zone_id=ref.zone_id, id=ref.edge_id, most=LINE_MAX + 1), load_zones([ref.zone_id])
    )
    _, *line = decode(rows, Edge)
    chain, truncated = line[:LINE_MAX], len(line) > LINE_MAX
    own = (edge.zone_id, edge.id)
    is_hollow = own in await hollow(tx, [own], standings_of(zone_rows))
    return EdgeExplanation(
        edge=rules.view(rules.as_read(edge, tx.now)),
        why=state_explained(edge, chain, hollow=is_hollow, truncated=truncated, now=tx.now),
        chain=[rules.view(rules.as_read(each, tx.now)) for each in chain],
        truncated=truncated,
        refuses=refusals_explained(edge, is_hollow, tx.now),
        ended_by=await _ended_by(tx, edge),
    )


async def _session(tx: Tx, ref: SessionRef) -> Session:
    [found] = await sessions.show(tx, [ref])
    if not isinstance(found, Session):
        assert isinstance(found, Problem)  # whoever only looks is never told to wait
        raise found
    return found


async def _edge(tx: Tx, ref: EdgeRef) -> Edge:
    await sessions.require_bearer(tx, ref.bearer)
    [rows] = await tx.read(Q.delegations_get(batch=[(ref.zone_id, ref.edge_id)]))
    for edge in decode(rows, Edge):
        return edge
    raise rules.not_found(ref.edge_id)


async def _ended_by(tx: Tx, edge: Edge) -> dict[str, object] | None:
    """Who ended it and with what, as the log has it; None if it is active, or the log no longer goes back so far."""
    if edge.status is EdgeState.ACTIVE:
        return None
    types = tuple(PREFIX + verb for verb in EdgeVerb)
    for event in await log.page(tx, EventFilter(edge.zone_id, types=types, subject=edge.id, limit=1)):
        told = msgspec.json.decode(event.data, type=dict[str, object])
        return {**told, "actor": event.actor, "at": iso(event.at), "pos": event.pos, "trace": event.trace}
    return None


async def hollow(tx: Tx, edges: Iterable[Ref], standings: Mapping[str, Standing]) -> set[Ref]:
    """Of these edges, and of those in their lines, all that are."""
    asked: list[tuple[object, ...]] = [*sorted({ref for ref in edges if standings[ref[0]].is_ending})]
    if not asked:
        return set()
    [rows] = await tx.read(Q.delegations_above(batch=asked))
    return rules.hollow(decode(rows, Above))
