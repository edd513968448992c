"""Looking at fleets, members, messages and the monitor, as they stand. Whoever may read a fleet may read all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.fleets.model.filters import (
    LAST,
    FleetsFilter,
    InboxFilter,
    MembersFilter,
    MessagesFilter,
    OfFleet,
    OfMember,
    OfMessage,
    Position,
    SentFilter,
)
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    MemberRef,
    MemberStatus,
    Message,
    MessageState,
    MonitorConfig,
    MonitorRuntime,
    Placement,
)
from quarterdeck.domain.fleets.model.views import FleetMemberView, MonitoredView, MonitorView
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import agent_cards, errors, views
from quarterdeck.domain.fleets.rules.views import FleetSeen, Names, Watched
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

READ, CHANGE = "fleets.read", "fleets.change"
SLICE = 64
"""Messages that are read at once."""
PAGE_CHARACTERS = 4 * 1024 * 1024
"""After so many a page ends, however many messages were asked for."""
T = TypeVar("T", bound=msgspec.Struct)
M = TypeVar("M", bound=MessagesFilter)
W = TypeVar("W", bound=SentFilter)


async def in_fleet(tx: Tx, ask: OfFleet, *statements: Bound, power: str = READ) -> tuple[Fleet, list[list[Row]]]:
    """The fleet, and what these find, in one round trip. Refuses a caller who may not, and a fleet that is nowhere."""
    speakers = Speakers([ask])
    said = speakers.statements()
    answers = await tx.read(*said, Q.fleets_get(batch=[(ask.zone_id, ask.fleet_id)]), *statements)
    if problem := speakers.heard(answers[: len(said)], tx.now).problem(ask, power):
        raise problem
    rows, *found = answers[len(said) :]
    if ask.caller is not None and not agent_cards.may_look(ask.caller, ask.fleet_id):
        raise errors.fleet_not_found(ask.fleet_id)
    if not rows:
        await zones.require(tx, ask.zone_id)
        raise errors.fleet_not_found(ask.fleet_id)
    return decode(rows, Fleet)[0], found


async def changeable(tx: Tx, ask: OfFleet) -> None:
    """Refuses whoever may not change fleets, and a fleet that cannot be changed."""
    found, _ = await in_fleet(tx, ask, power=CHANGE)
    if found.deleted_at is not None:
        raise errors.fleet_deleted(ask.fleet_id)


# -- fleets and members ------------------------------------------------------------------------------------------


async def fleet(tx: Tx, wanted: OfFleet) -> FleetSeen:
    found, _ = await in_fleet(tx, wanted)
    [seen] = await _seen(tx, [found])
    return seen


async def fleets(tx: Tx, wanted: FleetsFilter) -> list[FleetSeen]:
    """Up to so many, newest first."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    if wanted.caller is not None and wanted.caller.agent_id is not None:
        return await _own(tx, wanted, wanted.caller.agent_id)
    [rows] = await tx.read(
        LISTS.fleets_page(
            zone_id=wanted.zone_id, before=wanted.before, with_deleted=int(wanted.with_deleted), limit=wanted.limit
        )
    )
    if not rows:
        await zones.require(tx, wanted.zone_id)
    return await _seen(tx, decode(rows, Fleet))


async def _own(tx: Tx, wanted: FleetsFilter, agent_id: str) -> list[FleetSeen]:
    """An agent sees the fleet that it is a member of."""
    fleet_id = agent_cards.fleet_of(agent_id)
    if fleet_id is None or fleet_id >= wanted.before:
        return []
    [rows] = await tx.read(Q.fleets_get(batch=[(wanted.zone_id, fleet_id)]))
    return await _seen(tx, [each for each in decode(rows, Fleet) if each.deleted_at is None])


async def _seen(tx: Tx, found: Sequence[Fleet]) -> list[FleetSeen]:
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


async def member(tx: Tx, wanted: OfMember) -> FleetMemberView:
    """Also one that has left."""
    found = await _member(tx, wanted)
    placements, unread = await tx.read(
        LISTS.placements_get(batch=[found.ref]), LISTS.messages_unread_counts(batch=[found.ref])
    )
    return views.member_view(found, _first(placements, Placement), _counts(unread)[found.agent_id])


