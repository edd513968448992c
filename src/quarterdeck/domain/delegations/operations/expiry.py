"""Time: edges past theirs are marked so, and what was over long ago is removed. Neither ends anybody."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, Expire
from quarterdeck.domain.delegations.operations.end_edges import Leaving, end, link_of, load_zones, standings_of
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import TIME_IS_UP, Ref
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

SWEEP = "sweep"


async def past_their_time(tx: Tx, limit: int) -> list[Ref]:
    """Across zones: edges that are still marked active though they are over."""
    [rows] = await tx.read(Q.delegations_expired(limit=limit))
    return [(str(zone_id), str(edge_id)) for zone_id, edge_id in rows]


async def expire(tx: Tx, asks: Sequence[Expire]) -> list[Edge | Problem | Busy]:
    """Marks edges as expired that are. One that somebody else has ended meanwhile stays as it is."""
    refs: list[tuple[object, ...]] = [*sorted({(ask.zone_id, ask.edge_id) for ask in asks})]
    locked_rows, named, zone_rows = await tx.read(
        zones.lock(tx, zones_of(asks)), Q.delegations_get(batch=refs), load_zones(zones_of(asks))
    )
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    edges = {(edge.zone_id, edge.id): edge for edge in decode(named, Edge)}
    due = [
        edge
        for edge in edges.values()
        if edge.zone_id in locked and edge.status is EdgeState.ACTIVE and edge.expires_at <= tx.now
    ]
    if due:
        leaving = [Leaving(link_of(edge), EdgeVerb.EXPIRE, TIME_IS_UP, SWEEP, edge.expires_at) for edge in due]
        await end(tx, leaving, standings_of(zone_rows))
    return [
        why_not.get(ask.zone_id) or edges.get((ask.zone_id, ask.edge_id)) or rules.not_found(ask.edge_id)
        for ask in asks
    ]


async def forget(tx: Tx, window: Millis, limit: int) -> int:
    """Removes up to so many edges that were over before the window."""
    # A read of nothing but the clock: what is old is decided by the database's time.
    await tx.read()
    [gone] = await tx.read(Q.delegations_forget(before=tx.now - window, limit=limit))
    return len(gone)
