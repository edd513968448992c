"""What is looked for, where, and by whom."""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.domain.fleets.model.rows import MemberStatus, MessageState

LAST = 2**62
"""Above every id and every instant."""


class Position(NamedTuple):
    """Where a list of messages goes on: by when they last moved, and then by their ids."""

    at: Millis
    id: int


class FleetsFilter(Command, frozen=True, kw_only=True):
    limit: int
    before: int = LAST
    with_deleted: bool = False


class OfFleet(Command, frozen=True, kw_only=True):
    fleet_id: int


class OfMember(OfFleet, frozen=True, kw_only=True):
    agent_id: int


class OfMessage(OfFleet, frozen=True, kw_only=True):
    message_id: int


class MembersFilter(OfFleet, frozen=True, kw_only=True):
    limit: int
    statuses: tuple[MemberStatus, ...]
    after: int = 0
    with_unread: bool = False


class TimelineFilter(OfFleet, frozen=True, kw_only=True):
    limit: int
    before: int = LAST


class MessagesFilter(OfFleet, frozen=True, kw_only=True):
    """Of a fleet."""

    limit: int
    after: int = 0
    oldest_first: bool = False
    position: Position | None = None


class SentFilter(MessagesFilter, frozen=True, kw_only=True):
    """Of a member: what it has sent."""

    agent_id: int
    state: MessageState | None = None


class InboxFilter(SentFilter, frozen=True, kw_only=True):
    """Of a member: what it was sent."""

    is_poll: bool = False
    """Asked by who acts as the member: whoever has left has nothing to wait for any more."""
    waiter: object = None
    """Who waits for it, if somebody does."""
