"""What the lanes of fleets are asked for, and what comes of it.

`Fleetwide` commands go through the lane `fleet`, `Spoken` ones through the lane `message`. A caller of None is the
server itself.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.command import Command
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    Message,
    MonitorConfig,
    MonitorRuntime,
    Notice,
    Placement,
    Policy,
)


class Place(msgspec.Struct, frozen=True):
    """A pane, or the window in which one is to be made."""

    session: str
    window_id: str
    pane_id: str | None
    coding_agent: str
    host_id: str
    user_id: int
    socket: str
    tmux_pid: int


# -- the lane `fleet` --------------------------------------------------------------------------------------------


class Fleetwide(Command, frozen=True, kw_only=True):
    fleet_id: int = 0


class CreateFleet(Fleetwide, frozen=True, kw_only=True):
    """A fleet, its director (with the pane it is in), and its administrator: all or nothing."""

    label: str | None
    position: Place | None
    key: str | None = None
    digest: str = ""


class DeleteFleet(Fleetwide, frozen=True, kw_only=True):
    """For good: everybody is deregistered, messages stay."""


class RegisterMember(Fleetwide, frozen=True, kw_only=True):
    name: str
    description: str
    skills: str = "[]"
    """JSON."""
    director_id: int | None = None
    """Who asks for a member with a pane: the fleet's root director, and nobody else."""
    position: Place | None = None
    key: str | None = None
    digest: str = ""


class DeregisterMember(Fleetwide, frozen=True, kw_only=True):
    agent_id: int


class PlaceMember(Fleetwide, frozen=True, kw_only=True):
    """Its pane is there now."""

    agent_id: int
    pane_id: str


class ConfigureMonitor(Fleetwide, frozen=True, kw_only=True):
    agent_id: int
    interval_seconds: int | None = None
    enabled: bool | None = None


class ClaimMonitor(Fleetwide, frozen=True, kw_only=True):
    """One process watches over a fleet. `is_alive`: of `previous_pid`, as far as one on its host knows."""

    pid: int
    host_id: str
    user_id: int
    tick_seconds: int
    policy: Policy
    is_alive: bool | None = None
    previous_pid: int | None = None


class BeatMonitor(Fleetwide, frozen=True, kw_only=True):
    """Still there; and whom it has pinged since the last time."""

    pid: int
    host_id: str
    pinged: tuple[int, ...] = ()


class ReleaseMonitor(Fleetwide, frozen=True, kw_only=True):
    pid: int
    host_id: str


class FleetMade(msgspec.Struct, frozen=True):
    fleet: Fleet
    director: Member
    administrator: Member
    placement: Placement | None
    made: bool = True
    """False: the key was used before."""


class FleetDeleted(msgspec.Struct, frozen=True):
    fleet: Fleet
    deregistered: int
    placements: tuple[Placement, ...] = ()
    """Where panes are to be closed."""


class MemberMade(msgspec.Struct, frozen=True):
    member: Member
    placement: Placement | None
    made: bool = True


class MemberGone(msgspec.Struct, frozen=True):
    member: Member
    placement: Placement | None


FleetCommand = (
    CreateFleet
    | DeleteFleet
    | RegisterMember
    | DeregisterMember
    | PlaceMember
    | ConfigureMonitor
    | ClaimMonitor
    | BeatMonitor
    | ReleaseMonitor
)
FleetOutcome = FleetMade | FleetDeleted | MemberMade | MemberGone | Placement | MonitorConfig | MonitorRuntime


# -- the lane `message` ------------------------------------------------------------------------------------------


class Spoken(Command, frozen=True, kw_only=True):
    fleet_id: int


class Send(Spoken, frozen=True, kw_only=True):
    from_agent_id: int
    to_agent_id: int
    text: str
    key: str | None = None
    digest: str = ""


class Broadcast(Spoken, frozen=True, kw_only=True):
    from_agent_id: int
    text: str
    key: str | None = None
    digest: str = ""


class Acknowledge(Spoken, frozen=True, kw_only=True):
    agent_id: int
    message_id: int


class Cancel(Spoken, frozen=True, kw_only=True):
    agent_id: int
    message_id: int


class Receipt(Spoken, frozen=True, kw_only=True):
    """By the server: whether a message was typed into its recipient's pane."""

    message_id: int
    notice: Notice | None
    """None: it was."""


class Sent(msgspec.Struct, frozen=True):
    """One message, or of a broadcast the summary and what was delivered."""

    message: Message
    deliveries: tuple[Message, ...] = ()
    made: bool = True


SpokenCommand = Send | Broadcast | Acknowledge | Cancel | Receipt
SpokenOutcome = Sent | Message
