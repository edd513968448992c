"""Row types of fleets, with fields in the order of the `columns` lists in `queries.sql`, and the settings of fleets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis
from quarterdeck.core.views import JsonText

FleetRef = tuple[str, int]
"""(zone id, fleet id)"""
MemberRef = tuple[str, int]
"""(zone id, agent id of a member)"""
MessageRef = tuple[str, int]
"""(zone id, message id)"""
MEMBERS_MAX = 1_000
"""The maximum number of active members in a fleet. A broadcast to all of them is one transaction."""
BROADCAST_BYTES_MAX = 4 * 1024 * 1024
"""The maximum size of a broadcast's text times the number of recipients: the text is stored once per recipient."""
DEFAULT_CODING_AGENT = "claude"
NO_RECIPIENT = 0
"""The recipient id of a broadcast's summary. Real ids start at 1."""


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
    """Which members a monitor pings when they are due."""

    QUIET = "quiet"
    """Only members that have unread messages or whose pane has not changed for their interval."""
    SEED = "seed"
    """All members, even those that are working."""


class NoticeFailure(StrEnum):
    """Why a line was not typed into a member's pane, or why the pane was not closed."""

    NO_PANE = "no_pane"
    OTHER_HOST = "other_host"
    OTHER_TMUX = "other_tmux"
    """The tmux server is not the one that created the pane, so its pane ids refer to different panes."""
    PANE_GONE = "pane_gone"
    NOT_THE_AGENT = "not_the_agent"
    """The agent is not in the foreground of the pane. A shell there would execute the text."""
    ENDED = "ended"
    """The message was acknowledged or canceled before its notice was typed."""
    FAILED = "failed"


class PaneOutcome(StrEnum):
    """How a member's pane was closed. If it was not closed, a `NoticeFailure` gives the reason."""

    EXITED = "exited"
    KILLED = "killed"


Argv = Annotated[tuple[str, ...], Meta(max_length=256)]


class CodingAgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to start a coding agent in a pane, how to recognize it there, and how to make it exit.

    For a built-in agent, omitted fields keep their defaults. Arguments may contain `{name}`, `{model}` and `{prompt}`,
    which are replaced by the member's values.
    """

    argv: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)] | None = None
    model_argv: Argv | None = None
    """Added only if a model is given."""
    prompt_argv: Argv | None = None
    processes: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] | None = None
    """Names that the agent's process may have. A process with such a name in the foreground of a pane is the agent."""
    exit: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class FleetSettings(msgspec.Struct, frozen=True):
    fleet_notice_seconds: Annotated[
        float, Meta(gt=0, le=60, description="timeout for typing one notice into a pane")
    ] = 5.0
    fleet_exit_seconds: Annotated[
        float, Meta(gt=0, le=45, description="how long a member's pane may take to close after the exit command")
    ] = 15.0
    fleet_token_days: Annotated[
        int, Meta(ge=1, le=3_650, description="lifetime of the token in a member's pane; deregistration revokes it")
    ] = 90
    coding_agents: (
        Annotated[
            dict[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)")], CodingAgentConfig],
            Meta(
                description="coding agents by name, to add them or to change claude, codex and opencode; "
                "only in the settings file"
            ),
        ]
        | None
    ) = None
    fleet_poll_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="longest wait of a long poll for messages")
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
    """Its id in the agent registry. None for the administrator, which is not a registered agent."""
    name: str
    description: str
    status: MemberStatus
    registered_at: Millis
    deregistered_at: Millis | None
    agent_card_json: JsonText

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
    """The recipient; for a summary, the sender."""
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
    """Where a member's pane is. A pane id is valid only on the tmux server that created the pane."""

    zone_id: str
    agent_id: int
    director_agent_id: int | None
    tmux_session: str
    tmux_window_id: str
    tmux_pane_id: str | None
    """None until the pane has been created."""
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
