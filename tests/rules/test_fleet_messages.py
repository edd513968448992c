"""What members say to each other, decided without a database: who may, to whom, and how a message ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem, Refusal
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    BaseMessageCommand,
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

CREW = (member_row(DIRECTOR), administrator_row(), member_row(ALICE), member_row(BOB))
STRANGER, GONE = 9, 8
OTHERS = (member_row(STRANGER, fleet_id=2), deregistered_row(GONE))


def known(
    *messages: Message,
    members: Sequence[Member] = (*CREW, *OTHERS),
    fleets: Sequence[Fleet] = (fleet_row(), fleet_row(2, director_agent_id=STRANGER)),
    last: int = 100,
    keys: Sequence[KeyRecord] = (),
) -> MessageBatchInput:
    return MessageBatchInput(
        NOW,
        lambda ask, power: None,
        {ZONE: None},
        {each.ref: each for each in fleets},
        {each.ref: each for each in members},
        {each.ref: each for each in messages},
        {ZONE: last},
        {each.scope(): each for each in keys},
    )


def send(to: int = ALICE, **asked: object) -> Send:
    plain: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "text": "hello"}
    return build_struct(Send, zone_id=ZONE, to_agent_id=to, **({"caller": admin()} | plain | asked))


def broadcast(**asked: object) -> Broadcast:
    plain: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "text": "all"}
    return build_struct(Broadcast, zone_id=ZONE, **({"caller": admin()} | plain | asked))


def ack(message_id: int = 1, agent_id: int = ALICE, **asked: object) -> Acknowledge:
    who: dict[str, object] = {"fleet_id": FLEET_ID, "caller": admin(), "agent_id": agent_id}
    return build_struct(Acknowledge, zone_id=ZONE, message_id=message_id, **(who | asked))


def cancel(message_id: int = 1, agent_id: int = DIRECTOR, **asked: object) -> Cancel:
    who: dict[str, object] = {"fleet_id": FLEET_ID, "caller": admin(), "agent_id": agent_id}
    return build_struct(Cancel, zone_id=ZONE, message_id=message_id, **(who | asked))


def receipt(notice: NoticeFailure | None = None, message_id: int = 1, fleet_id: int = FLEET_ID) -> RecordReceipt:
    return RecordReceipt(zone_id=ZONE, fleet_id=fleet_id, message_id=message_id, failure=notice)


def sentence(outcome: object) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.detail


def sent(outcome: object) -> SendResult:
    assert isinstance(outcome, SendResult), outcome
    return outcome


def ended(outcome: object) -> Message:
    assert isinstance(outcome, Message), outcome
    return outcome


# -- sending


def test_a_message_waits_for_its_recipient_from_the_moment_it_is_sent() -> None:
    talk = MessageBatch(known())
    row = sent(talk.decide(send())).message
    assert row == message_row(101, created_at=NOW, status_timestamp=NOW, status_state=MessageState.INPUT_REQUIRED)
    assert (row.context_id, row.to_agent_id, row.origin_task_id) == (ALICE, ALICE, None)
    assert talk.sent == [row]
    assert [(told.type, told.before) for told in talk.events] == [("message.sent", None)]


@pytest.mark.parametrize("to", [77, STRANGER, GONE], ids=["nobody", "of another fleet", "deregistered"])
def test_who_is_not_in_the_fleet_is_no_destination(to: int) -> None:
    assert sentence(MessageBatch(known()).decide(send(to))) == f"Destination agent not found: {to}"


def test_the_administrator_sends_and_never_receives() -> None:
    assert sent(MessageBatch(known()).decide(send(from_agent_id=ADMINISTRATOR))).message.from_agent_id == ADMINISTRATOR
    assert sentence(MessageBatch(known()).decide(send(ADMINISTRATOR))) == "Administrator cannot receive messages"


def test_whoever_is_called_administrator_is_none_by_that() -> None:
    namesake = member_row(5, name="Administrator")
    assert sent(MessageBatch(known(members=[*CREW, namesake])).decide(send(5))).message.to_agent_id == 5


VERBS = [send, broadcast, ack, cancel]


def as_member(verb: object, agent_id: int, caller: Caller | None = None) -> MessageCommand:
    """The verb, done as this member."""
    who = caller or admin()
    if verb is send:
        return send(BOB, from_agent_id=agent_id, caller=who)
    if verb is broadcast:
        return broadcast(from_agent_id=agent_id, caller=who)
    return ack(agent_id=agent_id, caller=who) if verb is ack else cancel(agent_id=agent_id, caller=who)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("who", [77, STRANGER, GONE], ids=["nobody", "of another fleet", "deregistered"])
def test_whoever_is_not_in_the_fleet_can_do_nothing_in_it(verb: object, who: int) -> None:
    row = message_row(1, to=who, from_agent_id=who)
    talk = MessageBatch(known(row))
    assert sentence(talk.decide(as_member(verb, who))) == f"agent {who} is not a member of fleet 1."
    assert (talk.sent, talk.originals, talk.events, talk.keys.new_records) == ([], {}, [], [])


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_said_in_a_fleet_that_is_deleted_or_was_never_there(verb: object) -> None:
    over = fleet_row(deleted_at=NOW - 1)
    assert (
        sentence(MessageBatch(known(message_row(), fleets=[over])).decide(as_member(verb, ALICE)))
        == "fleet 1 is deleted"
    )
    assert (
        sentence(MessageBatch(known(message_row(), fleets=[])).decide(as_member(verb, ALICE))) == "fleet 1 not found."
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_panes_token_acts_as_its_own_member_alone(verb: object) -> None:
    row = message_row(1, to=ALICE, from_agent_id=ALICE)
    for name, agent_id, may in (
        ("fleet-1-3", ALICE, True),
        ("fleet-1-3", DIRECTOR, False),
        ("fleet-1-3", ADMINISTRATOR, False),
        ("worker", ALICE, False),
    ):
        outcome = MessageBatch(known(row)).decide(as_member(verb, agent_id, caller=agent_caller(name)))
        if may:
            assert not isinstance(outcome, Problem)
        else:
            assert sentence(outcome) == f"This token cannot act as agent {agent_id}"


def test_a_person_names_who_they_act_as() -> None:
    assert sent(MessageBatch(known()).decide(send(caller=user_caller()))).message.from_agent_id == DIRECTOR


def test_whether_somebody_may_speak_at_all_is_asked_first() -> None:
    asked: list[str] = []
    refusal = Refusal("no", "no")

    def problem_of(ask: BaseMessageCommand, power: str) -> Problem | None:
        asked.append(power)
        return refusal

    talk = MessageBatch(MessageBatchInput(NOW, problem_of))
    assert talk.decide(send()) is refusal
    assert asked == ["fleets.speak"]


def test_nothing_is_sent_in_a_zone_that_has_ended() -> None:
    over = Refusal("zone_ended", "over")
    plain = known(message_row())
    talk = MessageBatch(
        MessageBatchInput(NOW, plain.caller_problem, {ZONE: over}, plain.fleets, plain.members, plain.messages)
    )
    assert talk.decide(send()) is over
    assert talk.decide(broadcast()) is over
    assert ended(talk.decide(ack())).status_state is MessageState.COMPLETED, "what is there can still end"


# -- broadcasts


def test_a_broadcast_is_a_summary_and_a_delivery_to_everybody_else_under_one_origin() -> None:
    talk = MessageBatch(known())
    done = sent(talk.decide(broadcast(from_agent_id=ALICE)))
    summary = done.message
    assert (summary.type, summary.status_state) == (MessageType.SUMMARY, MessageState.COMPLETED)
    assert (summary.to_agent_id, summary.context_id, summary.from_agent_id) == (0, ALICE, ALICE)
    assert (summary.task_id, summary.origin_task_id) == (101, 101)
    assert summary.text == "Broadcast sent to 2 recipients"
    assert [(row.task_id, row.to_agent_id, row.origin_task_id, row.text) for row in done.deliveries] == [
        (102, DIRECTOR, 101, "all"),
        (103, BOB, 101, "all"),
    ]
    assert {(row.type, row.status_state, row.context_id == row.to_agent_id) for row in done.deliveries} == {
        (MessageType.UNICAST, MessageState.INPUT_REQUIRED, True)
    }
    assert talk.sent == [summary, *done.deliveries]
    assert [(told.type, told.recipient_count) for told in talk.events] == [("message.sent", 2)]


def test_the_administrator_may_broadcast_and_is_told_of_no_broadcast() -> None:
    done = sent(MessageBatch(known()).decide(broadcast(from_agent_id=ADMINISTRATOR)))
    assert [row.to_agent_id for row in done.deliveries] == [DIRECTOR, ALICE, BOB]


def test_a_broadcast_to_nobody_leaves_its_summary_alone() -> None:
    done = sent(MessageBatch(known(members=[member_row(DIRECTOR), administrator_row(), *OTHERS])).decide(broadcast()))
    assert (done.message.text, done.deliveries) == ("Broadcast sent to 0 recipients", ())


def test_what_a_broadcast_leaves_in_all_is_bounded_in_bytes_and_a_refusal_leaves_nothing() -> None:
    most = BROADCAST_BYTES_MAX // 2
    assert len(sent(MessageBatch(known()).decide(broadcast(text="x" * most))).deliveries) == 2
    talk = MessageBatch(known())
    assert sentence(talk.decide(broadcast(text="é" * (most // 2) + "x"))) == (
        f"A broadcast is at most {BROADCAST_BYTES_MAX} bytes in all, and this is {most + 1} for each of 2 recipients."
    )
    assert (talk.sent, talk.events, talk.keys.new_records, talk.last_ids) == ([], [], [], {ZONE: 100})
    alone = known(members=[member_row(DIRECTOR), administrator_row(), member_row(ALICE)])
    assert len(sent(MessageBatch(alone).decide(broadcast(text="x" * (most + 1)))).deliveries) == 1


# -- ids and keys


def test_ids_are_counted_on_by_zone_and_none_is_given_out_twice() -> None:
    talk = MessageBatch(known(last=41))
    ids = [row.task_id for _ in range(3) for row in _all(sent(talk.decide(broadcast())))]
    ids.append(sent(talk.decide(send())).message.task_id)
    assert ids == [*range(42, 42 + len(ids))]
    assert talk.last_ids == {ZONE: ids[-1]}


def _all(done: SendResult) -> list[Message]:
    return [done.message, *done.deliveries]


def test_a_refusal_takes_no_id() -> None:
    talk = MessageBatch(known(last=41))
    talk.decide(send(77))
    assert talk.last_ids == {ZONE: 41}


def test_what_was_sent_under_a_key_is_shown_again_to_whoever_sent_it_and_nothing_is_sent() -> None:
    talk = MessageBatch(known())
    first = sent(talk.decide(broadcast(idempotency_key="k", request_digest="d")))
    again = sent(talk.decide(broadcast(idempotency_key="k", request_digest="d")))
    assert (again.message, again.deliveries, again.created) == (first.message, first.deliveries, False)
    assert len(talk.sent) == 4 - 1
    assert len(talk.keys.new_records) == 1
    other = talk.decide(broadcast(idempotency_key="k", request_digest="another"))
    assert isinstance(other, Problem)
    assert other.code == "idempotency_key_conflict"


def test_a_key_is_answered_after_its_sender_has_left_but_never_to_another_member() -> None:
    ask = send(idempotency_key="k", request_digest="d", from_agent_id=GONE)
    key = command_key(ask)
    assert key is not None
    bound = KeyRecord(key.zone_id, key.application_id, key.operation, key.key, "d", "1")
    row = message_row(1, from_agent_id=GONE)
    assert sent(MessageBatch(known(row, keys=[bound])).decide(ask)).message == row
    stranger = send(idempotency_key="k", request_digest="d", from_agent_id=GONE, caller=_as("fleet-1-3"))
    assert sentence(MessageBatch(known(row, keys=[bound])).decide(stranger)) == f"This token cannot act as agent {GONE}"


def _as(agent_id: str) -> Caller:
    return Caller(f"agent:{agent_id}", admin().client_id, ZONE, frozenset(), agent_id=agent_id)


# -- ends


def test_the_recipient_acknowledges_and_the_time_of_it_is_kept() -> None:
    talk = MessageBatch(known(message_row()))
    row = ended(talk.decide(ack()))
    assert row == message_row(status_state=MessageState.COMPLETED, status_timestamp=NOW)
    assert row.created_at == NOW - 1_000
    assert talk.originals == {row.ref: message_row()}
    assert [(told.type, told.before) for told in talk.events] == [("message.acknowledged", MessageState.INPUT_REQUIRED)]


def test_the_sender_cancels() -> None:
    row = ended(MessageBatch(known(message_row())).decide(cancel()))
    assert (row.status_state, row.status_timestamp) == (MessageState.CANCELED, NOW)


@pytest.mark.parametrize("who", [DIRECTOR, BOB, ADMINISTRATOR])
def test_only_the_recipient_acknowledges(who: int) -> None:
    assert sentence(MessageBatch(known(message_row())).decide(ack(agent_id=who))) == "Only the recipient can ACK a task"


@pytest.mark.parametrize("who", [ALICE, BOB, ADMINISTRATOR])
def test_only_the_sender_cancels(who: int) -> None:
    assert (
        sentence(MessageBatch(known(message_row())).decide(cancel(agent_id=who))) == "Only the sender can cancel a task"
    )


@pytest.mark.parametrize("state", [MessageState.COMPLETED, MessageState.CANCELED])
def test_a_message_ends_once(state: MessageState) -> None:
    row = message_row(status_state=state)
    assert sentence(MessageBatch(known(row)).decide(ack())) == f"Cannot ACK task in state {state}"
    assert sentence(MessageBatch(known(row)).decide(cancel())) == f"Cannot cancel task in state {state}"


def test_of_any_number_who_end_a_message_in_one_batch_the_first_does() -> None:
    asks: list[MessageCommand] = [ack(), cancel(), ack(), cancel()]
    for order in itertools.permutations(asks, 3):
        talk = MessageBatch(known(message_row()))
        outcomes = [talk.decide(ask) for ask in order]
        assert [isinstance(each, Message) for each in outcomes] == [True, False, False]
        assert len(talk.events) == 1


def test_nobody_acknowledges_the_summary_of_a_broadcast() -> None:
    row = message_row(
        to=0, context_id=DIRECTOR, type=MessageType.SUMMARY, status_state=MessageState.COMPLETED, origin_task_id=1
    )
    assert sentence(MessageBatch(known(row)).decide(ack(agent_id=DIRECTOR))) == "Cannot ACK task in state completed"
    assert sentence(MessageBatch(known(row)).decide(ack(agent_id=ALICE))) == "Only the recipient can ACK a task"


@pytest.mark.parametrize("ask", [ack(), cancel(), receipt()], ids=["ack", "cancel", "receipt"])
def test_a_message_of_another_fleet_is_not_found(ask: MessageCommand) -> None:
    assert sentence(MessageBatch(known(message_row(fleet_id=2))).decide(ask)) == "Task 1 not found"
    assert sentence(MessageBatch(known()).decide(ask)) == "Task 1 not found"


def test_what_is_sent_and_acknowledged_in_one_batch_is_kept_as_it_was_sent_and_as_it_is() -> None:
    talk = MessageBatch(known())
    row = sent(talk.decide(send())).message
    after = ended(talk.decide(ack(row.task_id)))
    assert talk.sent == [row]
    assert talk.originals == {row.ref: row}
    assert talk.current_message(row.ref) == after


# -- receipts


def test_a_receipt_never_moves_the_time_of_a_message_nor_its_state() -> None:
    for state in MessageState:
        for notice in (None, *NoticeFailure):
            row = message_row(status_state=state)
            after = ended(MessageBatch(known(row)).decide(receipt(notice)))
            assert (after.status_timestamp, after.status_state) == (row.status_timestamp, state)
            assert (after.notified_at, after.notice) == (NOW if notice is None else None, notice)


def test_what_was_typed_once_is_not_made_untyped_and_what_was_not_may_be_later() -> None:
    typed = message_row(notified_at=NOW - 5)
    talk = MessageBatch(known(typed))
    assert talk.decide(receipt(NoticeFailure.PANE_GONE)) == talk.decide(receipt()) == typed
    assert talk.originals == {}
    late = ended(MessageBatch(known(message_row(notice=NoticeFailure.FAILED))).decide(receipt()))
    assert (late.notified_at, late.notice) == (NOW, None)


def test_a_receipt_is_kept_in_a_fleet_that_was_deleted_meanwhile_and_tells_nothing() -> None:
    talk = MessageBatch(known(message_row(), fleets=[fleet_row(deleted_at=NOW)]))
    assert ended(talk.decide(receipt())).notified_at == NOW
    assert talk.events == []
