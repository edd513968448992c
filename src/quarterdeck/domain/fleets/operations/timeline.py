"""The timeline of a fleet, newest first. An entry is a message to one member, or a broadcast with all its deliveries.

The ids of a broadcast's deliveries follow the id of its summary. So the messages of a fleet with ids between those of
two consecutive entries are the deliveries of the older entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.domain.fleets.model.filters import FleetRequest, TimelineFilter
from quarterdeck.domain.fleets.model.rows import MEMBERS_MAX, Message, MessageType
from quarterdeck.domain.fleets.operations.fleet_reads import read_fleet
from quarterdeck.domain.fleets.operations.message_reads import PAGE_CHARACTERS_MAX, SLICE_MESSAGES, load_names
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules.views import MemberNames, TimelineEntry
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement


class TimelinePage(msgspec.Struct, frozen=True):
    entries: list[TimelineEntry]
    names: MemberNames
    is_truncated: bool = False
    """The page ended at `PAGE_CHARACTERS_MAX`, before its limit."""


class TimelineChanges(msgspec.Struct, frozen=True):
    """New entries, and changed messages without their text. Both are keyed by message id."""

    entries: dict[int, TimelineEntry]
    changed_messages: dict[int, Message]
    names: MemberNames


async def list_entries(tx: Transaction, filters: TimelineFilter) -> TimelinePage:
    """Up to `filters.limit` entries, newest first."""
    _, [rows] = await read_fleet(tx, filters, _heads_statement(filters, filters.before_id, filters.limit))
    before_id, entries, names = filters.before_id, list[TimelineEntry](), dict[int, str]()
    while heads := decode(rows, Message):
        end_ids = [before_id, *(head.task_id for head in heads[:-1])]
        page = await _load_deliveries(tx, heads, end_ids)
        entries += page.entries
        names.update(page.names)
        remaining, before_id = filters.limit - len(entries), heads[-1].task_id
        if len(heads) < SLICE_MESSAGES or not remaining:
            break
        if sum(len(entry.text) for entry in entries) >= PAGE_CHARACTERS_MAX:
            return TimelinePage(entries, names, is_truncated=True)
        [rows] = await tx.read(_heads_statement(filters, before_id, remaining))
    return TimelinePage(entries, names)


def _heads_statement(filters: TimelineFilter, before_id: int, limit: int) -> BoundStatement:
    return LISTS.timeline_heads(
        fleet_id=filters.fleet_id, zone_id=filters.zone_id, before=before_id, limit=min(limit, SLICE_MESSAGES)
    )


async def load_changes(
    tx: Transaction, request: FleetRequest, new_entry_ids: Iterable[int], changed_ids: Iterable[int]
) -> TimelineChanges:
    """The new entries and the changed messages of a fleet, by their ids."""
    _, [head_rows, changed_rows] = await read_fleet(
        tx,
        request,
        Q.messages_get(batch=[(request.zone_id, task_id) for task_id in sorted(new_entry_ids)]),
        LISTS.timeline_changed(batch=[(request.zone_id, request.fleet_id, task_id) for task_id in sorted(changed_ids)]),
    )
    heads = [head for head in decode(head_rows, Message) if head.fleet_id == request.fleet_id]
    new_entries = await _load_deliveries(tx, heads, [head.task_id + MEMBERS_MAX for head in heads])
    changed_messages = decode(changed_rows, Message)
    names = {**new_entries.names, **await load_names(tx, changed_messages)}
    return TimelineChanges(
        {entry.head.task_id: entry for entry in new_entries.entries},
        {message.task_id: message for message in changed_messages},
        names,
    )


async def count_notified(tx: Transaction, deliveries: Sequence[Message]) -> int:
    """How many notices of one broadcast were typed into their recipients' panes."""
    if not deliveries:
        return 0
    first = deliveries[0]
    span = (first.zone_id, first.fleet_id, first.origin_task_id, first.task_id + MEMBERS_MAX)
    return sum(
        message.notified_at is not None for message in await tx.fetch(Message, LISTS.timeline_deliveries(batch=[span]))
    )


async def _load_deliveries(tx: Transaction, heads: Sequence[Message], end_ids: Sequence[int]) -> TimelinePage:
    """Build an entry for each head, with its deliveries. Their ids are below the head's element of `end_ids`."""
    entries = {head.task_id: TimelineEntry(head) for head in heads}
    spans = [
        (head.zone_id, head.fleet_id, head.task_id, end_id)
        for head, end_id in zip(heads, end_ids, strict=True)
        if head.type is MessageType.SUMMARY
    ]
    if spans:
        [rows] = await tx.read(LISTS.timeline_deliveries(batch=spans))
        for delivery in decode(rows, Message):
            entries[delivery.origin_task_id or 0].deliveries.append(delivery)
    timeline_entries = [*entries.values()]
    return TimelinePage(
        timeline_entries, await load_names(tx, (message for entry in timeline_entries for message in entry.messages))
    )
