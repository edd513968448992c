"""Response bodies of fleets."""

from __future__ import annotations

from typing import Literal

import msgspec

MemberKind = Literal["builtin-administrator", "user"]


class PlacementView(msgspec.Struct, frozen=True):
    agent_id: int
    director_agent_id: int | None
    tmux_session: str
    tmux_window_id: str
    tmux_pane_id: str | None
    coding_agent: str
    created_at: str
    host_id: str
    user_id: int
    tmux_socket: str
    tmux_pid: int


class FleetMemberView(msgspec.Struct, frozen=True):
    agent_id: int
    fleet_id: int
    name: str
    description: str
    status: str
    kind: MemberKind
    registered_at: str
    deregistered_at: str | None
    registry_id: str | None
    agent_card: dict[str, object]
    placement: PlacementView | None
    unread: int | None = None
    """The number of unread messages; null if it was not requested."""


class FleetMemberList(msgspec.Struct, frozen=True):
    members: list[FleetMemberView]
    next_cursor: str | None


class FleetMemberDeleted(msgspec.Struct, frozen=True):
    agent_id: int
    fleet_id: int
    name: str
    pane_id: str | None
    pane: str | None
    """What happened to the member's pane; null if the member had none."""


class PaneCaptureView(msgspec.Struct, frozen=True):
    agent_id: int
    pane_id: str
    text: str


class PaneInputView(msgspec.Struct, frozen=True):
    """Confirms that the text was typed into the pane."""

    agent_id: int
    pane_id: str


class DirectorView(msgspec.Struct, frozen=True):
    agent_id: int
    name: str
    description: str
    registered_at: str
    placement: PlacementView | None


class FleetView(msgspec.Struct, frozen=True):
    fleet_id: int
    label: str | None
    created_at: str
    deleted_at: str | None
    administrator_agent_id: int | None
    director: DirectorView | None
    members: int
    """Active members, including the administrator."""


class FleetList(msgspec.Struct, frozen=True):
    fleets: list[FleetView]
    next_cursor: str | None


class FleetDeletedView(msgspec.Struct, frozen=True):
    fleet_id: int
    deregistered_count: int
    panes_closed: int
    panes_left: int


class MessageView(msgspec.Struct, frozen=True):
    task_id: int
    id: int
    """The same as `task_id`."""
    context_id: int
    from_agent_id: int
    from_agent_name: str
    to_agent_id: int
    to_agent_name: str
    type: str
    status_state: str
    status_timestamp: str
    created_at: str
    origin_task_id: int | None
    text: str
    notified_at: str | None
    notice: str | None


class MessageList(msgspec.Struct, frozen=True):
    messages: list[MessageView]
    next_cursor: str | None


class BroadcastView(msgspec.Struct, frozen=True):
    """A broadcast: its summary and the number of recipients."""

    summary: MessageView
    recipients: int
    delivered: int | None
    """The number of recipients notified in their panes; null without `wait_ms`."""


class TimelineEntryView(msgspec.Struct, frozen=True):
    """An entry of the timeline: a message, or a broadcast with all its deliveries."""

    id: int
    kind: Literal["unicast", "broadcast"]
    from_agent_id: int
    from_agent_name: str
    to_agent_id: int | None
    to_agent_name: str | None
    text: str
    created_at: str
    status_state: str
    recipients: list[RecipientView]


class RecipientView(msgspec.Struct, frozen=True):
    task_id: int
    agent_id: int
    agent_name: str
    status_state: str
    acknowledged_at: str | None
    notified_at: str | None
    notice: str | None


class TimelineChangeView(msgspec.Struct, frozen=True):
    """The recipients of a timeline entry that have acknowledged it or whose delivery was canceled."""

    id: int
    recipients: list[RecipientView]


class MonitoredMemberView(msgspec.Struct, frozen=True):
    agent_id: int
    name: str
    interval_seconds: int
    enabled: bool
    last_ping_at: str | None
    unread: int
    is_due: bool
    placement: PlacementView | None


class MonitorView(msgspec.Struct, frozen=True):
    fleet_id: int
    pid: int | None
    host_id: str | None
    user_id: int | None
    started_at: str | None
    last_tick_at: str | None
    tick_seconds: int
    policy: str
    is_recent: bool
    """Whether the last heartbeat is recent. Whether the process is alive can only be checked on its own host."""
    members: list[MonitoredMemberView]
