"""Request bodies and query parameters of the fleet routes, with their limits.

Field names are in snake case, like the columns of the tables.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.domain.fleets.model.rows import MessageState, PingPolicy

Id = Annotated[int, Meta(ge=1, le=2**53)]
MESSAGE_LENGTH_MAX = 256 * 1024
"""In characters."""
MessageText = Annotated[str, Meta(min_length=1, max_length=MESSAGE_LENGTH_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)")]
Description = Annotated[str, Meta(max_length=4_096)]
Label = Annotated[str, Meta(max_length=255)]
CodingAgentName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)")]
PaneId = Annotated[str, Meta(pattern=r"^%[0-9]{1,9}$(?!\n)")]
SocketPath = Annotated[str, Meta(min_length=1, max_length=1_024)]
Cursor = Annotated[str, Meta(max_length=512)]
PAGE_LIMIT_MAX = 500


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Pane(_Body, frozen=True):
    """The caller's own pane, from `$TMUX` and `$TMUX_PANE`. Accepted over the Unix socket only."""

    socket: SocketPath
    pane_id: PaneId


class FleetBody(_Body, frozen=True):
    label: Label | None = None
    coding_agent: CodingAgentName | None = None
    pane: Pane | None = None
    """The director's pane. If omitted, the director has no pane."""


class FleetsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deleted: bool = False
    """Include deleted fleets."""
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class DeleteFleetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep_panes: bool = False


class MemberBody(_Body, frozen=True):
    name: Name
    description: Description
    skills: Annotated[list[dict[str, object]], Meta(max_length=100)] = []
    director_id: Id | None = None
    """If set, a pane is created in the director's window and the coding agent is started there."""
    coding_agent: CodingAgentName | None = None
    model: Name | None = None
    prompt: Annotated[str, Meta(max_length=64 * 1024)] | None = None
    """`request_fields.check_prompt_size` limits its size in bytes."""
    pane: Pane | None = None


class MembersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: Literal["active", "deregistered", "all"] = "active"
    activity: bool = False
    """Include each member's number of unread messages."""
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT_MAX)] = 100


class DeleteMemberQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    force: bool = False


class MessageBody(_Body, frozen=True):
    from_agent_id: Id
    to_agent_id: Id | Literal["*"]
    """`*` broadcasts to all active members except the sender and the administrator."""
    text: MessageText
    wait_ms: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """For a broadcast: how long to wait for the receipts of its notices before counting the notified members."""


class ActingAgentBody(_Body, frozen=True):
    """The member that the caller acts as."""

    agent_id: Id


class MessagesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="only messages with a higher id")] = 0
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT_MAX)] = 100
    order: Literal["asc", "desc"] = "desc"


class SentQuery(MessagesQuery, frozen=True, forbid_unknown_fields=True):
    status: MessageState | None = None


class InboxQuery(SentQuery, frozen=True, forbid_unknown_fields=True):
    wait_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=300_000,
                description="how long to wait for a message if there is none; only for an active member",
            ),
        ]
        | None
    ) = None


class TimelineQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ConfigureMonitorBody(_Body, frozen=True):
    interval_seconds: Annotated[int, Meta(ge=1, le=86_400)] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class ClaimMonitorBody(_Body, frozen=True):
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    host_id: Annotated[str, Meta(min_length=1, max_length=255)]
    user_id: Annotated[int, Meta(ge=0, le=2**32)]
    tick_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 5
    policy: PingPolicy = PingPolicy.QUIET
    previous_pid: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    """The pid of the previous monitor, as the claiming process last read it."""
    previous_is_alive: bool | None = None
    """Whether that process is alive. Set only by a monitor on the same host, because other hosts cannot check it."""


class MonitorHeartbeatBody(_Body, frozen=True):
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    host_id: Annotated[str, Meta(min_length=1, max_length=255)]
    pinged: Annotated[list[Id], Meta(max_length=1_000)] = []


class ReleaseMonitorBody(_Body, frozen=True):
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    host_id: Annotated[str, Meta(min_length=1, max_length=255)]


class ExecBody(_Body, frozen=True):
    """Text to type into a member's pane."""

    text: Annotated[str, Meta(min_length=1, max_length=64 * 1024)]
    enter: bool = True


class CaptureQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lines: Annotated[int, Meta(ge=1, le=10_000)] = 30
    ansi: bool = False
