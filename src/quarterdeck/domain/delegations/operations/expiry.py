"""Marks edges as expired, and deletes edges that ended long ago. Neither terminates a session."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, Expire
from quarterdeck.domain.delegations.operations.end_edges import (
    EndedEdge,
    decode_zone_epochs,
    end_edges,
    to_graph_edge,
    zone_epochs_statement,
)
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.states import EXPIRED_REASON
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

SWEEP_ACTOR = "sweep"


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
