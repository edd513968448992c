"""Where members stand: their fleet, themselves and their panes, for whoever is about to reach into these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.domain.agents.operations.authorization import require_permission
from quarterdeck.domain.fleets.model.filters import OfFleet
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    MemberRef,
    MemberStatus,
    MessageRef,
    MessageState,
    Placement,
)
from quarterdeck.domain.fleets.operations.fleet_reads import in_fleet
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

CHANGE = "fleets.change"


class Wanted(msgspec.Struct, frozen=True):
    zone_id: str
    fleet_id: int
    agent_id: int
    caller: Caller


class Standing(msgspec.Struct, frozen=True):
    fleet: Fleet
    member: Member
    placement: Placement | None

    @property
    def is_director(self) -> bool:
        return self.member.agent_id == self.fleet.director_agent_id


async def standing(tx: Transaction, wanted: Wanted) -> Standing:
    """Of a member that is there. Panes are for those who may change fleets, to look at them as well as to type."""
    await require_permission(tx, wanted.caller, wanted.zone_id, CHANGE)
    ref = (wanted.zone_id, wanted.agent_id)
    fleets, members, placements = await tx.read(
        Q.fleets_get(batch=[(wanted.zone_id, wanted.fleet_id)]),
        Q.members_get(batch=[ref]),
        LISTS.placements_get(batch=[ref]),
    )
    fleet = next(iter(decode(fleets, Fleet)), None)
    if fleet is None:
        raise errors.fleet_not_found(wanted.fleet_id)
    if fleet.deleted_at is not None:
        raise errors.fleet_deleted(wanted.fleet_id)
    member = next(iter(decode(members, Member)), None)
    if member is None or not member.is_active or member.fleet_id != fleet.fleet_id:
        raise errors.not_a_member(wanted.agent_id, wanted.fleet_id)
    return Standing(fleet, member, next(iter(decode(placements, Placement)), None))


async def placed(tx: Transaction, ask: OfFleet) -> list[Placement]:
    """Where the panes of a fleet are, for whoever may change it."""
    of_fleet = Q.placements_of_fleets(batch=[(ask.zone_id, ask.fleet_id, MemberStatus.ACTIVE)])
    _, [rows] = await in_fleet(tx, ask, of_fleet, power=CHANGE)
    return decode(rows, Placement)


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A message that is about to be typed, as it is now."""

    zone_id: str
    task_id: int
    state: MessageState
    pane_id: str | None
    """Of its recipient; whoever has left has none."""


async def pending(tx: Transaction, refs: Sequence[MessageRef]) -> Mapping[MessageRef, Pending]:
    [rows] = await tx.read(LISTS.notices_pending(batch=[*refs]))
    return {(each.zone_id, each.task_id): each for each in decode(rows, Pending)}


async def placements(tx: Transaction, refs: Sequence[MemberRef]) -> Mapping[MemberRef, Placement]:
    """Where the panes of these are. Whoever has left has none."""
    [rows] = await tx.read(LISTS.placements_get(batch=[*refs]))
    return {placement.ref: placement for placement in decode(rows, Placement)}
