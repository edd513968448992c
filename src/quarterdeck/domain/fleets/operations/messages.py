"""The operation of the `message` lane: load under the zones' locks, decide with `rules.messages`, persist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from quarterdeck.core.command import R
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    BaseMessageCommand,
    Broadcast,
    Cancel,
    MessageCommand,
    MessageOutcome,
    Send,
)
from quarterdeck.domain.fleets.model.rows import (
    MEMBERS_MAX,
    Fleet,
    Member,
    MemberRef,
    MemberStatus,
    Message,
    MessageType,
)
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.domain.fleets.rules.members import LastIds
from quarterdeck.domain.fleets.rules.messages import (
    MessageBatch,
    MessageBatchInput,
    PendingEvent,
    collect_message_refs,
    command_key,
)
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import chunks

SPEAK_PERMISSION = "fleets.speak"
OnDelivered = Callable[[Sequence[Message]], None]


class SubmitMessageCommand(Protocol):
    def __call__(self, command: BaseMessageCommand[R], /) -> Awaitable[R]: ...


class MessageBatchRunner:
    """Runs batches and calls `on_delivered` with the delivered messages after each commit."""

    def __init__(self, on_delivered: OnDelivered) -> None:
        self._on_delivered = on_delivered

    async def run(self, tx: Transaction, commands: Sequence[MessageCommand]) -> list[MessageOutcome | Problem | Busy]:
        keys = [
            key
            for command in commands
            if isinstance(command, Send | Broadcast) and (key := command_key(command)) is not None
        ]
        zone_ids = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
        locked, results = await access.lock_with_roles(
            tx,
            commands,
            Q.fleet_counters_get(batch=zone_ids),
            Q.fleets_get(batch=sorted({(command.zone_id, command.fleet_id) for command in commands})),
            Q.members_get(batch=_collect_member_refs(commands)),
            Q.members_of_fleets(batch=_collect_broadcast_fleets(commands)),
            Q.messages_get(batch=sorted(collect_message_refs(commands))),
            idempotency.load_keys(keys),
        )
        last_id_rows, fleet_rows, member_rows, recipient_rows, message_rows, key_rows = results
        key_records = idempotency.decode_records(key_rows)
        messages = [*decode(message_rows, Message), *await _load_keyed_messages(tx, [*key_records.values()])]
        last_ids = {last.zone_id: last for last in decode(last_id_rows, LastIds)}
        batch = MessageBatch(
            MessageBatchInput(
                tx.now,
                zone_rules.ended_zone_problems(locked.zones.values()),
                {fleet.ref: fleet for fleet in decode(fleet_rows, Fleet) if fleet.zone_id in locked.zones},
                {member.ref: member for member in decode([*member_rows, *recipient_rows], Member)},
                {message.ref: message for message in messages},
                {zone_id: last.messages for zone_id, last in last_ids.items()},
                key_records,
            )
        )
        outcomes = [
            locked.permission_problem(command, SPEAK_PERMISSION) or batch.decide(command) for command in commands
        ]
        await self._persist(tx, batch, last_ids)
        return outcomes

    async def _persist(self, tx: Transaction, batch: MessageBatch, last_ids: Mapping[str, LastIds]) -> None:
        if batch.sent:
            # Only zones in which a message was sent: the batch may also have zones that could not be locked.
            zone_ids = sorted({message.zone_id for message in batch.sent})
            tx.write(Q.fleet_counters_set(batch=[_last_ids_row(last_ids, zone_id, batch) for zone_id in zone_ids]))
            rows = [msgspec.structs.astuple(message) for message in batch.sent]
            for chunk in chunks(rows):
                tx.write(Q.messages_insert(batch=chunk))
        if batch.keys.new_records:
            tx.write(idempotency.store_records(batch.keys.new_records, tx.now))
        if batch.originals:
            updates = [
                _update_row(before, batch.current_message(ref)) for ref, before in sorted(batch.originals.items())
            ]
            [updated] = await tx.read(Q.messages_update(batch=updates))
            if len(updated) != len(updates):
                raise RuntimeError("messages were changed by another transaction despite the zone's lock")
        for pending in batch.events:
            tx.emit(to_new_event(pending))
        if deliveries := [message for message in batch.sent if message.type is MessageType.UNICAST]:
            tx.on_commit(partial(self._on_delivered, deliveries))


def _collect_member_refs(commands: Sequence[MessageCommand]) -> list[MemberRef]:
    refs: set[MemberRef] = set()
    for command in commands:
        match command:
            case Send():
                refs |= {(command.zone_id, command.from_agent_id), (command.zone_id, command.to_agent_id)}
            case Broadcast():
                refs.add((command.zone_id, command.from_agent_id))
            case Acknowledge() | Cancel():
                refs.add((command.zone_id, command.agent_id))
    return sorted(refs)


def _collect_broadcast_fleets(commands: Sequence[MessageCommand]) -> list[tuple[str, int, MemberStatus]]:
    refs = {(command.zone_id, command.fleet_id) for command in commands if isinstance(command, Broadcast)}
    return [(*ref, MemberStatus.ACTIVE) for ref in sorted(refs)]


async def _load_keyed_messages(tx: Transaction, key_records: Sequence[KeyRecord]) -> list[Message]:
    """The messages sent earlier under these keys, including the deliveries of broadcasts."""
    if not key_records:
        return []
    refs = sorted((record.zone_id, int(record.subject_id)) for record in key_records)
    messages = await tx.fetch(Message, Q.messages_get(batch=refs))
    spans = [
        (*message.ref, message.task_id + MEMBERS_MAX) for message in messages if message.type is MessageType.SUMMARY
    ]
    if not spans:
        return messages
    return [*messages, *await tx.fetch(Message, Q.messages_get_deliveries(batch=spans))]


def _last_ids_row(last_ids: Mapping[str, LastIds], zone_id: str, batch: MessageBatch) -> tuple[Any, ...]:
    before = last_ids.get(zone_id) or LastIds(zone_id)
    return msgspec.structs.astuple(msgspec.structs.replace(before, messages=batch.last_ids[zone_id]))


def _update_row(before: Message, after: Message) -> tuple[str, int, str, str, int, int | None, str | None]:
    return (
        after.zone_id,
        after.task_id,
        before.status_state,
        after.status_state,
        after.status_timestamp,
        after.notified_at,
        after.notice,
    )


def to_new_event(pending: PendingEvent) -> NewEvent:
    """The event omits the text: readers of the event log might lack the permission to read messages."""
    message = pending.message
    data = {
        "fleetId": message.fleet_id,
        "from": message.from_agent_id,
        "to": message.to_agent_id,
        "kind": message.type,
        "origin": message.origin_task_id,
        "recipients": pending.recipient_count,
    }
    encoded = msgspec.json.encode(data).decode()
    return NewEvent(
        pending.type,
        message.zone_id,
        str(message.task_id),
        pending.actor,
        pending.before,
        message.status_state,
        encoded,
        pending.trace,
    )
