"""Decides the commands of one `fleet` batch in order of arrival, without I/O or a clock.

One decision creates a fleet, its director, the director's placement and its administrator, all with the same timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import BatchKeys, Key, KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    ClaimMonitor,
    ConfigureMonitor,
    CreateFleet,
    CreateFleetResult,
    DeleteFleet,
    DeleteFleetResult,
    DeregisterMember,
    DeregisterMemberResult,
    FleetCommand,
    FleetOutcome,
    PaneLocation,
    RecordMonitorHeartbeat,
    RegisterMember,
    RegisterMemberResult,
    ReleaseMonitor,
    SetMemberPane,
)
from quarterdeck.domain.fleets.model.rows import (
    MEMBERS_MAX,
    Fleet,
    FleetRef,
    Member,
    MemberRef,
    MemberStatus,
    MonitorConfig,
    MonitorRuntime,
    Placement,
)
from quarterdeck.domain.fleets.rules import agent_cards, errors, monitor
from quarterdeck.domain.fleets.rules.agent_cards import ADMINISTRATOR_KIND, member_kind

CREATE_OPERATION, REGISTER_OPERATION = "fleet.create", "member.register"
"""Operation names under which idempotency keys are stored."""
DEFAULT_INTERVAL_SECONDS = 60
DIRECTOR_DESCRIPTION = "Root Director of fleet {}"
_replace = msgspec.structs.replace


class LastIds(msgspec.Struct, frozen=True, array_like=True):
    """The highest ids used in a zone."""

    zone_id: str
    fleets: int = 0
    members: int = 0
    messages: int = 0


@dataclass(frozen=True)
class FleetBatchInput:
    """The rows that a batch needs (`collect_refs`), loaded under the zones' locks."""

    now: Millis
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """Errors for zones that have ended, by zone id. Nothing new can be created in these zones."""
    last_ids: Mapping[str, LastIds] = field(default_factory=dict)
    fleets: Mapping[FleetRef, Fleet] = field(default_factory=dict)
    members: Mapping[MemberRef, Member] = field(default_factory=dict)
    placements: Mapping[MemberRef, Placement] = field(default_factory=dict)
    configs: Mapping[MemberRef, MonitorConfig] = field(default_factory=dict)
    runtimes: Mapping[FleetRef, MonitorRuntime] = field(default_factory=dict)
    key_records: Mapping[Key, KeyRecord] = field(default_factory=dict)
    active_counts: Mapping[FleetRef, int] = field(default_factory=dict)
    """The number of active members, for fleets that get a new member."""


@dataclass(frozen=True, slots=True)
class FleetBatchRefs:
    """References to the rows that a batch needs. A fleet may have 1,000 members, but most commands need only one."""

    fleets: set[FleetRef]
    members: set[MemberRef]
    """Loaded together with their placements and monitor configurations."""
    complete_fleets: set[FleetRef]
    """Fleets whose active members are all needed: fleets to delete, and fleets of repeated create requests."""
    counted_fleets: set[FleetRef]
    """Fleets for which only the number of active members is needed."""


@dataclass(frozen=True, slots=True)
class PendingEvent:
    type: str
    zone_id: str
    subject_id: int
    fleet_id: int
    before: str | None
    after: str | None
    actor: str
    trace: str | None


