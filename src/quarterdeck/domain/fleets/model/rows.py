"""What is stored of fleets, in the order of `columns` in `queries.sql`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis

FleetRef = tuple[str, int]
"""(zone, fleet)"""
MemberRef = tuple[str, int]
"""(zone, member)"""
MessageRef = tuple[str, int]
"""(zone, message)"""
MEMBERS_MAX = 1_000
"""Active ones of a fleet: a broadcast is one transaction."""
BROADCAST_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a broadcast's text, once for each of its recipients: it is stored as often."""
DEFAULT_CODING_AGENT = "claude"
"""What runs in a pane where nobody has chosen."""
NO_RECIPIENT = 0
"""To whom a broadcast's summary goes: ids begin at 1."""


class MemberStatus(StrEnum):
    ACTIVE = "active"
    DEREGISTERED = "deregistered"


class MessageType(StrEnum):
    UNICAST = "unicast"
    SUMMARY = "broadcast_summary"


class MessageState(StrEnum):
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    CANCELED = "canceled"


class PingPolicy(StrEnum):
    """Whom a monitor pings, of those that are due."""

    QUIET = "quiet"
    """Only who has unread messages, or whose pane has been quiet for its interval."""
    SEED = "seed"
    """Everybody."""


class NoticeFailure(StrEnum):
    """Why a message was not typed into its recipient's pane."""

    NO_PANE = "no_pane"
    OTHER_HOST = "other_host"
    OTHER_TMUX = "other_tmux"
    """The tmux server is another than the one the pane was made in: its ids mean other panes."""
    PANE_GONE = "pane_gone"
    NOT_THE_AGENT = "not_the_agent"
    """What runs in the pane is not the agent: a body typed at a shell's prompt would be executed."""
    ENDED = "ended"
    """It was acknowledged or canceled before it could be typed."""
    FAILED = "failed"


class PaneOutcome(StrEnum):
    """What became of a member's pane. Where it was left alone, a `Notice` says why."""

    EXITED = "exited"
    KILLED = "killed"


Argv = Annotated[tuple[str, ...], Meta(max_length=256)]


class CodingAgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a coding agent is begun in a pane, how it is known there, and how it is told to leave. What is not said of
    one that is known stays as it is. In arguments `{name}`, `{model}` and `{prompt}` stand for what a member is given.
    """

    argv: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)] | None = None
    model_argv: Argv | None = None
    """Only where a model is named."""
    prompt_argv: Argv | None = None
    processes: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] | None = None
    """By what names its process goes: in front in a pane, they mean that the agent runs there."""
    exit: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class FleetSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    fleet_notice_seconds: Annotated[
        float, Meta(gt=0, le=60, description="how long typing one notice into a pane may take")
    ] = 5.0
    fleet_exit_seconds: Annotated[
        float, Meta(gt=0, le=45, description="how long a member's pane may take to go after it was told to exit")
    ] = 15.0
    fleet_token_days: Annotated[
        int, Meta(ge=1, le=3_650, description="how long the token of a member's pane lasts, if the member does")
    ] = 90
    coding_agents: (
        Annotated[
            dict[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)")], CodingAgentConfig],
            Meta(description="what may be begun in panes, by name, beside claude, codex and opencode; in the file"),
        ]
        | None
    ) = None
    fleet_poll_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="how long a poll for messages may wait at most")
    ] = 60_000


class Fleet(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    fleet_id: int
    label: str | None
    created_at: Millis
    deleted_at: Millis | None
    director_agent_id: int | None
    created_by: str

    @property
    def ref(self) -> FleetRef:
        return self.zone_id, self.fleet_id


class Member(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    agent_id: int
    fleet_id: int
    registry_id: str | None
    """The agent it is in the registry; the administrator is none."""
    name: str
    description: str
    status: MemberStatus
    registered_at: Millis
    deregistered_at: Millis | None
    agent_card_json: str

    @property
    def ref(self) -> MemberRef:
        return self.zone_id, self.agent_id

    @property
    def is_active(self) -> bool:
        return self.status is MemberStatus.ACTIVE


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One delivery, or the summary of a broadcast."""

    zone_id: str
    task_id: int
    fleet_id: int
    context_id: int
    """The recipient; of a summary, the broadcaster."""
    from_agent_id: int
    to_agent_id: int
    type: MessageType
    created_at: Millis
    status_state: MessageState
    status_timestamp: Millis
    origin_task_id: int | None
    text: str
    notified_at: Millis | None
    notice: NoticeFailure | None

    @property
    def ref(self) -> MessageRef:
        return self.zone_id, self.task_id


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where a member's pane is. A pane's id means something only to its own tmux server, on its own host."""

    zone_id: str
    agent_id: int
    director_agent_id: int | None
    tmux_session: str
    tmux_window_id: str
    tmux_pane_id: str | None
    """None: the pane is not there yet."""
    coding_agent: str
    created_at: Millis
    host_id: str
    user_id: int
    tmux_socket: str
    tmux_pid: int

    @property
    def ref(self) -> MemberRef:
        return self.zone_id, self.agent_id


class MonitorConfig(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    agent_id: int
    interval_seconds: int
    last_ping_at: Millis | None
    enabled: int


class MonitorRuntime(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    fleet_id: int
    pid: int | None
    started_at: Millis | None
    last_tick_at: Millis | None
    tick_seconds: int
    host_id: str | None
    user_id: int | None
    policy: PingPolicy
