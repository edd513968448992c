"""Rules of messages between members: permission, recipients, broadcasts, idempotency keys, and how a message ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem, Refusal
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    Broadcast,
    Cancel,
    MessageCommand,
    RecordReceipt,
    Send,
    SendResult,
)
from quarterdeck.domain.fleets.model.rows import (
    BROADCAST_BYTES_MAX,
    Fleet,
    Member,
    Message,
    MessageState,
    MessageType,
    NoticeFailure,
)
from quarterdeck.domain.fleets.rules.messages import MessageBatch, MessageBatchInput, command_key
from tests.support.agents import agent_caller, user_caller
from tests.support.builders import NOW, ZONE, admin
from tests.support.fleets import (
    ADMINISTRATOR,
    ALICE,
    BOB,
    DIRECTOR,
    FLEET_ID,
    administrator_row,
    deregistered_row,
    fleet_row,
    member_row,
    message_row,
)
from tests.support.structs import build_struct

MEMBERS = (member_row(DIRECTOR), administrator_row(), member_row(ALICE), member_row(BOB))
OTHER_FLEET_MEMBER, DEREGISTERED = 9, 8
OUTSIDERS = (member_row(OTHER_FLEET_MEMBER, fleet_id=2), deregistered_row(DEREGISTERED))


def batch_input(
    *messages: Message,
    members: Sequence[Member] = (*MEMBERS, *OUTSIDERS),
    fleets: Sequence[Fleet] = (fleet_row(), fleet_row(2, director_agent_id=OTHER_FLEET_MEMBER)),
    last_id: int = 100,
    keys: Sequence[KeyRecord] = (),
) -> MessageBatchInput:
    return MessageBatchInput(
        NOW,
        {ZONE: None},
        {row.ref: row for row in fleets},
        {row.ref: row for row in members},
        {row.ref: row for row in messages},
        {ZONE: last_id},
        {row.full_key(): row for row in keys},
    )


def send(to: int = ALICE, **fields: object) -> Send:
    defaults: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "text": "hello"}
    return build_struct(Send, zone_id=ZONE, to_agent_id=to, **({"caller": admin()} | defaults | fields))


def broadcast(**fields: object) -> Broadcast:
    defaults: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "text": "all"}
    return build_struct(Broadcast, zone_id=ZONE, **({"caller": admin()} | defaults | fields))


def ack(message_id: int = 1, agent_id: int = ALICE, **fields: object) -> Acknowledge:
    defaults: dict[str, object] = {"fleet_id": FLEET_ID, "caller": admin(), "agent_id": agent_id}
    return build_struct(Acknowledge, zone_id=ZONE, message_id=message_id, **(defaults | fields))


def cancel(message_id: int = 1, agent_id: int = DIRECTOR, **fields: object) -> Cancel:
    defaults: dict[str, object] = {"fleet_id": FLEET_ID, "caller": admin(), "agent_id": agent_id}
    return build_struct(Cancel, zone_id=ZONE, message_id=message_id, **(defaults | fields))


def receipt(failure: NoticeFailure | None = None, message_id: int = 1, fleet_id: int = FLEET_ID) -> RecordReceipt:
    return RecordReceipt(zone_id=ZONE, fleet_id=fleet_id, message_id=message_id, failure=failure)


def detail(outcome: object) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.detail


def expect_sent(outcome: object) -> SendResult:
    assert isinstance(outcome, SendResult), outcome
    return outcome


def expect_message(outcome: object) -> Message:
    assert isinstance(outcome, Message), outcome
    return outcome


# -- sending


def test_sent_message_is_input_required_for_its_recipient() -> None:
    batch = MessageBatch(batch_input())
    row = expect_sent(batch.decide(send())).message
    assert row == message_row(101, created_at=NOW, status_timestamp=NOW, status_state=MessageState.INPUT_REQUIRED)
    assert (row.context_id, row.to_agent_id, row.origin_task_id) == (ALICE, ALICE, None)
    assert batch.sent == [row]
    assert [(event.type, event.before) for event in batch.events] == [("message.sent", None)]


@pytest.mark.parametrize("to", [77, OTHER_FLEET_MEMBER, DEREGISTERED], ids=["unknown", "other-fleet", "deregistered"])
def test_destination_must_be_an_active_member_of_the_fleet(to: int) -> None:
    assert detail(MessageBatch(batch_input()).decide(send(to))) == f"Destination agent not found: {to}"


def test_administrator_can_send_but_not_receive() -> None:
    assert (
        expect_sent(MessageBatch(batch_input()).decide(send(from_agent_id=ADMINISTRATOR))).message.from_agent_id
        == ADMINISTRATOR
    )
    assert detail(MessageBatch(batch_input()).decide(send(ADMINISTRATOR))) == "Administrator cannot receive messages"


def test_member_named_administrator_is_an_ordinary_member() -> None:
    namesake = member_row(5, name="Administrator")
    assert expect_sent(MessageBatch(batch_input(members=[*MEMBERS, namesake])).decide(send(5))).message.to_agent_id == 5


VERBS = [send, broadcast, ack, cancel]


def as_member(verb: object, agent_id: int, caller: Caller | None = None) -> MessageCommand:
    """A command of this verb that acts as this member."""
    member_caller = caller or admin()
    if verb is send:
        return send(BOB, from_agent_id=agent_id, caller=member_caller)
    if verb is broadcast:
        return broadcast(from_agent_id=agent_id, caller=member_caller)
    return (
        ack(agent_id=agent_id, caller=member_caller) if verb is ack else cancel(agent_id=agent_id, caller=member_caller)
    )


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "agent_id", [77, OTHER_FLEET_MEMBER, DEREGISTERED], ids=["unknown", "other-fleet", "deregistered"]
)
def test_sender_must_be_an_active_member_of_the_fleet(verb: object, agent_id: int) -> None:
    row = message_row(1, to=agent_id, from_agent_id=agent_id)
    batch = MessageBatch(batch_input(row))
    assert detail(batch.decide(as_member(verb, agent_id))) == f"agent {agent_id} is not a member of fleet 1."
    assert (batch.sent, batch.originals, batch.events, batch.keys.new_records) == ([], {}, [], [])


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_in_a_deleted_or_unknown_fleet_is_refused(verb: object) -> None:
    deleted = fleet_row(deleted_at=NOW - 1)
    assert (
        detail(MessageBatch(batch_input(message_row(), fleets=[deleted])).decide(as_member(verb, ALICE)))
        == "fleet 1 is deleted"
    )
    assert (
        detail(MessageBatch(batch_input(message_row(), fleets=[])).decide(as_member(verb, ALICE)))
        == "fleet 1 not found."
    )


@pytest.mark.parametrize("verb", VERBS)
def test_token_of_a_pane_acts_only_as_its_own_member(verb: object) -> None:
    row = message_row(1, to=ALICE, from_agent_id=ALICE)
    for name, agent_id, is_allowed in (
        ("fleet-1-3", ALICE, True),
        ("fleet-1-3", DIRECTOR, False),
        ("fleet-1-3", ADMINISTRATOR, False),
        ("worker", ALICE, False),
    ):
        outcome = MessageBatch(batch_input(row)).decide(as_member(verb, agent_id, caller=agent_caller(name)))
        if is_allowed:
            assert not isinstance(outcome, Problem)
        else:
            assert detail(outcome) == f"This token cannot act as agent {agent_id}"


def test_user_token_can_act_as_a_named_member() -> None:
    assert expect_sent(MessageBatch(batch_input()).decide(send(caller=user_caller()))).message.from_agent_id == DIRECTOR


def test_ended_zone_refuses_new_messages_but_allows_acknowledgement() -> None:
    zone_ended = Refusal("zone_ended", "ended")
    loaded = batch_input(message_row())
    batch = MessageBatch(MessageBatchInput(NOW, {ZONE: zone_ended}, loaded.fleets, loaded.members, loaded.messages))
    assert batch.decide(send()) is zone_ended
    assert batch.decide(broadcast()) is zone_ended
    assert expect_message(batch.decide(ack())).status_state is MessageState.COMPLETED, "existing messages can still end"


# -- broadcasts


def test_broadcast_creates_a_summary_and_one_delivery_per_other_member() -> None:
    batch = MessageBatch(batch_input())
    result = expect_sent(batch.decide(broadcast(from_agent_id=ALICE)))
    summary = result.message
    assert (summary.type, summary.status_state) == (MessageType.SUMMARY, MessageState.COMPLETED)
    assert (summary.to_agent_id, summary.context_id, summary.from_agent_id) == (0, ALICE, ALICE)
    assert (summary.task_id, summary.origin_task_id) == (101, 101)
    assert summary.text == "Broadcast sent to 2 recipients"
    assert [(row.task_id, row.to_agent_id, row.origin_task_id, row.text) for row in result.deliveries] == [
        (102, DIRECTOR, 101, "all"),
        (103, BOB, 101, "all"),
    ]
    assert {(row.type, row.status_state, row.context_id == row.to_agent_id) for row in result.deliveries} == {
        (MessageType.UNICAST, MessageState.INPUT_REQUIRED, True)
    }
    assert batch.sent == [summary, *result.deliveries]
    assert [(event.type, event.recipient_count) for event in batch.events] == [("message.sent", 2)]


def test_administrator_can_broadcast_but_receives_no_broadcast() -> None:
    result = expect_sent(MessageBatch(batch_input()).decide(broadcast(from_agent_id=ADMINISTRATOR)))
    assert [row.to_agent_id for row in result.deliveries] == [DIRECTOR, ALICE, BOB]


def test_broadcast_without_recipients_creates_only_its_summary() -> None:
    result = expect_sent(
        MessageBatch(batch_input(members=[member_row(DIRECTOR), administrator_row(), *OUTSIDERS])).decide(broadcast())
    )
    assert (result.message.text, result.deliveries) == ("Broadcast sent to 0 recipients", ())


def test_broadcast_is_limited_in_total_bytes_and_a_refusal_stores_nothing() -> None:
    maximum = BROADCAST_BYTES_MAX // 2
    assert len(expect_sent(MessageBatch(batch_input()).decide(broadcast(text="x" * maximum))).deliveries) == 2
    batch = MessageBatch(batch_input())
    assert detail(batch.decide(broadcast(text="é" * (maximum // 2) + "x"))) == (
        f"The broadcast is too large: {maximum + 1} bytes for each of 2 recipients. "
        f"At most {BROADCAST_BYTES_MAX} bytes in total are allowed."
    )
    assert (batch.sent, batch.events, batch.keys.new_records, batch.last_ids) == ([], [], [], {ZONE: 100})
    one_recipient = batch_input(members=[member_row(DIRECTOR), administrator_row(), member_row(ALICE)])
    assert len(expect_sent(MessageBatch(one_recipient).decide(broadcast(text="x" * (maximum + 1)))).deliveries) == 1


# -- ids and keys


def test_message_ids_are_sequential_per_zone() -> None:
    batch = MessageBatch(batch_input(last_id=41))
    ids = [row.task_id for _ in range(3) for row in _all_messages(expect_sent(batch.decide(broadcast())))]
    ids.append(expect_sent(batch.decide(send())).message.task_id)
    assert ids == [*range(42, 42 + len(ids))]
    assert batch.last_ids == {ZONE: ids[-1]}


def _all_messages(result: SendResult) -> list[Message]:
    return [result.message, *result.deliveries]


def test_refused_message_uses_no_id() -> None:
    batch = MessageBatch(batch_input(last_id=41))
    batch.decide(send(77))
    assert batch.last_ids == {ZONE: 41}


def test_repeated_key_returns_the_first_result_and_sends_nothing() -> None:
    batch = MessageBatch(batch_input())
    first = expect_sent(batch.decide(broadcast(idempotency_key="k", request_digest="d")))
    second = expect_sent(batch.decide(broadcast(idempotency_key="k", request_digest="d")))
    assert (second.message, second.deliveries, second.created) == (first.message, first.deliveries, False)
    assert len(batch.sent) == 4 - 1
    assert len(batch.keys.new_records) == 1
    other = batch.decide(broadcast(idempotency_key="k", request_digest="another"))
    assert isinstance(other, Problem)
    assert other.code == "idempotency_key_conflict"


def test_key_replays_after_its_sender_deregistered_but_not_for_another_member() -> None:
    command = send(idempotency_key="k", request_digest="d", from_agent_id=DEREGISTERED)
    key = command_key(command)
    assert key is not None
    record = KeyRecord(key.zone_id, key.application_id, key.operation, key.key, "d", "1")
    row = message_row(1, from_agent_id=DEREGISTERED)
    assert expect_sent(MessageBatch(batch_input(row, keys=[record])).decide(command)).message == row
    other_member = send(
        idempotency_key="k", request_digest="d", from_agent_id=DEREGISTERED, caller=_agent_token("fleet-1-3")
    )
    assert (
        detail(MessageBatch(batch_input(row, keys=[record])).decide(other_member))
        == f"This token cannot act as agent {DEREGISTERED}"
    )


def _agent_token(agent_id: str) -> Caller:
    return Caller(f"agent:{agent_id}", admin().client_id, ZONE, frozenset(), agent_id=agent_id)


# -- acknowledge and cancel


def test_acknowledge_by_the_recipient_completes_the_message_and_stores_the_time() -> None:
    batch = MessageBatch(batch_input(message_row()))
    row = expect_message(batch.decide(ack()))
    assert row == message_row(status_state=MessageState.COMPLETED, status_timestamp=NOW)
    assert row.created_at == NOW - 1_000
    assert batch.originals == {row.ref: message_row()}
    assert [(event.type, event.before) for event in batch.events] == [
        ("message.acknowledged", MessageState.INPUT_REQUIRED)
    ]


def test_cancel_by_the_sender_cancels_the_message() -> None:
    row = expect_message(MessageBatch(batch_input(message_row())).decide(cancel()))
    assert (row.status_state, row.status_timestamp) == (MessageState.CANCELED, NOW)


@pytest.mark.parametrize("agent_id", [DIRECTOR, BOB, ADMINISTRATOR])
def test_only_the_recipient_can_acknowledge(agent_id: int) -> None:
    assert (
        detail(MessageBatch(batch_input(message_row())).decide(ack(agent_id=agent_id)))
        == "Only the recipient can ACK a task"
    )


@pytest.mark.parametrize("agent_id", [ALICE, BOB, ADMINISTRATOR])
def test_only_the_sender_can_cancel(agent_id: int) -> None:
    assert (
        detail(MessageBatch(batch_input(message_row())).decide(cancel(agent_id=agent_id)))
        == "Only the sender can cancel a task"
    )


@pytest.mark.parametrize("state", [MessageState.COMPLETED, MessageState.CANCELED])
def test_ended_message_cannot_be_acknowledged_or_canceled(state: MessageState) -> None:
    row = message_row(status_state=state)
    assert detail(MessageBatch(batch_input(row)).decide(ack())) == f"Cannot ACK task in state {state}"
    assert detail(MessageBatch(batch_input(row)).decide(cancel())) == f"Cannot cancel task in state {state}"


def test_first_command_of_a_batch_that_ends_a_message_wins() -> None:
    commands: list[MessageCommand] = [ack(), cancel(), ack(), cancel()]
    for order in itertools.permutations(commands, 3):
        batch = MessageBatch(batch_input(message_row()))
        outcomes = [batch.decide(command) for command in order]
        assert [isinstance(outcome, Message) for outcome in outcomes] == [True, False, False]
        assert len(batch.events) == 1


def test_summary_of_a_broadcast_cannot_be_acknowledged() -> None:
    row = message_row(
        to=0, context_id=DIRECTOR, type=MessageType.SUMMARY, status_state=MessageState.COMPLETED, origin_task_id=1
    )
    assert detail(MessageBatch(batch_input(row)).decide(ack(agent_id=DIRECTOR))) == "Cannot ACK task in state completed"
    assert detail(MessageBatch(batch_input(row)).decide(ack(agent_id=ALICE))) == "Only the recipient can ACK a task"


@pytest.mark.parametrize("command", [ack(), cancel(), receipt()], ids=["ack", "cancel", "receipt"])
def test_message_of_another_fleet_is_not_found(command: MessageCommand) -> None:
    assert detail(MessageBatch(batch_input(message_row(fleet_id=2))).decide(command)) == "Task 1 not found"
    assert detail(MessageBatch(batch_input()).decide(command)) == "Task 1 not found"


def test_message_acknowledged_in_its_own_batch_keeps_both_versions() -> None:
    batch = MessageBatch(batch_input())
    row = expect_sent(batch.decide(send())).message
    after = expect_message(batch.decide(ack(row.task_id)))
    assert batch.sent == [row]
    assert batch.originals == {row.ref: row}
    assert batch.current_message(row.ref) == after


# -- receipts


def test_receipt_changes_neither_state_nor_time_of_a_message() -> None:
    for state in MessageState:
        for failure in (None, *NoticeFailure):
            row = message_row(status_state=state)
            after = expect_message(MessageBatch(batch_input(row)).decide(receipt(failure)))
            assert (after.status_timestamp, after.status_state) == (row.status_timestamp, state)
            assert (after.notified_at, after.notice) == (NOW if failure is None else None, failure)


def test_delivered_notice_stays_delivered_and_a_failed_one_can_succeed_later() -> None:
    delivered = message_row(notified_at=NOW - 5)
    batch = MessageBatch(batch_input(delivered))
    assert batch.decide(receipt(NoticeFailure.PANE_GONE)) == batch.decide(receipt()) == delivered
    assert batch.originals == {}
    retried = expect_message(MessageBatch(batch_input(message_row(notice=NoticeFailure.FAILED))).decide(receipt()))
    assert (retried.notified_at, retried.notice) == (NOW, None)


def test_receipt_is_stored_in_a_deleted_fleet_without_an_event() -> None:
    batch = MessageBatch(batch_input(message_row(), fleets=[fleet_row(deleted_at=NOW)]))
    assert expect_message(batch.decide(receipt())).notified_at == NOW
    assert batch.events == []
