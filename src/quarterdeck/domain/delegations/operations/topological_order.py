"""The order of a zone, as `rules.order` wants it: looked at where it must be, made where there is none, spaced anew."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules.topological_order import Crowded, Order, Region, Walk, ordered, spaced
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import pieces

log = logging.getLogger("quarterdeck.delegations")


async def supply(tx: Tx, order: Order, lack: Walk | Crowded) -> None:
    """What an order lacks. What was decided before has been written, so that it is seen here."""
    if isinstance(lack, Walk):
        order.learn(lack, await _walked(tx, lack))
        return
    # Seldom: it takes tens of thousands of edges that all go to one place.
    log.warning("the ranks of a zone's delegations are spaced anew", extra={"zone": lack.zone_id})
    [rows] = await tx.read(Q.delegation_ranks_of_zone(zone_id=lack.zone_id))
    order.replaced(lack.zone_id, _put(tx, lack.zone_id, [str(row[0]) for row in rows], order))


async def make(tx: Tx, zone_id: str, order: Order) -> None:
    """The order of a zone whose edges were made by somebody who knew of none."""
    _, rows = await tx.read(Q.delegation_ranks_clear(zone_id=zone_id), Q.delegation_pairs(zone_id=zone_id, now=tx.now))
    log.info("a zone's delegations are put in order", extra={"zone": zone_id, "pairs": len(rows)})
    everybody = ordered((str(source), str(target)) for source, target in rows)
    order.replaced(zone_id, _put(tx, zone_id, everybody, order))
    tx.write(Q.delegation_epochs_ranked(zone_id=zone_id))


def write(tx: Tx, order: Order) -> None:
    for piece in pieces(order.take()):
        tx.write(Q.delegation_ranks_put(batch=piece))


def _put(tx: Tx, zone_id: str, everybody: Sequence[str], order: Order) -> dict[str, int]:
    ranks = dict(zip(everybody, spaced(len(everybody), *order.bounds_of(zone_id)), strict=True))
    for piece in pieces([(zone_id, session, rank) for session, rank in ranks.items()]):
        tx.write(Q.delegation_ranks_put(batch=piece))
    return ranks


async def _walked(tx: Tx, walk: Walk) -> Region:
    common: dict[str, str | int] = {"zone_id": walk.zone_id, "now": tx.now, "most": walk.most}
    ahead, behind, [(below, above)] = await tx.read(
        Q.delegations_ahead(target=walk.target, high=walk.high, **common),
        Q.delegations_behind(source=walk.source, low=walk.low, **common),
        Q.delegation_ranks_beside(zone_id=walk.zone_id, low=walk.low, high=walk.high),
    )
    return Region(_ranks(ahead), _ranks(behind), _rank(below), _rank(above))


def _ranks(rows: Sequence[Row]) -> dict[str, int]:
    return {str(session): int(str(rank)) for session, rank in rows}


def _rank(value: object) -> int | None:
    return None if value is None else int(str(value))
