"""What members say to each other: load under the zones' locks, decide by `rules.messages`, write in one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.agents.operations.authorization import CallerChecks
from quarterdeck.domain.fleets.model.commands import Acknowledge, Broadcast, Cancel, Send, SpokenCommand, SpokenOutcome
from quarterdeck.domain.fleets.model.rows import MEMBERS_MAX, Fleet, Member, MemberStatus, Message, MessageType
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.domain.fleets.rules.members import LastIds
from quarterdeck.domain.fleets.rules.messages import Known, Talk, Told, asked_ids, key_of
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import chunks

Batch = list[tuple[object, ...]]
Delivered = Callable[[Sequence[Message]], None]


class Talking:
    """An object because it knows who is told of what was delivered, once that is committed."""

    def __init__(self, delivered: Delivered) -> None:
        self._delivered = delivered

    async def run(self, tx: Transaction, asks: Sequence[SpokenCommand]) -> list[SpokenOutcome | Problem | Busy]:
        """Every verb, in order of arrival."""
        speakers = CallerChecks(asks)
        keys = [key for ask in asks if isinstance(ask, Send | Broadcast) and (key := key_of(ask)) is not None]
        zone_ids: Batch = [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]
        locked_rows, *said, ids, fleets, named, crews, messages, bound = await tx.read(
            zones.lock_statement(tx, zones_of(asks)),
            *speakers.statements(),
            Q.fleet_ids(batch=zone_ids),
            Q.fleets_get(batch=sorted({(ask.zone_id, ask.fleet_id) for ask in asks})),
            Q.members_get(batch=_named(asks)),
            Q.members_of_fleets(batch=_crews(asks)),
            Q.messages_get(batch=sorted(asked_ids(asks))),
            idempotency.load_keys(keys),
        )
        locked = zones.decode_zones(locked_rows)
        why_not = await zones.lock_failures(tx, zones_of(asks) - locked.keys())
        bindings = idempotency.decode_records(bound)
        known_messages = [*decode(messages, Message), *await _kept(tx, [*bindings.values()])]
        last_ids = {last.zone_id: last for last in decode(ids, LastIds)}
        talk = Talk(
            Known(
                tx.now,
                speakers.build_state(said, tx.now).problem,
                zone_rules.ended_zone_problems(locked.values()),
                {fleet.ref: fleet for fleet in decode(fleets, Fleet) if fleet.zone_id in locked},
                {member.ref: member for member in decode([*named, *crews], Member)},
                {message.ref: message for message in known_messages},
                {zone_id: last.messages for zone_id, last in last_ids.items()},
                bindings,
            )
        )
        outcomes = [sessions.blocked(ask, why_not) or talk.decide(ask) for ask in asks]
        await self._write(tx, talk, last_ids)
        return outcomes

    async def _write(self, tx: Transaction, talk: Talk, last_ids: Mapping[str, LastIds]) -> None:
        if talk.sent:
            # Of the zones in which something was said, and no others: those may not even be locked.
            zone_ids = sorted({message.zone_id for message in talk.sent})
            tx.write(Q.fleet_ids_set(batch=[_counted(last_ids, zone_id, talk) for zone_id in zone_ids]))
            rows: Batch = [msgspec.structs.astuple(message) for message in talk.sent]
            for piece in chunks(rows):
                tx.write(Q.messages_insert(batch=piece))
        if talk.keys.bindings:
            tx.write(idempotency.store_records(talk.keys.bindings, tx.now))
        if talk.changed:
            moves = [_move(before, talk.message(ref)) for ref, before in sorted(talk.changed.items())]
            [moved] = await tx.read(Q.messages_move(batch=moves))
            if len(moved) != len(moves):
                raise RuntimeError("messages moved under the zone's lock")
        for told in talk.told:
            tx.emit(event(told))
        if deliveries := [each for each in talk.sent if each.type is MessageType.UNICAST]:
            tx.on_commit(partial(self._delivered, deliveries))


def _named(asks: Sequence[SpokenCommand]) -> Batch:
    found: set[tuple[str, int]] = set()
    for ask in asks:
        match ask:
            case Send():
                found |= {(ask.zone_id, ask.from_agent_id), (ask.zone_id, ask.to_agent_id)}
            case Broadcast():
                found.add((ask.zone_id, ask.from_agent_id))
            case Acknowledge() | Cancel():
                found.add((ask.zone_id, ask.agent_id))
    return [*sorted(found)]


def _crews(asks: Sequence[SpokenCommand]) -> Batch:
    fleets = {(ask.zone_id, ask.fleet_id) for ask in asks if isinstance(ask, Broadcast)}
    return [(*fleet, MemberStatus.ACTIVE) for fleet in sorted(fleets)]


async def _kept(tx: Transaction, bindings: Sequence[KeyRecord]) -> list[Message]:
    """What keys stand for that were used before; of a broadcast also what was delivered."""
    if not bindings:
        return []
    refs: Batch = sorted((each.zone_id, int(each.subject_id)) for each in bindings)
    [rows] = await tx.read(Q.messages_get(batch=refs))
    found = decode(rows, Message)
    spans: Batch = [(*each.ref, each.task_id + MEMBERS_MAX) for each in found if each.type is MessageType.SUMMARY]
    if not spans:
        return found
    [delivered] = await tx.read(Q.messages_delivered(batch=spans))
    return [*found, *decode(delivered, Message)]


def _counted(last_ids: Mapping[str, LastIds], zone_id: str, talk: Talk) -> tuple[object, ...]:
    before = last_ids.get(zone_id) or LastIds(zone_id)
    return msgspec.structs.astuple(msgspec.structs.replace(before, messages=talk.last_ids[zone_id]))


def _move(before: Message, after: Message) -> tuple[object, ...]:
    return (
        after.zone_id,
        after.task_id,
        before.status_state,
        after.status_state,
        after.status_timestamp,
        after.notified_at,
        after.notice,
    )


def event(told: Told) -> NewEvent:
    """Never what was said: whoever may read the log need not know it."""
    message = told.message
    data = {
        "fleetId": message.fleet_id,
        "from": message.from_agent_id,
        "to": message.to_agent_id,
        "kind": message.type,
        "origin": message.origin_task_id,
        "recipients": told.recipients,
    }
    encoded = msgspec.json.encode(data).decode()
    return NewEvent(
        told.type,
        message.zone_id,
        str(message.task_id),
        told.actor,
        told.before,
        message.status_state,
        encoded,
        told.trace,
    )
