"""Loads, rebuilds and respaces the ranks of a zone's sessions (`rules.topological_order`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules.topological_order import (
    RespaceRequest,
    TopologicalOrder,
    WalkRequest,
    WalkResult,
    spaced_ranks,
    topological_sort,
)
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import chunks

log = logging.getLogger("quarterdeck.delegations")


async def run_request(tx: Transaction, order: TopologicalOrder, request: WalkRequest | RespaceRequest) -> None:
    """Run the walk or the respacing that `order` requests. The caller must have written its earlier decisions."""
    if isinstance(request, WalkRequest):
        order.add_walk_result(request, await _load_walk_result(tx, request))
        return
    # Rare: tens of thousands of edges must have needed ranks in the same gap.
    log.warning("respacing the delegation ranks of a zone", extra={"zone": request.zone_id})
    [rows] = await tx.read(Q.delegation_ranks_of_zone(zone_id=request.zone_id))
    order.replace_ranks(request.zone_id, _assign_ranks(tx, request.zone_id, [str(row[0]) for row in rows], order))


async def rebuild_order(tx: Transaction, zone_id: str, order: TopologicalOrder) -> None:
    """Rebuild the ranks of a zone whose edges were changed by a writer that does not maintain ranks."""
    _, rows = await tx.read(
        Q.delegation_ranks_delete_of_zone(zone_id=zone_id), Q.delegation_pairs(zone_id=zone_id, now=tx.now)
    )
    log.info("rebuilding the delegation ranks of a zone", extra={"zone": zone_id, "pairs": len(rows)})
    session_ids = topological_sort((str(source), str(target)) for source, target in rows)
    order.replace_ranks(zone_id, _assign_ranks(tx, zone_id, session_ids, order))
    tx.write(Q.delegation_epochs_mark_ranked(zone_id=zone_id))


def write_ranks(tx: Transaction, order: TopologicalOrder) -> None:
    for piece in chunks(order.take_changes()):
        tx.write(Q.delegation_ranks_upsert(batch=piece))


def _assign_ranks(tx: Transaction, zone_id: str, session_ids: Sequence[str], order: TopologicalOrder) -> dict[str, int]:
    ranks = dict(zip(session_ids, spaced_ranks(len(session_ids), *order.rank_bounds(zone_id)), strict=True))
    for piece in chunks([(zone_id, session_id, rank) for session_id, rank in ranks.items()]):
        tx.write(Q.delegation_ranks_upsert(batch=piece))
    return ranks


async def _load_walk_result(tx: Transaction, walk: WalkRequest) -> WalkResult:
    common: dict[str, str | int] = {"zone_id": walk.zone_id, "now": tx.now, "limit": walk.limit}
    forward_rows, backward_rows, [(rank_below, rank_above)] = await tx.read(
        Q.delegations_forward_region(target=walk.target, high=walk.source_rank, **common),
        Q.delegations_backward_region(source=walk.source, low=walk.target_rank, **common),
        Q.delegation_ranks_adjacent(zone_id=walk.zone_id, low=walk.target_rank, high=walk.source_rank),
    )
    return WalkResult(
        _decode_ranks(forward_rows), _decode_ranks(backward_rows), _decode_rank(rank_below), _decode_rank(rank_above)
    )


def _decode_ranks(rows: Sequence[Row]) -> dict[str, int]:
    return {str(session): int(str(rank)) for session, rank in rows}


def _decode_rank(value: object) -> int | None:
    return None if value is None else int(str(value))
