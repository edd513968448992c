"""Ends edges, emits their events, and raises the epochs of their zones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, GraphEdge, ZoneEpoch
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules.states import DELEGATION_STATES
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, chunks

EVENT_PREFIX = "delegation."


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