class FleetBatch:
    """Decides the commands of a batch and holds the resulting rows. The operation writes those that changed."""

    def __init__(self, loaded: FleetBatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self._active_counts = Counter(loaded.active_counts)
        self.keys = BatchKeys(loaded.key_records)
        self.last_ids = {**loaded.last_ids}
        self.fleets = {**loaded.fleets}
        self.members = {**loaded.members}
        self.placements = {**loaded.placements}
        self.configs = {**loaded.configs}
        self.runtimes = {**loaded.runtimes}
        self.events: list[PendingEvent] = []

    def decide(self, command: FleetCommand) -> FleetOutcome | Problem:
        if isinstance(command, CreateFleet):
            return self._create(command)
        fleet = self.fleets.get((command.zone_id, command.fleet_id))
        if fleet is None:
            return errors.fleet_not_found(command.fleet_id)
        if isinstance(command, DeleteFleet):
            return self._delete(command, fleet)
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(command.fleet_id)
        match command:
            case RegisterMember():
                return self._register(command, fleet)
            case DeregisterMember():
                return self._deregister(command, fleet)
            case SetMemberPane():
                return self._set_pane(command, fleet)
            case ConfigureMonitor():
                return self._configure_monitor(command, fleet)
            case ClaimMonitor() | RecordMonitorHeartbeat() | ReleaseMonitor():
                return self._update_monitor(command, fleet)

    # -- fleets --------------------------------------------------------------------------------------------------

    def _create(self, command: CreateFleet) -> CreateFleetResult | Problem:
        if (repeated := self._find_created(command)) is not None:
            return repeated
        if zone_problem := self._loaded.zone_problems.get(command.zone_id):
            return zone_problem
        fleet_id = self._next_id(command.zone_id, "fleets")
        director_id = self._next_id(command.zone_id, "members")
        administrator_id = self._next_id(command.zone_id, "members")
        fleet = Fleet(command.zone_id, fleet_id, command.label, self._now, None, director_id, command.actor)
        self.fleets[fleet.ref] = fleet
        director = self._create_member(
            fleet, director_id, agent_cards.DIRECTOR_NAME, DIRECTOR_DESCRIPTION.format(fleet_id), "[]"
        )
        placement = None if command.location is None else self._add_placement(director, None, command.location)
        description = agent_cards.administrator_description(fleet_id)
        administrator = Member(
            *(command.zone_id, administrator_id, fleet_id, None, agent_cards.ADMINISTRATOR_NAME, description),
            *(MemberStatus.ACTIVE, self._now, None, agent_cards.build_administrator_card(fleet_id)),
        )
        self._add_member(administrator)
        self.keys.add(command_key(command), command.request_digest, str(fleet_id))
        self._add_event("fleet.created", command, fleet, None, "active")
        for member in (director, administrator):
            self._add_event("member.registered", command, member, None, member.status)
        return CreateFleetResult(fleet, director, administrator, placement)

    def _delete(self, command: DeleteFleet, fleet: Fleet) -> DeleteFleetResult | Problem:
        if fleet.deleted_at is not None:
            return DeleteFleetResult(fleet, 0)
        removals = [self._remove_member(member, command) for member in self._active_members(fleet)]
        self.runtimes.pop(fleet.ref, None)
        self.fleets[fleet.ref] = deleted = _replace(fleet, deleted_at=self._now)
        self._add_event("fleet.deleted", command, deleted, "active", "deleted")
        placements = tuple(removal.placement for removal in removals if removal.placement is not None)
        return DeleteFleetResult(deleted, len(removals), placements)

    # -- members -------------------------------------------------------------------------------------------------

    def _register(self, command: RegisterMember, fleet: Fleet) -> RegisterMemberResult | Problem:
        if (repeated := self._find_registered(command, fleet)) is not None:
            return repeated
        if zone_problem := self._loaded.zone_problems.get(command.zone_id):
            return zone_problem
        if command.director_id is not None:
            director = self._find_active_member(fleet, command.director_id)
            if director is None:
                return errors.member_not_found(command.director_id, fleet.fleet_id)
            if problem := director_problem(fleet, director):
                return problem
        if (active_count := self._active_counts[fleet.ref]) >= MEMBERS_MAX:
            return errors.fleet_full(fleet.fleet_id, active_count)
        agent_id = self._next_id(command.zone_id, "members")
        member = self._create_member(fleet, agent_id, command.name, command.description, command.skills)
        placement = (
            None if command.location is None else self._add_placement(member, fleet.director_agent_id, command.location)
        )
        self.keys.add(command_key(command), command.request_digest, str(agent_id))
        self._add_event("member.registered", command, member, None, member.status)
        return RegisterMemberResult(member, placement)

    def _deregister(self, command: DeregisterMember, fleet: Fleet) -> DeregisterMemberResult | Problem:
        member = self._find_active_member(fleet, command.agent_id)
        if member is None:
            return errors.member_not_found(command.agent_id, fleet.fleet_id)
        if member_kind(member.agent_card_json) == ADMINISTRATOR_KIND:
            return errors.administrator_not_removable()
        if member.agent_id == fleet.director_agent_id:
            return errors.director_not_removable()
        return self._remove_member(member, command)

    def _set_pane(self, command: SetMemberPane, fleet: Fleet) -> Placement | Problem:
        member = self._find_active_member(fleet, command.agent_id)
        if member is None:
            return errors.member_not_found(command.agent_id, fleet.fleet_id)
        placement = self.placements.get(member.ref)
        if placement is None:
            return errors.no_placement(command.agent_id)
        if placement.tmux_pane_id == command.pane_id:
            return placement
        if placement.tmux_pane_id is not None:
            return errors.member_has_pane(command.agent_id)
        self.placements[placement.ref] = updated = _replace(placement, tmux_pane_id=command.pane_id)
        self._add_event("member.placed", command, member, None, None)
        return updated

    def _create_member(self, fleet: Fleet, agent_id: int, name: str, description: str, skills: str) -> Member:
        registry_id = agent_cards.format_registry_id(fleet.fleet_id, agent_id)
        member = Member(
            *(fleet.zone_id, agent_id, fleet.fleet_id, registry_id, name, description),
            *(MemberStatus.ACTIVE, self._now, None, agent_cards.build_card(name, description, skills)),
        )
        self._add_member(member)
        return member

    def _add_member(self, member: Member) -> None:
        self.members[member.ref] = member
        self._active_counts[member.zone_id, member.fleet_id] += 1

    def _add_placement(self, member: Member, director_id: int | None, location: PaneLocation) -> Placement:
        """Add a placement and a monitor configuration: only members with a placement are monitored."""
        placement = Placement(
            *(member.zone_id, member.agent_id, director_id, location.session, location.window_id, location.pane_id),
            *(location.coding_agent, self._now, location.host_id, location.user_id, location.socket, location.tmux_pid),
        )
        self.placements[member.ref] = placement
        self.configs[member.ref] = MonitorConfig(*member.ref, DEFAULT_INTERVAL_SECONDS, None, 1)
        return placement

    def _remove_member(self, member: Member, command: Command) -> DeregisterMemberResult:
        removed = _replace(member, status=MemberStatus.DEREGISTERED, deregistered_at=self._now)
        self.members[member.ref] = removed
        self._active_counts[member.zone_id, member.fleet_id] -= 1
        self.configs.pop(member.ref, None)
        self._add_event("member.deregistered", command, removed, member.status, removed.status)
        return DeregisterMemberResult(removed, self.placements.pop(member.ref, None))

    # -- the monitor ---------------------------------------------------------------------------------------------

    def _configure_monitor(self, command: ConfigureMonitor, fleet: Fleet) -> MonitorConfig | Problem:
        member = self._find_active_member(fleet, command.agent_id)
        if member is None:
            return errors.member_not_found(command.agent_id, fleet.fleet_id)
        config = self.configs.get(member.ref)
        if config is None:
            return errors.no_placement(command.agent_id)
        self.configs[member.ref] = updated = monitor.configure(config, command)
        return updated

    def _update_monitor(
        self, command: ClaimMonitor | RecordMonitorHeartbeat | ReleaseMonitor, fleet: Fleet
    ) -> MonitorRuntime | Problem:
        runtime = monitor.decide_runtime(command, self.runtimes.get(fleet.ref), self._now)
        if isinstance(runtime, Problem):
            return runtime
        self.runtimes[fleet.ref] = runtime
        for agent_id in command.pinged_agent_ids if isinstance(command, RecordMonitorHeartbeat) else ():
            config = self.configs.get((command.zone_id, agent_id))
            if config is not None and self._find_active_member(fleet, agent_id) is not None:
                self.configs[command.zone_id, agent_id] = monitor.mark_pinged(config, self._now)
        return runtime

    # -- shared --------------------------------------------------------------------------------------------------

    def _active_members(self, fleet: Fleet) -> list[Member]:
        """All active members, including the administrator. Only for `complete_fleets` and fleets new in this batch."""
        return [
            member
            for member in self.members.values()
            if (member.zone_id, member.fleet_id) == fleet.ref and member.is_active
        ]

    def _find_active_member(self, fleet: Fleet, agent_id: int) -> Member | None:
        """The member, or None if it is not active or belongs to another fleet."""
        member = self.members.get((fleet.zone_id, agent_id))
        if member is None or not member.is_active or member.fleet_id != fleet.fleet_id:
            return None
        return member

    def _next_id(self, zone_id: str, counter: str) -> int:
        last = self.last_ids.get(zone_id) or LastIds(zone_id)
        next_id: int = getattr(last, counter) + 1
        self.last_ids[zone_id] = _replace(last, **{counter: next_id})
        return next_id

    def _find_created(self, command: CreateFleet) -> CreateFleetResult | Problem | None:
        created_id = self.keys.find(command_key(command), command.request_digest)
        if created_id is None or isinstance(created_id, Problem):
            return created_id
        fleet_id = int(created_id)
        fleet = self.fleets.get((command.zone_id, fleet_id))
        if fleet is None:
            return errors.fleet_not_found(fleet_id)
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(fleet_id)
        active_members = self._active_members(fleet)
        [director] = [member for member in active_members if member.agent_id == fleet.director_agent_id]
        [administrator] = [
            member for member in active_members if member_kind(member.agent_card_json) == ADMINISTRATOR_KIND
        ]
        return CreateFleetResult(fleet, director, administrator, self.placements.get(director.ref), created=False)

    def _find_registered(self, command: RegisterMember, fleet: Fleet) -> RegisterMemberResult | Problem | None:
        created_id = self.keys.find(command_key(command), command.request_digest)
        if created_id is None or isinstance(created_id, Problem):
            return created_id
        agent_id = int(created_id)
        member = self._find_active_member(fleet, agent_id)
        if member is None:
            return errors.member_not_found(agent_id, fleet.fleet_id)
        return RegisterMemberResult(member, self.placements.get(member.ref), created=False)

    def _add_event(
        self, event_type: str, command: Command, row: Fleet | Member, before: str | None, after: str | None
    ) -> None:
        subject_id = row.agent_id if isinstance(row, Member) else row.fleet_id
        self.events.append(
            PendingEvent(event_type, row.zone_id, subject_id, row.fleet_id, before, after, command.actor, command.trace)
        )


def director_problem(fleet: Fleet, director: Member) -> Problem | None:
    """The error if new members cannot have this director, or None."""
    if member_kind(director.agent_card_json) == ADMINISTRATOR_KIND:
        return errors.administrator_cannot_direct()
    root_id = fleet.director_agent_id
    return errors.nested_teams(root_id, director.agent_id) if root_id not in (None, director.agent_id) else None


def collect_refs(commands: Sequence[FleetCommand], key_records: Sequence[KeyRecord]) -> FleetBatchRefs:
    """The rows that the commands need, including the objects created earlier under their idempotency keys."""
    refs = FleetBatchRefs(set(), set(), set(), set())
    for command in commands:
        fleet_ref = (command.zone_id, command.fleet_id)
        refs.members.update((command.zone_id, agent_id) for agent_id in _referenced_agent_ids(command))
        if not isinstance(command, CreateFleet):
            refs.fleets.add(fleet_ref)
        if isinstance(command, DeleteFleet):
            refs.complete_fleets.add(fleet_ref)
        if isinstance(command, RegisterMember):
            refs.counted_fleets.add(fleet_ref)
    for record in key_records:
        created_ref = (record.zone_id, int(record.subject_id))
        (refs.complete_fleets if record.operation == CREATE_OPERATION else refs.members).add(created_ref)
    refs.fleets.update(refs.complete_fleets)
    return refs


def _referenced_agent_ids(command: FleetCommand) -> tuple[int, ...]:
    match command:
        case RegisterMember():
            return () if command.director_id is None else (command.director_id,)
        case DeregisterMember() | SetMemberPane() | ConfigureMonitor():
            return (command.agent_id,)
        case RecordMonitorHeartbeat():
            return command.pinged_agent_ids
        case CreateFleet() | DeleteFleet() | ClaimMonitor() | ReleaseMonitor():
            return ()


def command_key(command: CreateFleet | RegisterMember) -> Key | None:
    if command.idempotency_key is None or command.caller is None:
        return None
    operation = CREATE_OPERATION if isinstance(command, CreateFleet) else REGISTER_OPERATION
    return Key(command.zone_id, command.caller.client_id, operation, f"{command.fleet_id} {command.idempotency_key}")