async def _member(tx: Tx, wanted: OfMember) -> Member:
    _, [rows] = await in_fleet(tx, wanted, Q.members_get(batch=[(wanted.zone_id, wanted.agent_id)]))
    return _of_fleet(rows, wanted)


def _of_fleet(rows: Sequence[Row], wanted: OfMember | SentFilter) -> Member:
    found = _first(rows, Member)
    if found is None or found.fleet_id != wanted.fleet_id:
        raise errors.not_a_member(wanted.agent_id, wanted.fleet_id)
    return found


async def members(tx: Tx, wanted: MembersFilter) -> list[FleetMemberView]:
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


# -- messages ----------------------------------------------------------------------------------------------------


class Pages(msgspec.Struct, frozen=True):
    """A page of messages, and what those are called whom they name."""

    messages: list[Message]
    names: Names
    is_cut: bool = False
    """It is shorter than was asked for, because its messages are so long."""


async def message(tx: Tx, wanted: OfMessage) -> Pages:
    """One of whose ends at least one is in the fleet."""
    _, [rows] = await in_fleet(tx, wanted, Q.messages_get(batch=[(wanted.zone_id, wanted.message_id)]))
    found = _first(rows, Message)
    if found is None:
        raise errors.message_not_found(wanted.message_id)
    ends: list[tuple[object, ...]] = [
        (found.zone_id, agent_id) for agent_id in sorted({found.from_agent_id, found.to_agent_id})
    ]
    [rows] = await tx.read(Q.members_get(batch=ends))
    known = decode(rows, Member)
    if all(each.fleet_id != wanted.fleet_id for each in known):
        raise errors.message_not_found(wanted.message_id)
    return Pages([found], {each.agent_id: each.name for each in known})


async def inbox(tx: Tx, wanted: InboxFilter) -> Pages:
    """What a member was sent. What still waits for it comes in the order of its ids, which is the order in which it was
    sent; everything else by when it last moved."""
    return await _of_member(tx, wanted, _inbox)


async def sent(tx: Tx, wanted: SentFilter) -> Pages:
    """What a member has sent, by when it last moved."""
    return await _of_member(tx, wanted, _sent)


async def _of_member(tx: Tx, wanted: W, statement: Callable[[W], Bound]) -> Pages:
    asked = Q.members_get(batch=[(wanted.zone_id, wanted.agent_id)])
    fleet, [member_rows, rows] = await in_fleet(tx, wanted, asked, statement(_slice(wanted)))
    member = _of_fleet(member_rows, wanted)
    if isinstance(wanted, InboxFilter) and wanted.is_poll and (gone := errors.over(fleet, member)):
        raise gone
    return await _page(tx, wanted, statement, decode(rows, Message))


async def messages(tx: Tx, wanted: MessagesFilter) -> Pages:
    """Everything that was said in a fleet, row by row."""
    _, [rows] = await in_fleet(tx, wanted, _messages(_slice(wanted)))
    return await _page(tx, wanted, _messages, decode(rows, Message))


async def _page(tx: Tx, wanted: M, statement: Callable[[M], Bound], found: list[Message]) -> Pages:
    """Goes on after a first slice: texts may be long, and a page is held in memory as a whole."""
    read, size = len(found), _size(found)
    while read == SLICE and len(found) < wanted.limit and size < PAGE_CHARACTERS:
        last = found[-1]
        following = msgspec.structs.replace(
            wanted, position=Position(last.status_timestamp, last.task_id), limit=wanted.limit - len(found)
        )
        [rows] = await tx.read(statement(_slice(following)))
        more = decode(rows, Message)
        read, size = len(more), size + _size(more)
        found += more
    is_cut = read == SLICE and len(found) < wanted.limit
    return Pages(found, await names(tx, found), is_cut)


def _slice(wanted: M) -> M:
    return msgspec.structs.replace(wanted, limit=min(wanted.limit, SLICE))


