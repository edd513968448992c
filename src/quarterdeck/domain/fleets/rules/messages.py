"""One batch of what members say to each other, decided in order of arrival. It does no I/O and knows no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    Broadcast,
    Cancel,
    Receipt,
    Send,
    Sent,
    Spoken,
    SpokenCommand,
    SpokenOutcome,
)
from quarterdeck.domain.fleets.model.rows import (
    BROADCAST_MAX,
    NOBODY,
    Fleet,
    FleetRef,
    Member,
    MemberRef,
    Message,
    MessageRef,
    MessageState,
    MessageType,
)
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.domain.fleets.rules.agent_cards import BUILTIN, kind_of
from quarterdeck.domain.fleets.rules.idempotency import Keys

SENDING = "message.send"
"""What keys are kept under."""
_replace = msgspec.structs.replace
ProblemOf = Callable[[Spoken, str], Problem | None]


@dataclass(frozen=True)
class Known:
    """What was loaded for a batch, under the zones' locks."""

    now: Millis
    problem_of: ProblemOf
    zones: Mapping[str, Problem | None] = field(default_factory=dict)
    """Why nothing can begin any more in a zone that has ended."""
    fleets: Mapping[FleetRef, Fleet] = field(default_factory=dict)
    members: Mapping[MemberRef, Member] = field(default_factory=dict)
    """Those that are named, and for a broadcast all that are active."""
    messages: Mapping[MessageRef, Message] = field(default_factory=dict)
    last_ids: Mapping[str, int] = field(default_factory=dict)
    """Of messages, by zone."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """An event: what happened to a message, and by whom."""

    type: str
    before: MessageState | None
    message: Message
    actor: str
    trace: str | None
    recipients: int = 1


class Talk:
    """What is in `sent` is as it was when it was sent: what came of it since in the same batch is in `changed`."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._now = known.now
        self._messages = {**known.messages}
        self.keys = Keys(known.keys)
        self.last_ids = {**known.last_ids}
        self.sent: list[Message] = []
        self.changed: dict[MessageRef, Message] = {}
        """As it was loaded."""
        self.told: list[Told] = []

    def message(self, ref: MessageRef) -> Message:
        """As it is now."""
        return self._messages[ref]

    def decide(self, ask: SpokenCommand) -> SpokenOutcome | Problem:
        if problem := self._known.problem_of(ask, "fleets.speak"):
            return problem
        fleet = self._known.fleets.get((ask.zone_id, ask.fleet_id))
        if fleet is None:
            return errors.fleet_not_found(ask.fleet_id)
        match ask:
            case Receipt():
                return self._receipt(ask)
            case Send():
                return self._send(ask, fleet)
            case Broadcast():
                return self._broadcast(ask, fleet)
            case Acknowledge():
                return self._acknowledge(ask, fleet)
            case Cancel():
                return self._cancel(ask, fleet)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self, ask: Send, fleet: Fleet) -> SpokenOutcome | Problem:
        if (settled := self._settled(ask, fleet)) is not None:
            return settled
        recipient = self._known.members.get((ask.zone_id, ask.to_agent_id))
        if recipient is None or not recipient.is_active or recipient.fleet_id != ask.fleet_id:
            return errors.no_destination(ask.to_agent_id)
        if kind_of(recipient.agent_card_json) == BUILTIN:
            return errors.administrator_receives_nothing()
        message = self._write(ask, recipient.agent_id, None, ask.text)
        self.keys.bind(key_of(ask), ask.digest, message.task_id)
        self._tell("message.sent", None, message, ask)
        return Sent(message)

    def _broadcast(self, ask: Broadcast, fleet: Fleet) -> SpokenOutcome | Problem:
        if (settled := self._settled(ask, fleet)) is not None:
            return settled
        recipients = self._audience(ask)
        if (size := len(ask.text.encode())) * len(recipients) > BROADCAST_MAX:
            return errors.broadcast_too_large(size, len(recipients))
        summary = self._summary(ask, len(recipients))
        deliveries = [self._write(ask, member.agent_id, summary.task_id, ask.text) for member in recipients]
        self.keys.bind(key_of(ask), ask.digest, summary.task_id)
        self._tell("message.sent", None, summary, ask, len(deliveries))
        return Sent(summary, tuple(deliveries))

    def _settled(self, ask: Send | Broadcast, fleet: Fleet) -> SpokenOutcome | Problem | None:
        """What can be answered without sending anything. What was sent once under a key is shown to whoever sent it,
        also when nothing can be sent any more."""
        is_oneself = self._identity_problem(ask, ask.from_agent_id, fleet) is None
        if is_oneself and (said_before := self._said_before(ask)) is not None:
            return said_before
        over = self._known.zones.get(ask.zone_id)
        return over or self._acting_problem(ask, ask.from_agent_id, fleet)

    def _audience(self, ask: Broadcast) -> list[Member]:
        """Everybody who is there, but the sender and the administrator."""
        return [
            member
            for member in sorted(self._known.members.values(), key=lambda member: member.agent_id)
            if (member.zone_id, member.fleet_id) == (ask.zone_id, ask.fleet_id)
            and member.is_active
            and member.agent_id != ask.from_agent_id
            and kind_of(member.agent_card_json) != BUILTIN
        ]

    def _summary(self, ask: Broadcast, number: int) -> Message:
        message_id = self._next_id(ask.zone_id)
        return self._keep(
            Message(
                zone_id=ask.zone_id,
                task_id=message_id,
                fleet_id=ask.fleet_id,
                context_id=ask.from_agent_id,
                from_agent_id=ask.from_agent_id,
                to_agent_id=NOBODY,
                type=MessageType.SUMMARY,
                created_at=self._now,
                status_state=MessageState.COMPLETED,
                status_timestamp=self._now,
                origin_task_id=message_id,
                text=f"Broadcast sent to {number} recipients",
                notified_at=None,
                notice=None,
            )
        )

    def _write(self, ask: Send | Broadcast, to: int, origin: int | None, text: str) -> Message:
        return self._keep(
            Message(
                zone_id=ask.zone_id,
                task_id=self._next_id(ask.zone_id),
                fleet_id=ask.fleet_id,
                context_id=to,
                from_agent_id=ask.from_agent_id,
                to_agent_id=to,
                type=MessageType.UNICAST,
                created_at=self._now,
                status_state=MessageState.INPUT_REQUIRED,
                status_timestamp=self._now,
                origin_task_id=origin,
                text=text,
                notified_at=None,
                notice=None,
            )
        )

    def _keep(self, message: Message) -> Message:
        self._messages[message.ref] = message
        self.sent.append(message)
        return message

    def _next_id(self, zone_id: str) -> int:
        self.last_ids[zone_id] = number = self.last_ids.get(zone_id, 0) + 1
        return number

    # -- ends ----------------------------------------------------------------------------------------------------

    def _acknowledge(self, ask: Acknowledge, fleet: Fleet) -> SpokenOutcome | Problem:
        message = self._found(ask, fleet)
        if isinstance(message, Problem):
            return message
        if message.context_id != ask.agent_id:
            return errors.not_the_recipient()
        if message.status_state is not MessageState.INPUT_REQUIRED:
            return errors.cannot_acknowledge(message.status_state)
        return self._end(message, MessageState.COMPLETED, "message.acknowledged", ask)

    def _cancel(self, ask: Cancel, fleet: Fleet) -> SpokenOutcome | Problem:
        message = self._found(ask, fleet)
        if isinstance(message, Problem):
            return message
        if message.from_agent_id != ask.agent_id:
            return errors.not_the_sender()
        if message.status_state is not MessageState.INPUT_REQUIRED:
            return errors.cannot_cancel(message.status_state)
        return self._end(message, MessageState.CANCELED, "message.canceled", ask)

    def _found(self, ask: Acknowledge | Cancel, fleet: Fleet) -> Message | Problem:
        if problem := self._acting_problem(ask, ask.agent_id, fleet):
            return problem
        return self._of_fleet(ask) or errors.message_not_found(ask.message_id)

    def _of_fleet(self, ask: Acknowledge | Cancel | Receipt) -> Message | None:
        """What was said in another fleet is not there."""
        message = self._messages.get((ask.zone_id, ask.message_id))
        return message if message is not None and message.fleet_id == ask.fleet_id else None

    def _end(self, message: Message, state: MessageState, kind: str, ask: Acknowledge | Cancel) -> Message:
        after = _replace(message, status_state=state, status_timestamp=self._now)
        self._change(message, after)
        self._tell(kind, message.status_state, after, ask)
        return after

    def _receipt(self, ask: Receipt) -> SpokenOutcome | Problem:
        """What was typed once is not made untyped by a later try. When a message last moved is not touched by it."""
        message = self._of_fleet(ask)
        if message is None:
            return errors.message_not_found(ask.message_id)
        if message.notified_at is not None:
            return message
        at = self._now if ask.notice is None else None
        after = _replace(message, notified_at=at, notice=ask.notice)
        self._change(message, after)
        return after

    def _change(self, before: Message, after: Message) -> None:
        self.changed.setdefault(before.ref, before)
        self._messages[before.ref] = after

    # -- who may, and what was said before -----------------------------------------------------------------------

    def _acting_problem(self, ask: Spoken, agent_id: int, fleet: Fleet) -> Problem | None:
        """Why nobody can act as this member, or not this caller."""
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(fleet.fleet_id)
        if problem := self._identity_problem(ask, agent_id, fleet):
            return problem
        member = self._known.members[ask.zone_id, agent_id]
        return None if member.is_active else errors.not_a_member(agent_id, fleet.fleet_id)

    def _identity_problem(self, ask: Spoken, agent_id: int, fleet: Fleet) -> Problem | None:
        """Why this caller is not one whom this fleet has, or had. A pane's token acts as its own member alone."""
        member = self._known.members.get((ask.zone_id, agent_id))
        if member is None or member.fleet_id != fleet.fleet_id:
            return errors.not_a_member(agent_id, fleet.fleet_id)
        own = None if ask.caller is None else ask.caller.agent_id
        return errors.not_oneself(agent_id) if own is not None and own != member.registry_id else None

    def _said_before(self, ask: Send | Broadcast) -> SpokenOutcome | Problem | None:
        known = self.keys.made_before(key_of(ask), ask.digest)
        if known is None or isinstance(known, Problem):
            return known
        message = self._messages.get((ask.zone_id, known))
        if message is None:
            return errors.message_not_found(known)
        return Sent(message, self._delivered(message), made=False)

    def _delivered(self, summary: Message) -> tuple[Message, ...]:
        """Of a broadcast, as they are now."""
        found = [
            each
            for each in self._messages.values()
            if (each.zone_id, each.origin_task_id) == summary.ref and each.task_id != summary.task_id
        ]
        return tuple(sorted(found, key=lambda each: each.task_id))

    def _tell(self, kind: str, before: MessageState | None, message: Message, ask: Spoken, recipients: int = 1) -> None:
        self.told.append(Told(kind, before, message, ask.actor, ask.trace, recipients))


def key_of(ask: Send | Broadcast) -> Key | None:
    if ask.key is None or ask.caller is None:
        return None
    # Members of a fleet share an application: each has its own keys.
    return Key(ask.zone_id, ask.caller.client_id, SENDING, f"{ask.fleet_id} {ask.from_agent_id} {ask.key}")


def asked_ids(asks: Sequence[SpokenCommand]) -> set[MessageRef]:
    """Messages that these name."""
    return {(ask.zone_id, ask.message_id) for ask in asks if isinstance(ask, Acknowledge | Cancel | Receipt)}
