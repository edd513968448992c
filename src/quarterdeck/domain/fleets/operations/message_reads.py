"""Reads one message, an inbox, sent messages or all messages of a fleet, with the names of senders and recipients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.filters import (
    UPPER_BOUND,
    InboxFilter,
    MessageRequest,
    MessagesFilter,
    Position,
    SentFilter,
)
from quarterdeck.domain.fleets.model.rows import Member, MemberRef, Message, MessageState
from quarterdeck.domain.fleets.operations.fleet_reads import decode_first, read_fleet, require_member
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.domain.fleets.rules.views import MemberNames
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

SLICE_MESSAGES = 64
"""The maximum number of messages that one statement reads."""
PAGE_CHARACTERS_MAX = 4 * 1024 * 1024
"""A page ends after this many characters, even if more messages were requested."""
AnyMessagesFilter = TypeVar("AnyMessagesFilter", bound=MessagesFilter)
AnySentFilter = TypeVar("AnySentFilter", bound=SentFilter)


class MessagePage(msgspec.Struct, frozen=True):
    """A page of messages, and the names of their senders and recipients."""

    messages: list[Message]
    names: MemberNames
    is_truncated: bool = False
    """The page ended at `PAGE_CHARACTERS_MAX`, before its limit."""


async def get_message(tx: Transaction, request: MessageRequest) -> MessagePage:
    """A message whose sender or recipient is a member of the fleet."""
    _, [rows] = await read_fleet(tx, request, Q.messages_get(batch=[(request.zone_id, request.message_id)]))
    message = decode_first(rows, Message)
    if message is None:
        raise errors.message_not_found(request.message_id)
    member_refs = [(message.zone_id, agent_id) for agent_id in sorted({message.from_agent_id, message.to_agent_id})]
    [rows] = await tx.read(Q.members_get(batch=member_refs))
    members = decode(rows, Member)
    if all(member.fleet_id != request.fleet_id for member in members):
        raise errors.message_not_found(request.message_id)
    return MessagePage([message], {member.agent_id: member.name for member in members})


async def list_inbox(tx: Transaction, filters: InboxFilter) -> MessagePage:
    """The messages to a member.

    Unread messages are ordered by id, the order in which they were sent. Other lists are ordered by the time of the
    last state change.
    """
    return await _list_member_messages(tx, filters, _inbox_statement)


async def list_sent(tx: Transaction, filters: SentFilter) -> MessagePage:
    """The messages from a member, ordered by the time of the last state change."""
    return await _list_member_messages(tx, filters, _sent_statement)


async def _list_member_messages(
    tx: Transaction, filters: AnySentFilter, build_statement: Callable[[AnySentFilter], BoundStatement]
) -> MessagePage:
    member_statement = Q.members_get(batch=[(filters.zone_id, filters.agent_id)])
    fleet, [member_rows, rows] = await read_fleet(
        tx, filters, member_statement, build_statement(_limit_to_slice(filters))
    )
    member = require_member(member_rows, filters)
    if (
        isinstance(filters, InboxFilter)
        and filters.is_poll
        and (problem := errors.inactive_member_problem(fleet, member))
    ):
        raise problem
    return await _read_page(tx, filters, build_statement, decode(rows, Message))


async def list_messages(tx: Transaction, filters: MessagesFilter) -> MessagePage:
    """All messages of a fleet, one per delivery."""
    _, [rows] = await read_fleet(tx, filters, _messages_statement(_limit_to_slice(filters)))
    return await _read_page(tx, filters, _messages_statement, decode(rows, Message))


async def _read_page(
    tx: Transaction,
    filters: AnyMessagesFilter,
    build_statement: Callable[[AnyMessagesFilter], BoundStatement],
    messages: list[Message],
) -> MessagePage:
    """Add further slices to the first one (`messages`), up to the limits of a page, which is held in memory."""
    slice_count, character_count = len(messages), _count_characters(messages)
    while slice_count == SLICE_MESSAGES and len(messages) < filters.limit and character_count < PAGE_CHARACTERS_MAX:
        last = messages[-1]
        next_filters = msgspec.structs.replace(
            filters, position=Position(last.status_timestamp, last.task_id), limit=filters.limit - len(messages)
        )
        next_slice = await tx.fetch(Message, build_statement(_limit_to_slice(next_filters)))
        slice_count, character_count = len(next_slice), character_count + _count_characters(next_slice)
        messages += next_slice
    is_truncated = slice_count == SLICE_MESSAGES and len(messages) < filters.limit
    return MessagePage(messages, await load_names(tx, messages), is_truncated)


def _limit_to_slice(filters: AnyMessagesFilter) -> AnyMessagesFilter:
    return msgspec.structs.replace(filters, limit=min(filters.limit, SLICE_MESSAGES))


def _count_characters(messages: Iterable[Message]) -> int:
    return sum(len(message.text) for message in messages)


def _inbox_statement(filters: InboxFilter) -> BoundStatement:
    if filters.state is MessageState.INPUT_REQUIRED:
        unread_statement = LISTS.messages_unread_oldest if filters.oldest_first else LISTS.messages_unread
        after_id, before_id = _id_range(filters)
        return unread_statement(
            zone_id=filters.zone_id, agent_id=filters.agent_id, after=after_id, before=before_id, limit=filters.limit
        )
    statement = LISTS.messages_inbox_oldest if filters.oldest_first else LISTS.messages_inbox
    position = _start_position(filters)
    return statement(
        zone_id=filters.zone_id,
        agent_id=filters.agent_id,
        state=filters.state,
        after=filters.after_id,
        at=position.timestamp,
        id=position.id,
        limit=filters.limit,
    )


def _sent_statement(filters: SentFilter) -> BoundStatement:
    statement = LISTS.messages_sent_oldest if filters.oldest_first else LISTS.messages_sent
    position = _start_position(filters)
    return statement(
        zone_id=filters.zone_id,
        agent_id=filters.agent_id,
        state=filters.state,
        after=filters.after_id,
        at=position.timestamp,
        id=position.id,
        limit=filters.limit,
    )


def _messages_statement(filters: MessagesFilter) -> BoundStatement:
    statement = LISTS.messages_page_oldest if filters.oldest_first else LISTS.messages_page
    after_id, before_id = _id_range(filters)
    return statement(
        zone_id=filters.zone_id, fleet_id=filters.fleet_id, after=after_id, before=before_id, limit=filters.limit
    )


def _id_range(filters: MessagesFilter) -> tuple[int, int]:
    """Both ends are exclusive. In lists ordered by id, only the id of the position is used."""
    position = filters.position
    after_id = max(filters.after_id, position.id) if position and filters.oldest_first else filters.after_id
    before_id = position.id if position and not filters.oldest_first else UPPER_BOUND
    return after_id, before_id


def _start_position(filters: SentFilter) -> Position:
    start = Position(0, 0) if filters.oldest_first else Position(UPPER_BOUND, UPPER_BOUND)
    return filters.position or start


async def load_names(tx: Transaction, messages: Iterable[Message]) -> MemberNames:
    """The names of the senders and recipients. All messages must belong to one zone."""
    return {agent_id: name for (_, agent_id), name in (await _load_names_by_ref(tx, messages)).items()}


async def _load_names_by_ref(tx: Transaction, messages: Iterable[Message]) -> dict[MemberRef, str]:
    refs: set[MemberRef] = set()
    for message in messages:
        refs |= {(message.zone_id, message.from_agent_id), (message.zone_id, message.to_agent_id)}
    if not refs:
        return {}
    [rows] = await tx.read(LISTS.members_get_names(batch=[*sorted(refs)]))
    return {(str(zone_id), int(str(agent_id))): str(name) for zone_id, agent_id, name in rows}


class LoadNames(msgspec.Struct, frozen=True):
    """Load the names for a message that was just sent or changed."""

    message: Message

    @property
    def zone_id(self) -> str:
        return self.message.zone_id


async def load_names_batch(tx: Transaction, commands: Sequence[LoadNames]) -> list[MemberNames | Problem | Busy]:
    """The names for all commands of a batch, with one statement."""
    names = await _load_names_by_ref(tx, [command.message for command in commands])
    return [
        {
            agent_id: names[command.zone_id, agent_id]
            for agent_id in (command.message.from_agent_id, command.message.to_agent_id)
            if (command.zone_id, agent_id) in names
        }
        for command in commands
    ]
