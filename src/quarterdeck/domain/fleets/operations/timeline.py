"""What was said in a fleet, newest first: a message to one is an entry, and so is a broadcast, with all its deliveries.

The deliveries of a broadcast follow its summary, one id after the other, so that between two entries of a fleet stands
what belongs to the first of them and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.domain.fleets.model.filters import OfFleet, TimelineFilter
from quarterdeck.domain.fleets.model.rows import MEMBERS_MAX, Message, MessageType
from quarterdeck.domain.fleets.operations.fleet_reads import in_fleet
from quarterdeck.domain.fleets.operations.message_reads import PAGE_CHARACTERS, SLICE, names
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules.views import Entry, Names
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement


class Entries(msgspec.Struct, frozen=True):
    entries: list[Entry]
    names: Names
    is_cut: bool = False
    """There are fewer than were asked for, because they are so long."""


class News(msgspec.Struct, frozen=True):
    """By their ids: entries that were not there before; and messages that have moved, without what they say."""

    entries: dict[int, Entry]
    moved: dict[int, Message]
    names: Names


async def page(tx: Transaction, wanted: TimelineFilter) -> Entries:
    """Up to so many, newest first."""
    _, [rows] = await in_fleet(tx, wanted, _heads(wanted, wanted.before, wanted.limit))
    before, entries, known = wanted.before, list[Entry](), dict[int, str]()
    while heads := decode(rows, Message):
        ends = [before, *(head.task_id for head in heads[:-1])]
        found = await _whole(tx, heads, ends)
        entries += found.entries
        known.update(found.names)
        left, before = wanted.limit - len(entries), heads[-1].task_id
        if len(heads) < SLICE or not left:
            break
        if sum(len(entry.text) for entry in entries) >= PAGE_CHARACTERS:
            return Entries(entries, known, is_cut=True)
        [rows] = await tx.read(_heads(wanted, before, left))
    return Entries(entries, known)


def _heads(wanted: TimelineFilter, before: int, limit: int) -> BoundStatement:
    return LISTS.timeline_heads(
        fleet_id=wanted.fleet_id, zone_id=wanted.zone_id, before=before, limit=min(limit, SLICE)
    )


async def news(tx: Transaction, fleet: OfFleet, begun: Iterable[int], moved: Iterable[int]) -> News:
    """Of the fleet, the entries with these ids, and the messages with those."""
    _, [head_rows, moved_rows] = await in_fleet(
        tx,
        fleet,
        Q.messages_get(batch=[(fleet.zone_id, task_id) for task_id in sorted(begun)]),
        LISTS.timeline_moved(batch=[(fleet.zone_id, fleet.fleet_id, task_id) for task_id in sorted(moved)]),
    )
    heads = [head for head in decode(head_rows, Message) if head.fleet_id == fleet.fleet_id]
    found = await _whole(tx, heads, [head.task_id + MEMBERS_MAX for head in heads])
    since = decode(moved_rows, Message)
    called = {**found.names, **await names(tx, since)}
    return News({entry.head.task_id: entry for entry in found.entries}, {each.task_id: each for each in since}, called)


async def told(tx: Transaction, deliveries: Sequence[Message]) -> int:
    """How many of these, which are those of one broadcast, their recipients were told of in their panes."""
    if not deliveries:
        return 0
    first = deliveries[0]
    span = (first.zone_id, first.fleet_id, first.origin_task_id, first.task_id + MEMBERS_MAX)
    [rows] = await tx.read(LISTS.timeline_deliveries(batch=[span]))
    return sum(message.notified_at is not None for message in decode(rows, Message))


async def _whole(tx: Transaction, heads: Sequence[Message], ends: Sequence[int]) -> Entries:
    """With what was delivered of each, all of which has lower ids than its end."""
    entries = {head.task_id: Entry(head) for head in heads}
    spans: list[tuple[object, ...]] = [
        (head.zone_id, head.fleet_id, head.task_id, end)
        for head, end in zip(heads, ends, strict=True)
        if head.type is MessageType.SUMMARY
    ]
    if spans:
        [rows] = await tx.read(LISTS.timeline_deliveries(batch=spans))
        for delivery in decode(rows, Message):
            entries[delivery.origin_task_id or 0].deliveries.append(delivery)
    found = [*entries.values()]
    return Entries(found, await names(tx, (each for entry in found for each in entry.messages)))
