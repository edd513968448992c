"""Reads of messages: one, an inbox, what a member sent, all of a fleet; and the names of their members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.filters import LAST, InboxFilter, MessagesFilter, OfMessage, Position, SentFilter
from quarterdeck.domain.fleets.model.rows import Member, MemberRef, Message, MessageState
from quarterdeck.domain.fleets.operations.fleet_reads import _first, _of_fleet, in_fleet
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.domain.fleets.rules.views import Names
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

SLICE = 64
"""Messages that are read at once."""
PAGE_CHARACTERS = 4 * 1024 * 1024
"""After so many a page ends, however many messages were asked for."""
M = TypeVar("M", bound=MessagesFilter)
W = TypeVar("W", bound=SentFilter)


class Pages(msgspec.Struct, frozen=True):
    """A page of messages, and what those are called whom they name."""

    messages: list[Message]
    names: Names
    is_cut: bool = False
    """It is shorter than was asked for, because its messages are so long."""


async def message(tx: Transaction, wanted: OfMessage) -> Pages:
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


async def inbox(tx: Transaction, wanted: InboxFilter) -> Pages:
    """What a member was sent. What still waits for it comes in the order of its ids, which is the order in which it was
    sent; everything else by when it last moved."""
    return await _of_member(tx, wanted, _inbox)


async def sent(tx: Transaction, wanted: SentFilter) -> Pages:
    """What a member has sent, by when it last moved."""
    return await _of_member(tx, wanted, _sent)


async def _of_member(tx: Transaction, wanted: W, statement: Callable[[W], BoundStatement]) -> Pages:
    asked = Q.members_get(batch=[(wanted.zone_id, wanted.agent_id)])
    fleet, [member_rows, rows] = await in_fleet(tx, wanted, asked, statement(_slice(wanted)))
    member = _of_fleet(member_rows, wanted)
    if isinstance(wanted, InboxFilter) and wanted.is_poll and (gone := errors.over(fleet, member)):
        raise gone
    return await _page(tx, wanted, statement, decode(rows, Message))


async def messages(tx: Transaction, wanted: MessagesFilter) -> Pages:
    """Everything that was said in a fleet, row by row."""
    _, [rows] = await in_fleet(tx, wanted, _messages(_slice(wanted)))
    return await _page(tx, wanted, _messages, decode(rows, Message))


async def _page(tx: Transaction, wanted: M, statement: Callable[[M], BoundStatement], found: list[Message]) -> Pages:
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


def _inbox(wanted: InboxFilter) -> BoundStatement:
    if wanted.state is MessageState.INPUT_REQUIRED:
        statement = LISTS.messages_poll_oldest if wanted.oldest_first else LISTS.messages_poll
        return statement(agent_id=wanted.agent_id, **_by_id(wanted))
    statement = LISTS.messages_inbox_oldest if wanted.oldest_first else LISTS.messages_inbox
    return statement(**_by_instant(wanted))


def _sent(wanted: SentFilter) -> BoundStatement:
    statement = LISTS.messages_sent_oldest if wanted.oldest_first else LISTS.messages_sent
    return statement(**_by_instant(wanted))


def _messages(wanted: MessagesFilter) -> BoundStatement:
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


async def names(tx: Transaction, found: Iterable[Message]) -> Names:
    """What those are called whom these name, all of one zone."""
    return {agent_id: name for (_, agent_id), name in (await _names(tx, found)).items()}


async def _names(tx: Transaction, found: Iterable[Message]) -> dict[MemberRef, str]:
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


async def names_of(tx: Transaction, asks: Sequence[NamesOf]) -> list[Names | Problem | Busy]:
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
