"""Reads of delegations: show, list, traverse, authority and explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.delegations.model import (
    CHAIN_MAX,
    Authority,
    ChainEdge,
    Edge,
    EdgeExplanation,
    EdgeFilter,
    EdgeRef,
    EdgeState,
    EdgeVerb,
    GraphEdge,
    ReachedEdge,
    Traversal,
    ZoneEpoch,
)
from quarterdeck.domain.delegations.operations.end_edges import (
    EVENT_PREFIX,
    decode_zone_epochs,
    to_graph_edge,
    zone_epochs_statement,
)
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import authority, graph, states
from quarterdeck.domain.delegations.rules.explain import explain_limits, explain_state
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import EventFilter
from quarterdeck.engine.lanes import Busy, require_result
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode


async def show(tx: Transaction, refs: Sequence[EdgeRef]) -> list[Edge | Problem | Busy]:
    """Return edges by id, with their current status."""
    edge_refs = sorted({(ref.zone_id, ref.edge_id) for ref in refs})
    batch, [rows] = await access.load(tx, refs, Q.delegations_get(batch=edge_refs))
    edges = {(edge.zone_id, edge.id): edge for edge in decode(rows, Edge)}
    outcomes: list[Edge | Problem | Busy] = []
    for ref in refs:
        edge = edges.get((ref.zone_id, ref.edge_id))
        result = states.with_current_status(edge, tx.now) if edge else states.not_found(ref.edge_id)
        outcomes.append(batch.problem(ref) or result)
    return outcomes


async def list_edges(tx: Transaction, filters: EdgeFilter) -> list[Edge]:
    """Return up to `limit` edges, newest first."""
    await access.require_token(tx, filters.bearer)
    edges = await _select_page(tx, filters)
    if not edges:
        await zones.require_zone(tx, filters.zone_id)
    return edges


async def list_session_edges(tx: Transaction, ref: SessionRef, filters: EdgeFilter) -> list[Edge]:
    """List the edges of one session. Raises a Problem if it does not exist: an empty page would hide a mistyped id."""
    await _require_session(tx, ref)
    return await _select_page(tx, filters)


async def _select_page(tx: Transaction, filters: EdgeFilter) -> list[Edge]:
    common = {"zone_id": filters.zone_id, "before": filters.before, "limit": filters.limit}
    if filters.source is not None:
        statement = Q.delegations_page_of_source(
            source=filters.source, target=filters.target, status=filters.status, **common
        )
    elif filters.target is not None:
        statement = Q.delegations_page_of_target(target=filters.target, status=filters.status, **common)
    elif filters.status is EdgeState.ACTIVE:
        statement = Q.delegations_page_active(**common)
    else:
        statement = Q.delegations_page(status=filters.status, **common)
    [rows] = await tx.read(statement)
    return [states.with_current_status(edge, tx.now) for edge in decode(rows, Edge)]


async def traverse(tx: Transaction, ref: EdgeRef, limit: int) -> Traversal:
    """Return an edge and the edges reachable from it, nearest first, at most `limit` in total."""
    first = await _require_edge(tx, ref)
    # One more than is returned, to detect truncation.
    [rows] = await tx.read(
        Q.delegations_reachable(zone_id=ref.zone_id, id=ref.edge_id, session_limit=limit + 1, limit=limit + 1)
    )
    graph_edges = [graph_edge for graph_edge in decode(rows, GraphEdge) if graph_edge.expires_at > tx.now]
    reachable = graph.edges_by_level(to_graph_edge(first), graph_edges if states.is_active(first, tx.now) else [])
    [edge_rows] = await tx.read(
        Q.delegations_get(batch=[(ref.zone_id, graph_edge.id) for _, _, graph_edge in reachable[:limit]])
    )
    edges = {edge.id: edge for edge in decode(edge_rows, Edge)}
    items = [
        ReachedEdge(level, derived, states.view(states.with_current_status(edges[graph_edge.id], tx.now)))
        for level, derived, graph_edge in reachable[:limit]
    ]
    return Traversal(ref.edge_id, items, truncated=len(reachable) > limit or len(rows) > limit)


async def read_authority(tx: Transaction, ref: SessionRef) -> Authority:
    """Return the authority of a session, and the edges that grant it."""
    session = await _require_session(tx, ref)
    batch = [(ref.zone_id, ref.session_id)]
    inbound_rows, zone_rows = await tx.read(Q.delegations_inbound(batch=batch), zone_epochs_statement([ref.zone_id]))
    edges, zone_epochs = decode(inbound_rows, Edge), decode_zone_epochs(zone_rows)
    orphaned = await load_orphaned(tx, ((edge.zone_id, edge.id) for edge in edges), zone_epochs)
    return authority.session_authority(session, edges, orphaned, zone_epochs[ref.zone_id].epoch, tx.now)


async def explain(tx: Transaction, ref: EdgeRef) -> EdgeExplanation:
    """Return why an edge is in its state, its chain of parents, and what cannot be derived from it."""
    edge = await _require_edge(tx, ref)
    # One parent more than is returned, to detect truncation.
    rows, zone_rows = await tx.read(
        Q.delegations_chain(zone_id=ref.zone_id, id=ref.edge_id, max_parents=CHAIN_MAX + 1),
        zone_epochs_statement([ref.zone_id]),
    )
    _, *ancestors = decode(rows, Edge)
    chain, truncated = ancestors[:CHAIN_MAX], len(ancestors) > CHAIN_MAX
    edge_ref = (edge.zone_id, edge.id)
    is_orphaned = edge_ref in await load_orphaned(tx, [edge_ref], decode_zone_epochs(zone_rows))
    return EdgeExplanation(
        edge=states.view(states.with_current_status(edge, tx.now)),
        why=explain_state(edge, chain, is_orphaned=is_orphaned, truncated=truncated, now=tx.now),
        chain=[states.view(states.with_current_status(ancestor, tx.now)) for ancestor in chain],
        truncated=truncated,
        refuses=explain_limits(edge, is_orphaned, tx.now),
        ended_by=await _read_ended_by(tx, edge),
    )


async def _require_session(tx: Transaction, ref: SessionRef) -> Session:
    [outcome] = await sessions.show_sessions(tx, [ref])
    return require_result(outcome)


async def _require_edge(tx: Transaction, ref: EdgeRef) -> Edge:
    await access.require_token(tx, ref.bearer)
    [rows] = await tx.read(Q.delegations_get(batch=[(ref.zone_id, ref.edge_id)]))
    for edge in decode(rows, Edge):
        return edge
    raise states.not_found(ref.edge_id)


async def _read_ended_by(tx: Transaction, edge: Edge) -> dict[str, object] | None:
    """The event that ended the edge; None if it is active or the event is no longer in the log."""
    if edge.status is EdgeState.ACTIVE:
        return None
    types = tuple(EVENT_PREFIX + verb for verb in EdgeVerb)
    for event in await log.read_page(tx, EventFilter(edge.zone_id, types=types, subject=edge.id, limit=1)):
        data = msgspec.json.decode(event.data, type=dict[str, object])
        return {**data, "actor": event.actor, "at": iso(event.at), "pos": event.pos, "trace": event.trace}
    return None


async def load_orphaned(tx: Transaction, edges: Iterable[Ref], zone_epochs: Mapping[str, ZoneEpoch]) -> set[Ref]:
    """Return all orphaned edges among these edges and their chains. Only an unfinished cascade can leave any."""
    refs = sorted({ref for ref in edges if zone_epochs[ref[0]].has_open_cascade})
    if not refs:
        return set()
    [rows] = await tx.read(Q.delegations_ancestors(batch=refs))
    return graph.find_orphaned(decode(rows, ChainEdge))
