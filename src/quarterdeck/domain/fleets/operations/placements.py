"""Reads of placements, for access to panes and for notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.domain.access import operations as access
from quarterdeck.domain.fleets.model.filters import FleetRequest, MemberRequest
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    MemberRef,
    MemberStatus,
    MessageRef,
    MessageState,
    Placement,
)
from quarterdeck.domain.fleets.operations.fleet_reads import read_fleet
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

CHANGE_PERMISSION = "fleets.change"


class MemberPlacement(msgspec.Struct, frozen=True):
    fleet: Fleet
    member: Member
    placement: Placement | None

    @property
    def is_director(self) -> bool:
        return self.member.agent_id == self.fleet.director_agent_id


async def load_member_placement(tx: Transaction, request: MemberRequest) -> MemberPlacement:
    """An active member with its fleet and placement. Requires `fleets.change`, even if the pane is only read."""
    await access.require_permission(tx, request.caller, request.zone_id, CHANGE_PERMISSION)
    ref = (request.zone_id, request.agent_id)
    fleet_rows, member_rows, placement_rows = await tx.read(
        Q.fleets_get(batch=[(request.zone_id, request.fleet_id)]),
        Q.members_get(batch=[ref]),
        LISTS.placements_get(batch=[ref]),
    )
    fleet = next(iter(decode(fleet_rows, Fleet)), None)
    if fleet is None:
        raise errors.fleet_not_found(request.fleet_id)
    if fleet.deleted_at is not None:
        raise errors.fleet_deleted(request.fleet_id)
    member = next(iter(decode(member_rows, Member)), None)
    if member is None or not member.is_active or member.fleet_id != fleet.fleet_id:
        raise errors.member_not_found(request.agent_id, request.fleet_id)
    return MemberPlacement(fleet, member, next(iter(decode(placement_rows, Placement)), None))


async def list_fleet_placements(tx: Transaction, request: FleetRequest) -> list[Placement]:
    """The placements of a fleet's active members. Requires `fleets.change`."""
    statement = Q.placements_of_fleets(batch=[(request.zone_id, request.fleet_id, MemberStatus.ACTIVE)])
    _, [rows] = await read_fleet(tx, request, statement, permission=CHANGE_PERMISSION)
    return decode(rows, Placement)


class NoticeState(msgspec.Struct, frozen=True, array_like=True):
    """The current state of a message whose notice is about to be typed."""

    zone_id: str
    task_id: int
    state: MessageState
    pane_id: str | None
    """The recipient's current pane. None if the recipient has none or is deregistered."""


async def load_notice_states(tx: Transaction, refs: Sequence[MessageRef]) -> Mapping[MessageRef, NoticeState]:
    return {
        (state.zone_id, state.task_id): state
        for state in await tx.fetch(NoticeState, LISTS.messages_notice_states(batch=[*refs]))
    }


async def load_placements(tx: Transaction, refs: Sequence[MemberRef]) -> Mapping[MemberRef, Placement]:
    """The placements of members. A deregistered member has none."""
    return {placement.ref: placement for placement in await tx.fetch(Placement, LISTS.placements_get(batch=[*refs]))}
