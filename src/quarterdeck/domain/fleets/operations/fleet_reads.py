"""Reads of fleets, members and the monitor. A caller who may read a fleet may read all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.fleets.model.filters import FleetRequest, FleetsFilter, MemberRequest, MembersFilter, SentFilter
from quarterdeck.domain.fleets.model.rows import Fleet, Member, MemberStatus, MonitorConfig, MonitorRuntime, Placement
from quarterdeck.domain.fleets.model.views import FleetMemberView, MonitoredMemberView, MonitorView
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import agent_cards, errors, views
from quarterdeck.domain.fleets.rules.views import FleetDetails, MonitoredMember
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

READ_PERMISSION, CHANGE_PERMISSION = "fleets.read", "fleets.change"
T = TypeVar("T", bound=msgspec.Struct)


async def read_fleet(
    tx: Transaction, request: FleetRequest, *statements: BoundStatement, permission: str = READ_PERMISSION
) -> tuple[Fleet, list[list[Row]]]:
    """The fleet and the rows of the statements, in one round trip.

    Raises if the caller lacks the permission or the fleet does not exist.
    """
    batch, [fleet_rows, *statement_rows] = await access.load_with_roles(
        tx, [request], Q.fleets_get(batch=[(request.zone_id, request.fleet_id)]), *statements
    )
    if isinstance(problem := batch.permission_problem(request, permission), Problem):
        raise problem
    if request.caller is not None and not agent_cards.can_read_fleet(request.caller, request.fleet_id):
        raise errors.fleet_not_found(request.fleet_id)
    if not fleet_rows:
        await zones.require_zone(tx, request.zone_id)
        raise errors.fleet_not_found(request.fleet_id)
    return decode(fleet_rows, Fleet)[0], statement_rows


async def require_changeable(tx: Transaction, request: FleetRequest) -> None:
    """Raise if the caller may not change fleets, or if the fleet is deleted."""
    fleet, _ = await read_fleet(tx, request, permission=CHANGE_PERMISSION)
    if fleet.deleted_at is not None:
        raise errors.fleet_deleted(request.fleet_id)


async def get_fleet(tx: Transaction, request: FleetRequest) -> FleetDetails:
    fleet, _ = await read_fleet(tx, request)
    [details] = await _load_details(tx, [fleet])
    return details


async def list_fleets(tx: Transaction, filters: FleetsFilter) -> list[FleetDetails]:
    """Up to `filters.limit` fleets, newest first."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    if filters.caller is not None and filters.caller.agent_id is not None:
        return await _list_own_fleet(tx, filters, filters.caller.agent_id)
    [rows] = await tx.read(
        LISTS.fleets_page(
            zone_id=filters.zone_id,
            before=filters.before_id,
            with_deleted=int(filters.with_deleted),
            limit=filters.limit,
        )
    )
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    return await _load_details(tx, decode(rows, Fleet))


async def _list_own_fleet(tx: Transaction, filters: FleetsFilter, agent_id: str) -> list[FleetDetails]:
    """An agent sees only the fleet of which it is a member."""
    fleet_id = agent_cards.parse_fleet_id(agent_id)
    if fleet_id is None or fleet_id >= filters.before_id:
        return []
    [rows] = await tx.read(Q.fleets_get(batch=[(filters.zone_id, fleet_id)]))
    return await _load_details(tx, [fleet for fleet in decode(rows, Fleet) if fleet.deleted_at is None])


async def _load_details(tx: Transaction, fleets: Sequence[Fleet]) -> list[FleetDetails]:
    if not fleets:
        return []
    active, deregistered = MemberStatus.ACTIVE, MemberStatus.DEREGISTERED
    root_member_keys = [
        (*fleet.ref, active if fleet.deleted_at is None else deregistered, fleet.director_agent_id) for fleet in fleets
    ]
    root_member_rows, count_rows, placement_rows = await tx.read(
        LISTS.fleets_root_members(batch=root_member_keys),
        LISTS.fleets_count_members(batch=[(*fleet.ref, active) for fleet in fleets]),
        LISTS.placements_get(batch=[(fleet.zone_id, fleet.director_agent_id) for fleet in fleets]),
    )
    placements = {placement.agent_id: placement for placement in decode(placement_rows, Placement)}
    counts = {int(str(fleet_id)): int(str(count)) for _, fleet_id, count in count_rows}
    root_members: dict[int, list[Member]] = {}
    for member in decode(root_member_rows, Member):
        root_members.setdefault(member.fleet_id, []).append(member)
    return [
        FleetDetails(
            fleet,
            root_members.get(fleet.fleet_id, []),
            placements.get(fleet.director_agent_id or 0),
            counts.get(fleet.fleet_id, 0),
        )
        for fleet in fleets
    ]


