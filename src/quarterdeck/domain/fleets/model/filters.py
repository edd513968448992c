"""What is looked for, where, and by whom."""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.domain.fleets.model.rows import MemberStatus, MessageState

UPPER_BOUND = 2**62
"""Above every id and every instant."""


class Position(NamedTuple):
    """Where a list of messages goes on: by when they last moved, and then by their ids."""

    timestamp: Millis
    id: int


class FleetsFilter(Command, frozen=True, kw_only=True):
    limit: int
    before: int = UPPER_BOUND
    with_deleted: bool = False


class FleetRequest(Command, frozen=True, kw_only=True):
    fleet_id: int


class MemberRequest(FleetRequest, frozen=True, kw_only=True):
    agent_id: int


class MessageRequest(FleetRequest, frozen=True, kw_only=True):
    message_id: int


class MembersFilter(FleetRequest, frozen=True, kw_only=True):
    limit: int
    statuses: tuple[MemberStatus, ...]
    after: int = 0
    with_unread: bool = False


class TimelineFilter(FleetRequest, frozen=True, kw_only=True):
    limit: int
    before: int = UPPER_BOUND


class MessagesFilter(FleetRequest, frozen=True, kw_only=True):
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
