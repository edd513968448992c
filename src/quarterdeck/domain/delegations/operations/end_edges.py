"""Ends edges, emits their events, and raises the epochs of their zones.

Edges end when they expire, when one of their sessions ends, and by request (`revoke`). Only a request terminates
sessions. Edges that ended long ago are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, Expire, GraphEdge, ZoneEpoch
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.states import DELEGATION_STATES, EXPIRED_REASON, SESSION_ENDED
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, chunks

EVENT_PREFIX = "delegation."
SESSION_ENDED_EVENT = "session.terminate"
SWEEP_ACTOR = "sweep"


class EndedEdge(msgspec.Struct, frozen=True):
    """An edge that ends, and the contents of its event."""

    edge: GraphEdge
    verb: EdgeVerb
    reason: str
    actor: str
    ended_at: Millis
    trace: str | None = None


async def end_edges(tx: Transaction, ended_edges: Sequence[EndedEdge], zone_epochs: Mapping[str, ZoneEpoch]) -> None:
    """Change active edges to their end state, raise the epochs of their zones, and emit an event per edge."""
    batch = [
        (ended.edge.zone_id, ended.edge.id, EdgeState.ACTIVE, _end_state(ended), ended.reason, ended.ended_at)
        for ended in ended_edges
    ]
    for piece in chunks(batch):
        [updated] = await tx.read(Q.delegations_end(batch=piece, now=tx.now))
        if len(updated) != len(piece):
            raise RuntimeError("delegations were changed by another transaction despite the zone's lock")
    new_epochs = raise_epochs(tx, {ended.edge.zone_id for ended in ended_edges}, zone_epochs)
    for ended in ended_edges:
        data = {**_event_data(ended.edge), "epoch": new_epochs[ended.edge.zone_id], "reason": ended.reason}
        tx.emit(
            NewEvent(
                EVENT_PREFIX + ended.verb,
                ended.edge.zone_id,
                ended.edge.id,
                ended.actor,
                EdgeState.ACTIVE,
                _end_state(ended),
                msgspec.json.encode(data).decode(),
                ended.trace,
            )
        )


def to_graph_edge(edge: Edge) -> GraphEdge:
    return GraphEdge(*(getattr(edge, name) for name in GraphEdge.__struct_fields__))


def _end_state(ended: EndedEdge) -> EdgeState:
    state = DELEGATION_STATES.next_state(ended.verb, EdgeState.ACTIVE)
    assert state is not None  # every verb starts from ACTIVE
    return state


def created_event(edge: Edge, epoch: int) -> NewEvent:
    data = msgspec.json.encode({**_event_data(edge), "epoch": epoch}).decode()
    return NewEvent(
        EVENT_PREFIX + "create", edge.zone_id, edge.id, edge.created_by, None, edge.status, data, edge.trace
    )


def _event_data(edge: Edge | GraphEdge) -> dict[str, object]:
    return {
        "source_session_id": edge.source_session_id,
        "target_session_id": edge.target_session_id,
        "parent_edge_id": edge.parent_edge_id,
        "scopes": msgspec.Raw(edge.scopes.encode()),
    }


# -- epochs ------------------------------------------------------------------------------------------------------


def zone_epochs_statement(zone_ids: Iterable[str]) -> BoundStatement:
    return Q.delegation_zone_epochs(batch=[(zone_id,) for zone_id in sorted(set(zone_ids))])


def decode_zone_epochs(rows: Sequence[Row]) -> dict[str, ZoneEpoch]:
    return {zone_epoch.zone_id: zone_epoch for zone_epoch in decode(rows, ZoneEpoch)}


class _EpochData(msgspec.Struct):
    epoch: int


def raise_epochs(tx: Transaction, zone_ids: Iterable[str], zone_epochs: Mapping[str, ZoneEpoch]) -> dict[str, int]:
    """Raise the epochs of zones, and return the new ones.

    A transaction raises the epoch of a zone only once, however often it calls this. It must emit the events of a call
    before the next call, which reads from them which epochs are already raised.
    """
    already_raised: dict[str, int] = {}
    for event in tx.events:
        if event.type.startswith(EVENT_PREFIX) and event.zone_id not in already_raised:
            already_raised[event.zone_id] = msgspec.json.decode(event.data, type=_EpochData).epoch
    newly_raised = {
        zone_id: zone_epochs[zone_id].epoch + 1 for zone_id in sorted(set(zone_ids) - already_raised.keys())
    }
    if newly_raised:
        tx.write(Q.delegation_epochs_raise(batch=[*newly_raised.items()]))
    return already_raised | newly_raised


async def on_session_ended(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """A transaction listener. Revokes the edges from and to ended sessions, and all edges derived from them.

    It terminates no further session. Only a requested revocation does that.
    """
    ended_sessions = {(event.zone_id, event.subject): event for event in events if event.type == SESSION_ENDED_EVENT}
    if not ended_sessions:
        return
    rows, zone_rows = await tx.read(
        Q.delegations_of_sessions(batch=sorted(ended_sessions)),
        zone_epochs_statement(zone_id for zone_id, _ in ended_sessions),
    )
    zone_epochs = decode_zone_epochs(zone_rows)
    if ranked_refs := [ref for ref in sorted(ended_sessions) if zone_epochs[ref[0]].lowest_rank is not None]:
        tx.write(Q.delegation_ranks_delete(batch=[*ranked_refs]))
    # Expired edges have already ended; the sweep marks them as expired.
    edges = [edge for edge in decode(rows, GraphEdge) if edge.expires_at > tx.now]
    if not edges:
        return
    first_by_zone = {event.zone_id: event for event in reversed(ended_sessions.values())}
    ended_edges = []
    for edge in edges:
        refs = [(edge.zone_id, edge.source_session_id), (edge.zone_id, edge.target_session_id)]
        # A derived edge may connect two other sessions. Its event then gets the actor and the trace of the zone's first
        # termination.
        cause = next((ended_sessions[ref] for ref in refs if ref in ended_sessions), first_by_zone[edge.zone_id])
        ended_edges.append(EndedEdge(edge, EdgeVerb.REVOKE, SESSION_ENDED, cause.actor, tx.now, cause.trace))
    await end_edges(tx, ended_edges, zone_epochs)


async def find_expired(tx: Transaction, limit: int) -> list[Ref]:
    """Return edges of all zones that are past `expires_at` but still marked active."""
    [rows] = await tx.read(Q.delegations_expired(limit=limit))
    return [(str(zone_id), str(edge_id)) for zone_id, edge_id in rows]


async def expire_edges(tx: Transaction, commands: Sequence[Expire]) -> list[Edge | Problem | Busy]:
    """Mark edges as expired. Return them as loaded, before the change. A revoked edge is not changed."""
    refs = sorted({(command.zone_id, command.edge_id) for command in commands})
    batch, [edge_rows, zone_rows] = await access.lock(
        tx, commands, Q.delegations_get(batch=refs), zone_epochs_statement(zones_of(commands))
    )
    edges = {(edge.zone_id, edge.id): edge for edge in decode(edge_rows, Edge)}
    expired_edges = [
        edge
        for edge in edges.values()
        if edge.zone_id in batch.zones and edge.status is EdgeState.ACTIVE and edge.expires_at <= tx.now
    ]
    if expired_edges:
        ended_edges = [
            EndedEdge(to_graph_edge(edge), EdgeVerb.EXPIRE, EXPIRED_REASON, SWEEP_ACTOR, edge.expires_at)
            for edge in expired_edges
        ]
        await end_edges(tx, ended_edges, decode_zone_epochs(zone_rows))
    return [
        batch.lock_failures.get(command.zone_id)
        or edges.get((command.zone_id, command.edge_id))
        or states.not_found(command.edge_id)
        for command in commands
    ]


def retention_statements(before: Millis, limit: int) -> list[BoundStatement]:
    """Delete up to `limit` edges that ended before a time."""
    return [Q.delegations_delete_expired(before=before, limit=limit)]
