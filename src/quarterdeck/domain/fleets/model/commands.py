"""The commands of fleets and their results.

A `FleetCommand` goes through the lane `fleet`, a `MessageCommand` through the lane `message`. A command without a
caller comes from the server itself.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from quarterdeck.core.command import Command, R_co
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    Message,
    MonitorConfig,
    MonitorRuntime,
    NoticeFailure,
    PingPolicy,
    Placement,
)


class PaneLocation(msgspec.Struct, frozen=True):
    """A pane, or the window in which a pane will be created."""

    session: str
    window_id: str
    pane_id: str | None
    coding_agent: str
    host_id: str
    user_id: int
    socket: str
    tmux_pid: int


# -- the lane `fleet` --------------------------------------------------------------------------------------------


class CreateFleetResult(msgspec.Struct, frozen=True):
    fleet: Fleet
    director: Member
    administrator: Member
    placement: Placement | None
    created: bool = True
    """False if the idempotency key was used before."""


class DeleteFleetResult(msgspec.Struct, frozen=True):
    fleet: Fleet
    deregistered_count: int
    placements: tuple[Placement, ...] = ()
    """The placements of the deregistered members."""


class RegisterMemberResult(msgspec.Struct, frozen=True):
    member: Member
    placement: Placement | None
    created: bool = True


class DeregisterMemberResult(msgspec.Struct, frozen=True):
    member: Member
    placement: Placement | None


class BaseFleetCommand(Command, Generic[R_co], frozen=True, kw_only=True):
    fleet_id: int = 0


class CreateFleet(BaseFleetCommand[CreateFleetResult], frozen=True, kw_only=True):
    """Create a fleet, its director with the director's pane, and its administrator."""

    label: str | None
    location: PaneLocation | None
    idempotency_key: str | None = None
    request_digest: str = ""


class DeleteFleet(BaseFleetCommand[DeleteFleetResult], frozen=True, kw_only=True):
    """Deregister all members and mark the fleet as deleted. Messages stay."""


class RegisterMember(BaseFleetCommand[RegisterMemberResult], frozen=True, kw_only=True):
    name: str
    description: str
    skills: str = "[]"
    """JSON."""
    director_id: int | None = None
    """Set for a member with a pane. It must be the fleet's director."""
    location: PaneLocation | None = None
    idempotency_key: str | None = None
    request_digest: str = ""


class DeregisterMember(BaseFleetCommand[DeregisterMemberResult], frozen=True, kw_only=True):
    agent_id: int


class SetMemberPane(BaseFleetCommand[Placement], frozen=True, kw_only=True):
    """Store the id of the created pane."""

    agent_id: int
    pane_id: str


class ConfigureMonitor(BaseFleetCommand[MonitorConfig], frozen=True, kw_only=True):
    agent_id: int
    interval_seconds: int | None = None
    enabled: bool | None = None


class ClaimMonitor(BaseFleetCommand[MonitorRuntime], frozen=True, kw_only=True):
    """Become the monitor of a fleet.

    `previous_is_alive` says whether the process `previous_pid` is running; None if the claimer cannot check it.
    """

    pid: int
    host_id: str
    user_id: int
    tick_seconds: int
    policy: PingPolicy
    previous_is_alive: bool | None = None
    previous_pid: int | None = None


class RecordMonitorHeartbeat(BaseFleetCommand[MonitorRuntime], frozen=True, kw_only=True):
    """Record a monitor's heartbeat and the members that it has pinged since the last one."""

    pid: int
    host_id: str
    pinged_agent_ids: tuple[int, ...] = ()


class ReleaseMonitor(BaseFleetCommand[MonitorRuntime], frozen=True, kw_only=True):
    pid: int
    host_id: str


FleetCommand = (
    CreateFleet
    | DeleteFleet
    | RegisterMember
    | DeregisterMember
    | SetMemberPane
    | ConfigureMonitor
    | ClaimMonitor
    | RecordMonitorHeartbeat
    | ReleaseMonitor
)
FleetOutcome = (
    CreateFleetResult
    | DeleteFleetResult
    | RegisterMemberResult
    | DeregisterMemberResult
    | Placement
    | MonitorConfig
    | MonitorRuntime
)


# -- the lane `message` ------------------------------------------------------------------------------------------


class SendResult(msgspec.Struct, frozen=True):
    """A sent message, or a broadcast: its summary and its deliveries."""

    message: Message
    deliveries: tuple[Message, ...] = ()
    created: bool = True


class BaseMessageCommand(Command, Generic[R_co], frozen=True, kw_only=True):
    fleet_id: int


class Send(BaseMessageCommand[SendResult], frozen=True, kw_only=True):
    from_agent_id: int
    to_agent_id: int
    text: str
    idempotency_key: str | None = None
    request_digest: str = ""


class Broadcast(BaseMessageCommand[SendResult], frozen=True, kw_only=True):
    from_agent_id: int
    text: str
    idempotency_key: str | None = None
    request_digest: str = ""


class Acknowledge(BaseMessageCommand[Message], frozen=True, kw_only=True):
    agent_id: int
    message_id: int


class Cancel(BaseMessageCommand[Message], frozen=True, kw_only=True):
    agent_id: int
    message_id: int


class RecordReceipt(BaseMessageCommand[Message], frozen=True, kw_only=True):
    """Record whether the notice about a message was typed into its recipient's pane. Sent by the server itself."""

    message_id: int
    failure: NoticeFailure | None
    """None if the notice was typed."""


MessageCommand = Send | Broadcast | Acknowledge | Cancel | RecordReceipt
MessageOutcome = SendResult | Message
