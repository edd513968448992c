"""Looking at fleets, members, messages and the monitor, as they stand. Whoever may read a fleet may read all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from quarterdeck.domain.agents.operations.authorization import CallerChecks, require_permission
from quarterdeck.domain.fleets.model.filters import FleetsFilter, MembersFilter, OfFleet, OfMember, SentFilter
from quarterdeck.domain.fleets.model.rows import Fleet, Member, MemberStatus, MonitorConfig, MonitorRuntime, Placement
from quarterdeck.domain.fleets.model.views import FleetMemberView, MonitoredView, MonitorView
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import agent_cards, errors, views
from quarterdeck.domain.fleets.rules.views import FleetSeen, Watched
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

READ, CHANGE = "fleets.read", "fleets.change"
T = TypeVar("T", bound=msgspec.Struct)


async def in_fleet(
    tx: Transaction, ask: OfFleet, *statements: BoundStatement, power: str = READ
) -> tuple[Fleet, list[list[Row]]]:
    """The fleet, and what these find, in one round trip. Refuses a caller who may not, and a fleet that is nowhere."""
    speakers = CallerChecks([ask])
    said = speakers.statements()
    answers = await tx.read(*said, Q.fleets_get(batch=[(ask.zone_id, ask.fleet_id)]), *statements)
    if problem := speakers.build_state(answers[: len(said)], tx.now).problem(ask, power):
        raise problem
    rows, *found = answers[len(said) :]
    if ask.caller is not None and not agent_cards.may_look(ask.caller, ask.fleet_id):
        raise errors.fleet_not_found(ask.fleet_id)
    if not rows:
        await zones.require_zone(tx, ask.zone_id)
        raise errors.fleet_not_found(ask.fleet_id)
    return decode(rows, Fleet)[0], found


async def changeable(tx: Transaction, ask: OfFleet) -> None:
    """Refuses whoever may not change fleets, and a fleet that cannot be changed."""
    found, _ = await in_fleet(tx, ask, power=CHANGE)
    if found.deleted_at is not None:
        raise errors.fleet_deleted(ask.fleet_id)


async def fleet(tx: Transaction, wanted: OfFleet) -> FleetSeen:
    found, _ = await in_fleet(tx, wanted)
    [seen] = await _seen(tx, [found])
    return seen


async def fleets(tx: Transaction, wanted: FleetsFilter) -> list[FleetSeen]:
    """Up to so many, newest first."""
    await require_permission(tx, wanted.caller, wanted.zone_id, READ)
    if wanted.caller is not None and wanted.caller.agent_id is not None:
        return await _own(tx, wanted, wanted.caller.agent_id)
    [rows] = await tx.read(
        LISTS.fleets_page(
            zone_id=wanted.zone_id, before=wanted.before, with_deleted=int(wanted.with_deleted), limit=wanted.limit
        )
    )
    if not rows:
        await zones.require_zone(tx, wanted.zone_id)
    return await _seen(tx, decode(rows, Fleet))


async def _own(tx: Transaction, wanted: FleetsFilter, agent_id: str) -> list[FleetSeen]:
    """An agent sees the fleet that it is a member of."""
    fleet_id = agent_cards.fleet_of(agent_id)
    if fleet_id is None or fleet_id >= wanted.before:
        return []
    [rows] = await tx.read(Q.fleets_get(batch=[(wanted.zone_id, fleet_id)]))
    return await _seen(tx, [each for each in decode(rows, Fleet) if each.deleted_at is None])


async def _seen(tx: Transaction, found: Sequence[Fleet]) -> list[FleetSeen]:
    if not found:
        return []
    active, deregistered = MemberStatus.ACTIVE, MemberStatus.DEREGISTERED
    headed: list[tuple[object, ...]] = [
        (*each.ref, active if each.deleted_at is None else deregistered, each.director_agent_id) for each in found
    ]
    head_rows, counted, placement_rows = await tx.read(
        LISTS.fleets_headed(batch=headed),
        LISTS.fleets_counted(batch=[(*each.ref, active) for each in found]),
        LISTS.placements_get(batch=[(each.zone_id, each.director_agent_id) for each in found]),
    )
    placements = {placement.agent_id: placement for placement in decode(placement_rows, Placement)}
    numbers = {int(str(fleet_id)): int(str(number)) for _, fleet_id, number in counted}
    heads: dict[int, list[Member]] = {}
    for head in decode(head_rows, Member):
        heads.setdefault(head.fleet_id, []).append(head)
    return [
        FleetSeen(
            each,
            heads.get(each.fleet_id, []),
            placements.get(each.director_agent_id or 0),
            numbers.get(each.fleet_id, 0),
        )
        for each in found
    ]


async def member(tx: Transaction, wanted: OfMember) -> FleetMemberView:
    """Also one that has left."""
    found = await _member(tx, wanted)
    placements, unread = await tx.read(
        LISTS.placements_get(batch=[found.ref]), LISTS.messages_unread_counts(batch=[found.ref])
    )
    return views.member_view(found, _first(placements, Placement), _counts(unread)[found.agent_id])


async def _member(tx: Transaction, wanted: OfMember) -> Member:
    _, [rows] = await in_fleet(tx, wanted, Q.members_get(batch=[(wanted.zone_id, wanted.agent_id)]))
    return _of_fleet(rows, wanted)


def _of_fleet(rows: Sequence[Row], wanted: OfMember | SentFilter) -> Member:
    found = _first(rows, Member)
    if found is None or found.fleet_id != wanted.fleet_id:
        raise errors.not_a_member(wanted.agent_id, wanted.fleet_id)
    return found


async def members(tx: Transaction, wanted: MembersFilter) -> list[FleetMemberView]:
    """Up to so many, in the order they came."""
    _, pages = await in_fleet(
        tx,
        wanted,
        *(
            LISTS.members_page(
                zone_id=wanted.zone_id, fleet_id=wanted.fleet_id, state=status, after=wanted.after, limit=wanted.limit
            )
            for status in wanted.statuses
        ),
    )
    found = decode([row for page in pages for row in page], Member)
    shown = sorted(found, key=lambda each: each.agent_id)[: wanted.limit]
    refs: list[tuple[object, ...]] = [each.ref for each in shown]
    counting = [LISTS.messages_unread_counts(batch=refs)] if wanted.with_unread else []
    placement_rows, *counted = await tx.read(LISTS.placements_get(batch=refs), *counting)
    placements = {placement.agent_id: placement for placement in decode(placement_rows, Placement)}
    unread = _counts(counted[0]) if counted else {}
    return [views.member_view(each, placements.get(each.agent_id), unread.get(each.agent_id)) for each in shown]


def _counts(rows: Sequence[Row]) -> dict[int, int]:
    return {int(str(agent_id)): int(str(number)) for _, agent_id, number in rows}


async def monitor(tx: Transaction, wanted: OfFleet) -> MonitorView:
    ref = (wanted.zone_id, wanted.fleet_id)
    _, [rows] = await in_fleet(tx, wanted, Q.monitor_runtimes_get(batch=[ref]))
    watched = await _watched(tx, wanted)
    return views.monitor_view(wanted.fleet_id, _first(rows, MonitorRuntime), watched, tx.now)


async def monitored(tx: Transaction, wanted: OfMember) -> MonitoredView:
    found = await _member(tx, wanted)
    for each in await _watched(tx, wanted):
        if each.member.agent_id == found.agent_id:
            return views.monitored_view(each, tx.now)
    raise errors.no_placement(found.agent_id)


async def _watched(tx: Transaction, wanted: OfFleet) -> list[Watched]:
    there: list[tuple[object, ...]] = [(wanted.zone_id, wanted.fleet_id, MemberStatus.ACTIVE)]
    member_rows, placement_rows, config_rows = await tx.read(
        Q.members_of_fleets(batch=there), Q.placements_of_fleets(batch=there), Q.monitor_configs_of_fleets(batch=there)
    )
    known = {each.agent_id: each for each in decode(member_rows, Member)}
    placements = {each.agent_id: each for each in decode(placement_rows, Placement)}
    configs = sorted(decode(config_rows, MonitorConfig), key=lambda config: config.agent_id)
    if not configs:
        return []
    refs: list[tuple[object, ...]] = [(config.zone_id, config.agent_id) for config in configs]
    [rows] = await tx.read(LISTS.messages_unread_counts(batch=refs))
    unread = _counts(rows)
    return [
        Watched(known[config.agent_id], config, placements.get(config.agent_id), unread.get(config.agent_id, 0))
        for config in configs
    ]


def _first(rows: Sequence[Row], kind: type[T]) -> T | None:
    found = decode(rows[:1], kind)
    return found[0] if found else None
