"""Decides the commands of one `message` batch in order of arrival, without I/O or a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import BatchKeys, Key, KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    Broadcast,
    Cancel,
    MessageCommand,
    MessageOutcome,
    RecordReceipt,
    Send,
    SendResult,
)
from quarterdeck.domain.fleets.model.rows import (
    BROADCAST_BYTES_MAX,
    NO_RECIPIENT,
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
from quarterdeck.domain.fleets.rules.agent_cards import ADMINISTRATOR_KIND, member_kind

SEND_OPERATION = "message.send"
"""The operation name under which idempotency keys are stored."""
_replace = msgspec.structs.replace


@dataclass(frozen=True)
class MessageBatchInput:
    """The rows loaded for a batch under the zones' locks."""

    now: Millis
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """Errors for zones that have ended, by zone id. Nothing new can be sent in these zones."""
    fleets: Mapping[FleetRef, Fleet] = field(default_factory=dict)
    members: Mapping[MemberRef, Member] = field(default_factory=dict)
    """The members that the commands refer to; for a broadcast, all active members of the fleet."""
    messages: Mapping[MessageRef, Message] = field(default_factory=dict)
    last_ids: Mapping[str, int] = field(default_factory=dict)
    """The highest message ids, by zone."""
    key_records: Mapping[Key, KeyRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that the transaction will append to the log."""

    type: str
    before: MessageState | None
    message: Message
    actor: str
    trace: str | None
    recipient_count: int = 1


class MessageBatch:
    """Decides the commands of a batch and collects the new and changed messages."""

    def __init__(self, loaded: MessageBatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self._messages = {**loaded.messages}
        self.keys = BatchKeys(loaded.key_records)
        self.last_ids = {**loaded.last_ids}
        self.sent: list[Message] = []
        """New messages in their initial state, without later changes in this batch."""
        self.originals: dict[MessageRef, Message] = {}
        """The row of each changed message before its first change in this batch."""
        self.events: list[PendingEvent] = []

    def current_message(self, ref: MessageRef) -> Message:
        return self._messages[ref]

    def decide(self, command: MessageCommand) -> MessageOutcome | Problem:
        fleet = self._loaded.fleets.get((command.zone_id, command.fleet_id))
        if fleet is None:
            return errors.fleet_not_found(command.fleet_id)
        match command:
            case RecordReceipt():
                return self._record_receipt(command)
            case Send():
                return self._send(command, fleet)
            case Broadcast():
                return self._broadcast(command, fleet)
            case Acknowledge():
                return self._acknowledge(command, fleet)
            case Cancel():
                return self._cancel(command, fleet)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self, command: Send, fleet: Fleet) -> SendResult | Problem:
        if (early_result := self._result_without_sending(command, fleet)) is not None:
            return early_result
        recipient = self._loaded.members.get((command.zone_id, command.to_agent_id))
        if recipient is None or not recipient.is_active or recipient.fleet_id != command.fleet_id:
            return errors.destination_not_found(command.to_agent_id)
        if member_kind(recipient.agent_card_json) == ADMINISTRATOR_KIND:
            return errors.administrator_cannot_receive()
        message = self._add_delivery(command, recipient.agent_id, None, command.text)
        self.keys.add(command_key(command), command.request_digest, str(message.task_id))
        self._add_event("message.sent", None, message, command)
        return SendResult(message)

    def _broadcast(self, command: Broadcast, fleet: Fleet) -> SendResult | Problem:
        if (early_result := self._result_without_sending(command, fleet)) is not None:
            return early_result
        recipients = self._recipients(command)
        if (size_bytes := len(command.text.encode())) * len(recipients) > BROADCAST_BYTES_MAX:
            return errors.broadcast_too_large(size_bytes, len(recipients))
        summary = self._add_summary(command, len(recipients))
        deliveries = [
            self._add_delivery(command, member.agent_id, summary.task_id, command.text) for member in recipients
        ]
        self.keys.add(command_key(command), command.request_digest, str(summary.task_id))
        self._add_event("message.sent", None, summary, command, len(deliveries))
        return SendResult(summary, tuple(deliveries))

    def _result_without_sending(self, command: Send | Broadcast, fleet: Fleet) -> SendResult | Problem | None:
        """The result of a repeated request, or the error if nothing can be sent. None if the message is to be sent.

        A repeated request returns the message sent under its key, even if the sender could no longer send it.
        """
        can_act_as_sender = self._identity_problem(command, command.from_agent_id, fleet) is None
        if can_act_as_sender and (repeated := self._find_repeated_outcome(command)) is not None:
            return repeated
        zone_problem = self._loaded.zone_problems.get(command.zone_id)
        return zone_problem or self._acting_problem(command, command.from_agent_id, fleet)

    def _recipients(self, command: Broadcast) -> list[Member]:
        """All active members except the sender and the administrator."""
        return [
            member
            for member in sorted(self._loaded.members.values(), key=lambda member: member.agent_id)
            if (member.zone_id, member.fleet_id) == (command.zone_id, command.fleet_id)
            and member.is_active
            and member.agent_id != command.from_agent_id
            and member_kind(member.agent_card_json) != ADMINISTRATOR_KIND
        ]

    def _add_summary(self, command: Broadcast, recipient_count: int) -> Message:
        message_id = self._next_id(command.zone_id)
        return self._add_message(
            Message(
                zone_id=command.zone_id,
                task_id=message_id,
                fleet_id=command.fleet_id,
                context_id=command.from_agent_id,
                from_agent_id=command.from_agent_id,
                to_agent_id=NO_RECIPIENT,
                type=MessageType.SUMMARY,
                created_at=self._now,
                status_state=MessageState.COMPLETED,
                status_timestamp=self._now,
                origin_task_id=message_id,
                text=f"Broadcast sent to {recipient_count} recipients",
                notified_at=None,
                notice=None,
            )
        )

    def _add_delivery(self, command: Send | Broadcast, recipient_id: int, origin_id: int | None, text: str) -> Message:
        return self._add_message(
            Message(
                zone_id=command.zone_id,
                task_id=self._next_id(command.zone_id),
                fleet_id=command.fleet_id,
                context_id=recipient_id,
                from_agent_id=command.from_agent_id,
                to_agent_id=recipient_id,
                type=MessageType.UNICAST,
                created_at=self._now,
                status_state=MessageState.INPUT_REQUIRED,
                status_timestamp=self._now,
                origin_task_id=origin_id,
                text=text,
                notified_at=None,
                notice=None,
            )
        )

    def _add_message(self, message: Message) -> Message:
        self._messages[message.ref] = message
        self.sent.append(message)
        return message

    def _next_id(self, zone_id: str) -> int:
        self.last_ids[zone_id] = message_id = self.last_ids.get(zone_id, 0) + 1
        return message_id

    # -- acknowledging and canceling -----------------------------------------------------------------------------

    def _acknowledge(self, command: Acknowledge, fleet: Fleet) -> Message | Problem:
        message = self._find_for_agent(command, fleet)
        if isinstance(message, Problem):
            return message
        if message.context_id != command.agent_id:
            return errors.not_the_recipient()
        if message.status_state is not MessageState.INPUT_REQUIRED:
            return errors.cannot_acknowledge(message.status_state)
        return self._finish_message(message, MessageState.COMPLETED, "message.acknowledged", command)

    def _cancel(self, command: Cancel, fleet: Fleet) -> Message | Problem:
        message = self._find_for_agent(command, fleet)
        if isinstance(message, Problem):
            return message
        if message.from_agent_id != command.agent_id:
            return errors.not_the_sender()
        if message.status_state is not MessageState.INPUT_REQUIRED:
            return errors.cannot_cancel(message.status_state)
        return self._finish_message(message, MessageState.CANCELED, "message.canceled", command)

    def _find_for_agent(self, command: Acknowledge | Cancel, fleet: Fleet) -> Message | Problem:
        if problem := self._acting_problem(command, command.agent_id, fleet):
            return problem
        return self._find_in_fleet(command) or errors.message_not_found(command.message_id)

    def _find_in_fleet(self, command: Acknowledge | Cancel | RecordReceipt) -> Message | None:
        """The message, or None if it does not exist or belongs to another fleet."""
        message = self._messages.get((command.zone_id, command.message_id))
        return message if message is not None and message.fleet_id == command.fleet_id else None

    def _finish_message(
        self, message: Message, state: MessageState, event_type: str, command: Acknowledge | Cancel
    ) -> Message:
        after = _replace(message, status_state=state, status_timestamp=self._now)
        self._update_message(message, after)
        self._add_event(event_type, message.status_state, after, command)
        return after

    def _record_receipt(self, command: RecordReceipt) -> Message | Problem:
        """A later failure does not replace a successful receipt. The status timestamp does not change."""
        message = self._find_in_fleet(command)
        if message is None:
            return errors.message_not_found(command.message_id)
        if message.notified_at is not None:
            return message
        notified_at = self._now if command.failure is None else None
        after = _replace(message, notified_at=notified_at, notice=command.failure)
        self._update_message(message, after)
        return after

    def _update_message(self, before: Message, after: Message) -> None:
        self.originals.setdefault(before.ref, before)
        self._messages[before.ref] = after

    # -- authorization and repeated requests ---------------------------------------------------------------------

    def _acting_problem(self, command: Command, agent_id: int, fleet: Fleet) -> Problem | None:
        """The error if the caller cannot act as this member now, or None."""
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(fleet.fleet_id)
        if problem := self._identity_problem(command, agent_id, fleet):
            return problem
        member = self._loaded.members[command.zone_id, agent_id]
        return None if member.is_active else errors.member_not_found(agent_id, fleet.fleet_id)

    def _identity_problem(self, command: Command, agent_id: int, fleet: Fleet) -> Problem | None:
        """The error if the caller may not act as this member, active or not. An agent may only act as itself."""
        member = self._loaded.members.get((command.zone_id, agent_id))
        if member is None or member.fleet_id != fleet.fleet_id:
            return errors.member_not_found(agent_id, fleet.fleet_id)
        caller_agent_id = None if command.caller is None else command.caller.agent_id
        return (
            errors.acting_agent_forbidden(agent_id)
            if caller_agent_id is not None and caller_agent_id != member.registry_id
            else None
        )

    def _find_repeated_outcome(self, command: Send | Broadcast) -> SendResult | Problem | None:
        created_id = self.keys.find(command_key(command), command.request_digest)
        if created_id is None or isinstance(created_id, Problem):
            return created_id
        message_id = int(created_id)
        message = self._messages.get((command.zone_id, message_id))
        if message is None:
            return errors.message_not_found(message_id)
        return SendResult(message, self._deliveries_of(message), created=False)

    def _deliveries_of(self, summary: Message) -> tuple[Message, ...]:
        """The deliveries of a broadcast with their current state."""
        deliveries = [
            message
            for message in self._messages.values()
            if (message.zone_id, message.origin_task_id) == summary.ref and message.task_id != summary.task_id
        ]
        return tuple(sorted(deliveries, key=lambda message: message.task_id))

    def _add_event(
        self, event_type: str, before: MessageState | None, message: Message, command: Command, recipient_count: int = 1
    ) -> None:
        self.events.append(PendingEvent(event_type, before, message, command.actor, command.trace, recipient_count))


def command_key(command: Send | Broadcast) -> Key | None:
    if command.idempotency_key is None or command.caller is None:
        return None
    # The members of a fleet share an application, so the key includes the sender.
    return Key(
        command.zone_id,
        command.caller.client_id,
        SEND_OPERATION,
        f"{command.fleet_id} {command.from_agent_id} {command.idempotency_key}",
    )


def collect_message_refs(commands: Sequence[MessageCommand]) -> set[MessageRef]:
    return {
        (command.zone_id, command.message_id)
        for command in commands
        if isinstance(command, Acknowledge | Cancel | RecordReceipt)
    }