def _size(found: Iterable[Message]) -> int:
    return sum(len(each.text) for each in found)


def _inbox(wanted: InboxFilter) -> Bound:
    if wanted.state is MessageState.INPUT_REQUIRED:
        statement = LISTS.messages_poll_oldest if wanted.oldest_first else LISTS.messages_poll
        return statement(agent_id=wanted.agent_id, **_by_id(wanted))
    statement = LISTS.messages_inbox_oldest if wanted.oldest_first else LISTS.messages_inbox
    return statement(**_by_instant(wanted))


def _sent(wanted: SentFilter) -> Bound:
    statement = LISTS.messages_sent_oldest if wanted.oldest_first else LISTS.messages_sent
    return statement(**_by_instant(wanted))


def _messages(wanted: MessagesFilter) -> Bound:
    statement = LISTS.messages_page_oldest if wanted.oldest_first else LISTS.messages_page
    return statement(fleet_id=wanted.fleet_id, **_by_id(wanted))


def _by_id(wanted: MessagesFilter) -> dict[str, str | int | None]:
    """Where a page goes on, in the order of ids, is only another bound."""
    position = wanted.position
    after = max(wanted.after, position.id) if position and wanted.oldest_first else wanted.after
    before = position.id if position and not wanted.oldest_first else LAST
    return {"zone_id": wanted.zone_id, "after": after, "before": before, "limit": wanted.limit}


def _by_instant(wanted: SentFilter) -> dict[str, str | int | None]:
    first = Position(0, 0) if wanted.oldest_first else Position(LAST, LAST)
    position = wanted.position or first
    return {
        "zone_id": wanted.zone_id,
        "agent_id": wanted.agent_id,
        "state": wanted.state,
        "after": wanted.after,
        "at": position.at,
        "id": position.id,
        "limit": wanted.limit,
    }


async def names(tx: Tx, found: Iterable[Message]) -> Names:
    """What those are called whom these name, all of one zone."""
    return {agent_id: name for (_, agent_id), name in (await _names(tx, found)).items()}


async def _names(tx: Tx, found: Iterable[Message]) -> dict[MemberRef, str]:
    refs: set[MemberRef] = set()
    for each in found:
        refs |= {(each.zone_id, each.from_agent_id), (each.zone_id, each.to_agent_id)}
    if not refs:
        return {}
    [rows] = await tx.read(LISTS.members_named(batch=[*sorted(refs)]))
    return {(str(zone_id), int(str(agent_id))): str(name) for zone_id, agent_id, name in rows}


class NamesOf(msgspec.Struct, frozen=True):
    """Of a message that was just sent, or has just moved."""

    message: Message

    @property
    def zone_id(self) -> str:
        return self.message.zone_id


async def names_of(tx: Tx, asks: Sequence[NamesOf]) -> list[Names | Problem | Busy]:
    """One statement finds them for all who ask at once."""
    found = await _names(tx, [ask.message for ask in asks])
    return [
        {
            agent_id: found[ask.zone_id, agent_id]
            for agent_id in (ask.message.from_agent_id, ask.message.to_agent_id)
            if (ask.zone_id, agent_id) in found
        }
        for ask in asks
    ]


# -- the monitor -------------------------------------------------------------------------------------------------


async def monitor(tx: Tx, wanted: OfFleet) -> MonitorView:
    ref = (wanted.zone_id, wanted.fleet_id)
    _, [rows] = await in_fleet(tx, wanted, Q.monitor_runtimes_get(batch=[ref]))
    watched = await _watched(tx, wanted)
    return views.monitor_view(wanted.fleet_id, _first(rows, MonitorRuntime), watched, tx.now)


async def monitored(tx: Tx, wanted: OfMember) -> MonitoredView:
    found = await _member(tx, wanted)
    for each in await _watched(tx, wanted):
        if each.member.agent_id == found.agent_id:
            return views.monitored_view(each, tx.now)
    raise errors.no_placement(found.agent_id)


async def _watched(tx: Tx, wanted: OfFleet) -> list[Watched]:
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
