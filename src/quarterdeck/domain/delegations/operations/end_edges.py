"""Edges that leave their state, the events that tell of it, and the epoch that rises with every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.delegations.model import Edge, EdgeState, EdgeVerb, Link, Standing
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import DELEGATION
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound, pieces

PREFIX = "delegation."


class Leaving(msgspec.Struct, frozen=True):
    """An edge that is over: by which verb, why, by whom, and since when."""

    link: Link
    verb: EdgeVerb
    reason: str
    actor: str
    ended_at: Millis
    trace: str | None = None


async def end(tx: Tx, leaving: Sequence[Leaving], standings: Mapping[str, Standing]) -> None:
    """Moves active edges, raises the epochs of their zones, and tells of each edge."""
    batch: list[tuple[object, ...]] = [
        (each.link.zone_id, each.link.id, EdgeState.ACTIVE, _state_after(each), each.reason, each.ended_at)
        for each in leaving
    ]
    for piece in pieces(batch):
        [moved] = await tx.read(Q.delegations_end(batch=piece, now=tx.now))
        if len(moved) != len(piece):
            raise RuntimeError("delegations moved under the zone's lock")
    raised = raise_epochs(tx, {each.link.zone_id for each in leaving}, standings)
    for each in leaving:
        data = {**_told(each.link), "epoch": raised[each.link.zone_id], "reason": each.reason}
        tx.emit(
            NewEvent(
                PREFIX + each.verb,
                each.link.zone_id,
                each.link.id,
                each.actor,
                EdgeState.ACTIVE,
                _state_after(each),
                msgspec.json.encode(data).decode(),
                each.trace,
            )
        )


def link_of(edge: Edge) -> Link:
    return Link(*(getattr(edge, name) for name in Link.__struct_fields__))


def _state_after(leaving: Leaving) -> EdgeState:
    state = DELEGATION.target(leaving.verb, EdgeState.ACTIVE)
    assert state is not None  # only active edges leave
    return state


def created(edge: Edge, epoch: int) -> NewEvent:
    data = msgspec.json.encode({**_told(edge), "epoch": epoch}).decode()
    return NewEvent(PREFIX + "create", edge.zone_id, edge.id, edge.created_by, None, edge.status, data, edge.trace)


def _told(edge: Edge | Link) -> dict[str, object]:
    return {
        "source_session_id": edge.source_session_id,
        "target_session_id": edge.target_session_id,
        "parent_edge_id": edge.parent_edge_id,
        "scopes": msgspec.Raw(edge.scopes.encode()),
    }


# -- zones ------------------------------------------------------------------------------------------------------


def load_zones(zone_ids: Iterable[str]) -> Bound:
    return Q.delegation_zones(batch=[(zone_id,) for zone_id in sorted(set(zone_ids))])


def standings_of(rows: Sequence[Row]) -> dict[str, Standing]:
    return {standing.zone_id: standing for standing in decode(rows, Standing)}


class _Epoch(msgspec.Struct):
    epoch: int


def raise_epochs(tx: Tx, zone_ids: Iterable[str], standings: Mapping[str, Standing]) -> dict[str, int]:
    """The epoch of each zone that this transaction changes: one above what it was before it, however often it asks."""
    raised: dict[str, int] = {}
    for event in tx.events:
        if event.type.startswith(PREFIX) and event.zone_id not in raised:
            raised[event.zone_id] = msgspec.json.decode(event.data, type=_Epoch).epoch
    fresh = {zone_id: standings[zone_id].epoch + 1 for zone_id in sorted(set(zone_ids) - raised.keys())}
    if fresh:
        tx.write(Q.delegation_epochs_raise(batch=[*fresh.items()]))
    return raised | fresh
