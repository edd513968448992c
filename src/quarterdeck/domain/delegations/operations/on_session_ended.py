"""Revokes the edges of a session in the transaction that ends the session."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.domain.delegations.model import EdgeVerb, GraphEdge
from quarterdeck.domain.delegations.operations.end_edges import (
    EndedEdge,
    decode_zone_epochs,
    end_edges,
    zone_epochs_statement,
)
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules.states import SESSION_ENDED
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

SESSION_ENDED_EVENT = "session.terminate"


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
