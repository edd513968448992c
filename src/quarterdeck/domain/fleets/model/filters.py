"""Parameters of read operations: what to read, in which zone, for which caller."""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.domain.fleets.model.rows import MemberStatus, MessageState

UPPER_BOUND = 2**62
"""Higher than any id or timestamp."""


class Position(NamedTuple):
    """The end of the previous page: the status timestamp and the id of its last message."""

    timestamp: Millis
    id: int


class FleetsFilter(Command, frozen=True, kw_only=True):
    limit: int
    before_id: int = UPPER_BOUND
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
    after_id: int = 0
    with_unread: bool = False


class TimelineFilter(FleetRequest, frozen=True, kw_only=True):
    limit: int
    before_id: int = UPPER_BOUND


class MessagesFilter(FleetRequest, frozen=True, kw_only=True):
    """All messages of a fleet."""

    limit: int
    after_id: int = 0
    oldest_first: bool = False
    position: Position | None = None


class SentFilter(MessagesFilter, frozen=True, kw_only=True):
    """The messages from a member."""

    agent_id: int
    state: MessageState | None = None


class InboxFilter(SentFilter, frozen=True, kw_only=True):
    """The messages to a member."""

    is_poll: bool = False
    """Whether the request has `wait_ms`. If so, it is refused unless the member is active."""