async def get_member(tx: Transaction, request: MemberRequest) -> FleetMemberView:
    """A member, active or deregistered."""
    member = await _load_member(tx, request)
    placement_rows, count_rows = await tx.read(
        LISTS.placements_get(batch=[member.ref]), LISTS.messages_unread_counts(batch=[member.ref])
    )
    unread_count = _decode_counts(count_rows)[member.agent_id]
    return views.member_view(member, decode_first(placement_rows, Placement), unread_count)


async def _load_member(tx: Transaction, request: MemberRequest) -> Member:
    _, [rows] = await read_fleet(tx, request, Q.members_get(batch=[(request.zone_id, request.agent_id)]))
    return require_member(rows, request)


def require_member(rows: Sequence[Row], request: MemberRequest | SentFilter) -> Member:
    """The decoded member. Raises if there is none, or if it belongs to another fleet."""
    member = decode_first(rows, Member)
    if member is None or member.fleet_id != request.fleet_id:
        raise errors.member_not_found(request.agent_id, request.fleet_id)
    return member


async def list_members(tx: Transaction, filters: MembersFilter) -> list[FleetMemberView]:
    """Up to `filters.limit` members, in the order of registration."""
    _, pages = await read_fleet(
        tx,
        filters,
        *(
            LISTS.members_page(
                zone_id=filters.zone_id,
                fleet_id=filters.fleet_id,
                state=status,
                after=filters.after_id,
                limit=filters.limit,
            )
            for status in filters.statuses
        ),
    )
    members = decode([row for page in pages for row in page], Member)
    listed_members = sorted(members, key=lambda member: member.agent_id)[: filters.limit]
    refs = [member.ref for member in listed_members]
    count_statements = [LISTS.messages_unread_counts(batch=refs)] if filters.with_unread else []
    placement_rows, *count_results = await tx.read(LISTS.placements_get(batch=refs), *count_statements)
    placements = {placement.agent_id: placement for placement in decode(placement_rows, Placement)}
    unread_counts = _decode_counts(count_results[0]) if count_results else {}
    return [
        views.member_view(member, placements.get(member.agent_id), unread_counts.get(member.agent_id))
        for member in listed_members
    ]


def _decode_counts(rows: Sequence[Row]) -> dict[int, int]:
    return {int(str(agent_id)): int(str(count)) for _, agent_id, count in rows}


async def get_monitor(tx: Transaction, request: FleetRequest) -> MonitorView:
    ref = (request.zone_id, request.fleet_id)
    _, [rows] = await read_fleet(tx, request, Q.monitor_runtimes_get(batch=[ref]))
    monitored_members = await _load_monitored_members(tx, request)
    return views.monitor_view(request.fleet_id, decode_first(rows, MonitorRuntime), monitored_members, tx.now)


async def get_monitored_member(tx: Transaction, request: MemberRequest) -> MonitoredMemberView:
    member = await _load_member(tx, request)
    for monitored_member in await _load_monitored_members(tx, request):
        if monitored_member.member.agent_id == member.agent_id:
            return views.monitored_member_view(monitored_member, tx.now)
    raise errors.no_placement(member.agent_id)


async def _load_monitored_members(tx: Transaction, request: FleetRequest) -> list[MonitoredMember]:
    active_keys = [(request.zone_id, request.fleet_id, MemberStatus.ACTIVE)]
    member_rows, placement_rows, config_rows = await tx.read(
        Q.members_of_fleets(batch=active_keys),
        Q.placements_of_fleets(batch=active_keys),
        Q.monitor_configs_of_fleets(batch=active_keys),
    )
    members_by_id = {row.agent_id: row for row in decode(member_rows, Member)}
    placements = {row.agent_id: row for row in decode(placement_rows, Placement)}
    # Each statement has its own snapshot: a member registered in between may have a config but no row in `member_rows`.
    matched_configs = [config for config in decode(config_rows, MonitorConfig) if config.agent_id in members_by_id]
    configs = sorted(matched_configs, key=lambda config: config.agent_id)
    if not configs:
        return []
    refs = [(config.zone_id, config.agent_id) for config in configs]
    [rows] = await tx.read(LISTS.messages_unread_counts(batch=refs))
    unread_counts = _decode_counts(rows)
    return [
        MonitoredMember(
            members_by_id[config.agent_id],
            config,
            placements.get(config.agent_id),
            unread_counts.get(config.agent_id, 0),
        )
        for config in configs
    ]


def decode_first(rows: Sequence[Row], row_type: type[T]) -> T | None:
    decoded = decode(rows[:1], row_type)
    return decoded[0] if decoded else None
