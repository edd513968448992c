"""One batch of what changes fleets and their members, decided in order of arrival. It does no I/O and knows no clock.

Everything a fleet begins with is decided together: the fleet, its director with the pane it is in, the reference back
to the director, and, last, the administrator. All of them are of the same instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    BeatMonitor,
    ClaimMonitor,
    ConfigureMonitor,
    CreateFleet,
    DeleteFleet,
    DeregisterMember,
    FleetCommand,
    FleetDeleted,
    FleetMade,
    FleetOutcome,
    Fleetwide,
    MemberGone,
    MemberMade,
    Place,
    PlaceMember,
    RegisterMember,
    ReleaseMonitor,
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
from quarterdeck.domain.fleets.rules.agent_cards import BUILTIN, kind_of
from quarterdeck.domain.fleets.rules.idempotency import Keys

CREATING, REGISTERING = "fleet.create", "member.register"
"""What keys are kept under."""
INTERVAL_SECONDS = 60
DESCRIBED_DIRECTOR = "Root Director of fleet {}"
_replace = msgspec.structs.replace


class LastIds(msgspec.Struct, frozen=True, array_like=True):
    """The highest ids of a zone so far."""

    zone_id: str
    fleets: int = 0
    members: int = 0
    messages: int = 0


@dataclass(frozen=True)
class Known:
    """What was loaded for a batch, under the zones' locks: what `wanted` says, and no more."""

    now: Millis
    problem_of: Callable[[Fleetwide, str], Problem | None]
    zones: Mapping[str, Problem | None] = field(default_factory=dict)
    """Why nothing can begin any more in a zone that has ended."""
    last_ids: Mapping[str, LastIds] = field(default_factory=dict)
    fleets: Mapping[FleetRef, Fleet] = field(default_factory=dict)
    members: Mapping[MemberRef, Member] = field(default_factory=dict)
    placements: Mapping[MemberRef, Placement] = field(default_factory=dict)
    configs: Mapping[MemberRef, MonitorConfig] = field(default_factory=dict)
    runtimes: Mapping[FleetRef, MonitorRuntime] = field(default_factory=dict)
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)
    counts: Mapping[FleetRef, int] = field(default_factory=dict)
    """How many are active in the fleets that somebody is to join."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch is decided by. A fleet may have a thousand members, and most verbs are about one of them."""

    fleets: set[FleetRef]
    members: set[MemberRef]
    """With their panes and how they are watched over."""
    whole: set[FleetRef]
    """Of these everybody who is there: they end, or are shown with those who were there from the start."""
    joined: set[FleetRef]
    """Of these only how many are there."""


@dataclass(frozen=True, slots=True)
class Told:
    type: str
    zone_id: str
    subject: int
    fleet_id: int
    before: str | None
    after: str | None
    actor: str
    trace: str | None


class Crew:
    """What the batch has changed is what differs from what was loaded: whoever writes compares."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._now = known.now
        self._counts = Counter(known.counts)
        self.keys = Keys(known.keys)
        self.last_ids = {**known.last_ids}
        self.fleets = {**known.fleets}
        self.members = {**known.members}
        self.placements = {**known.placements}
        self.configs = {**known.configs}
        self.runtimes = {**known.runtimes}
        self.told: list[Told] = []

    def decide(self, ask: FleetCommand) -> FleetOutcome | Problem:
        if problem := self._known.problem_of(ask, "fleets.change"):
            return problem
        if isinstance(ask, CreateFleet):
            return self._create(ask)
        fleet = self.fleets.get((ask.zone_id, ask.fleet_id))
        if fleet is None:
            return errors.fleet_not_found(ask.fleet_id)
        if isinstance(ask, DeleteFleet):
            return self._delete(ask, fleet)
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(ask.fleet_id)
        match ask:
            case RegisterMember():
                return self._register(ask, fleet)
            case DeregisterMember():
                return self._deregister(ask, fleet)
            case PlaceMember():
                return self._place(ask, fleet)
            case ConfigureMonitor():
                return self._configure(ask, fleet)
            case ClaimMonitor() | BeatMonitor() | ReleaseMonitor():
                return self._watch(ask, fleet)

    # -- fleets --------------------------------------------------------------------------------------------------

    def _create(self, ask: CreateFleet) -> FleetOutcome | Problem:
        if (made := self._made_before(ask)) is not None:
            return made
        if over := self._known.zones.get(ask.zone_id):
            return over
        fleet_id = self._next(ask.zone_id, "fleets")
        director_id = self._next(ask.zone_id, "members")
        administrator_id = self._next(ask.zone_id, "members")
        fleet = Fleet(ask.zone_id, fleet_id, ask.label, self._now, None, director_id, ask.actor)
        self.fleets[fleet.ref] = fleet
        director = self._enroll(fleet, director_id, agent_cards.DIRECTOR, DESCRIBED_DIRECTOR.format(fleet_id), "[]")
        placement = None if ask.position is None else self._at(director, None, ask.position)
        described = agent_cards.described_administrator(fleet_id)
        administrator = Member(
            *(ask.zone_id, administrator_id, fleet_id, None, agent_cards.ADMINISTRATOR, described),
            *(MemberStatus.ACTIVE, self._now, None, agent_cards.administrators_card(fleet_id)),
        )
        self._join(administrator)
        self.keys.bind(key_of(ask), ask.digest, fleet_id)
        self._tell("fleet.created", ask, fleet, None, "active")
        for each in (director, administrator):
            self._tell("member.registered", ask, each, None, each.status)
        return FleetMade(fleet, director, administrator, placement)

    def _delete(self, ask: DeleteFleet, fleet: Fleet) -> FleetOutcome | Problem:
        if fleet.deleted_at is not None:
            return FleetDeleted(fleet, 0)
        gone = [self._leave(member, ask) for member in self._active(fleet)]
        self.runtimes.pop(fleet.ref, None)
        self.fleets[fleet.ref] = deleted = _replace(fleet, deleted_at=self._now)
        self._tell("fleet.deleted", ask, deleted, "active", "deleted")
        panes = tuple(each.placement for each in gone if each.placement is not None)
        return FleetDeleted(deleted, len(gone), panes)

    # -- members -------------------------------------------------------------------------------------------------

    def _register(self, ask: RegisterMember, fleet: Fleet) -> FleetOutcome | Problem:
        if (made := self._made_before(ask)) is not None:
            return made
        if over := self._known.zones.get(ask.zone_id):
            return over
        if ask.director_id is not None:
            director = self._member(fleet, ask.director_id)
            if director is None:
                return errors.not_a_member(ask.director_id, fleet.fleet_id)
            if problem := directing_problem(fleet, director):
                return problem
        if (there := self._counts[fleet.ref]) >= MEMBERS_MAX:
            return errors.fleet_full(fleet.fleet_id, there)
        agent_id = self._next(ask.zone_id, "members")
        member = self._enroll(fleet, agent_id, ask.name, ask.description, ask.skills)
        placement = None if ask.position is None else self._at(member, fleet.director_agent_id, ask.position)
        self.keys.bind(key_of(ask), ask.digest, agent_id)
        self._tell("member.registered", ask, member, None, member.status)
        return MemberMade(member, placement)

    def _deregister(self, ask: DeregisterMember, fleet: Fleet) -> FleetOutcome | Problem:
        member = self._member(fleet, ask.agent_id)
        if member is None:
            return errors.not_a_member(ask.agent_id, fleet.fleet_id)
        if kind_of(member.agent_card_json) == BUILTIN:
            return errors.administrator_stays()
        if member.agent_id == fleet.director_agent_id:
            return errors.director_stays()
        return self._leave(member, ask)

    def _place(self, ask: PlaceMember, fleet: Fleet) -> FleetOutcome | Problem:
        member = self._member(fleet, ask.agent_id)
        if member is None:
            return errors.not_a_member(ask.agent_id, fleet.fleet_id)
        placement = self.placements.get(member.ref)
        if placement is None:
            return errors.no_placement(ask.agent_id)
        if placement.tmux_pane_id == ask.pane_id:
            return placement
        if placement.tmux_pane_id is not None:
            return errors.already_placed(ask.agent_id)
        self.placements[placement.ref] = there = _replace(placement, tmux_pane_id=ask.pane_id)
        self._tell("member.placed", ask, member, None, None)
        return there

    def _enroll(self, fleet: Fleet, agent_id: int, name: str, description: str, skills: str) -> Member:
        registry_id = agent_cards.registry_id(fleet.fleet_id, agent_id)
        member = Member(
            *(fleet.zone_id, agent_id, fleet.fleet_id, registry_id, name, description),
            *(MemberStatus.ACTIVE, self._now, None, agent_cards.card(name, description, skills)),
        )
        self._join(member)
        return member

    def _join(self, member: Member) -> None:
        self.members[member.ref] = member
        self._counts[member.zone_id, member.fleet_id] += 1

    def _at(self, member: Member, director_id: int | None, place: Place) -> Placement:
        """Whoever has a pane is watched over, and nobody else."""
        placement = Placement(
            *(member.zone_id, member.agent_id, director_id, place.session, place.window_id, place.pane_id),
            *(place.coding_agent, self._now, place.host_id, place.user_id, place.socket, place.tmux_pid),
        )
        self.placements[member.ref] = placement
        self.configs[member.ref] = MonitorConfig(*member.ref, INTERVAL_SECONDS, None, 1)
        return placement

    def _leave(self, member: Member, ask: Fleetwide) -> MemberGone:
        after = _replace(member, status=MemberStatus.DEREGISTERED, deregistered_at=self._now)
        self.members[member.ref] = after
        self._counts[member.zone_id, member.fleet_id] -= 1
        self.configs.pop(member.ref, None)
        self._tell("member.deregistered", ask, after, member.status, after.status)
        return MemberGone(after, self.placements.pop(member.ref, None))

    # -- the monitor ---------------------------------------------------------------------------------------------

    def _configure(self, ask: ConfigureMonitor, fleet: Fleet) -> FleetOutcome | Problem:
        member = self._member(fleet, ask.agent_id)
        if member is None:
            return errors.not_a_member(ask.agent_id, fleet.fleet_id)
        config = self.configs.get(member.ref)
        if config is None:
            return errors.no_placement(ask.agent_id)
        self.configs[member.ref] = after = monitor.configured(config, ask)
        return after

    def _watch(self, ask: ClaimMonitor | BeatMonitor | ReleaseMonitor, fleet: Fleet) -> FleetOutcome | Problem:
        after = monitor.decide(ask, self.runtimes.get(fleet.ref), self._now)
        if isinstance(after, Problem):
            return after
        self.runtimes[fleet.ref] = after
        for agent_id in ask.pinged if isinstance(ask, BeatMonitor) else ():
            config = self.configs.get((ask.zone_id, agent_id))
            if config is not None and self._member(fleet, agent_id) is not None:
                self.configs[ask.zone_id, agent_id] = monitor.pinged(config, self._now)
        return after

    # -- shared --------------------------------------------------------------------------------------------------

    def _active(self, fleet: Fleet) -> list[Member]:
        """Those who are there, the administrator among them. Only of a fleet that was loaded whole, or made here."""
        return [
            member
            for member in self.members.values()
            if (member.zone_id, member.fleet_id) == fleet.ref and member.is_active
        ]

    def _member(self, fleet: Fleet, agent_id: int) -> Member | None:
        """An active one of this fleet: whoever has left, or is another's, is nobody here."""
        member = self.members.get((fleet.zone_id, agent_id))
        if member is None or not member.is_active or member.fleet_id != fleet.fleet_id:
            return None
        return member

    def _next(self, zone_id: str, noun: str) -> int:
        last = self.last_ids.get(zone_id) or LastIds(zone_id)
        number: int = getattr(last, noun) + 1
        self.last_ids[zone_id] = _replace(last, **{noun: number})
        return number

    def _made_before(self, ask: CreateFleet | RegisterMember) -> FleetOutcome | Problem | None:
        number = self.keys.made_before(key_of(ask), ask.digest)
        if number is None or isinstance(number, Problem):
            return number
        if isinstance(ask, RegisterMember):
            member = self._member(self.fleets[ask.zone_id, ask.fleet_id], number)
            if member is None:
                return errors.not_a_member(number, ask.fleet_id)
            return MemberMade(member, self.placements.get(member.ref), made=False)
        fleet = self.fleets.get((ask.zone_id, number))
        if fleet is None:
            return errors.fleet_not_found(number)
        if fleet.deleted_at is not None:
            return errors.fleet_deleted(number)
        there = self._active(fleet)
        [director] = [each for each in there if each.agent_id == fleet.director_agent_id]
        [administrator] = [each for each in there if kind_of(each.agent_card_json) == BUILTIN]
        return FleetMade(fleet, director, administrator, self.placements.get(director.ref), made=False)

    def _tell(self, kind: str, ask: Fleetwide, of: Fleet | Member, before: str | None, after: str | None) -> None:
        subject = of.agent_id if isinstance(of, Member) else of.fleet_id
        self.told.append(Told(kind, of.zone_id, subject, of.fleet_id, before, after, ask.actor, ask.trace))


def directing_problem(fleet: Fleet, director: Member) -> Problem | None:
    """Why one of a fleet cannot have members of its own."""
    if kind_of(director.agent_card_json) == BUILTIN:
        return errors.administrator_directs_nobody()
    root = fleet.director_agent_id
    return errors.nested(root, director.agent_id) if root not in (None, director.agent_id) else None


def wanted(asks: Sequence[FleetCommand], bindings: Sequence[KeyRecord]) -> Wanted:
    """A key stands for what was made under it, which is shown once more."""
    found = Wanted(set(), set(), set(), set())
    for ask in asks:
        ref = (ask.zone_id, ask.fleet_id)
        found.members.update((ask.zone_id, agent_id) for agent_id in _named(ask))
        if not isinstance(ask, CreateFleet):
            found.fleets.add(ref)
        if isinstance(ask, DeleteFleet):
            found.whole.add(ref)
        if isinstance(ask, RegisterMember):
            found.joined.add(ref)
    for binding in bindings:
        made = (binding.zone_id, int(binding.subject_id))
        (found.whole if binding.operation == CREATING else found.members).add(made)
    found.fleets.update(found.whole)
    return found


def _named(ask: FleetCommand) -> tuple[int, ...]:
    """Members that it says something of."""
    match ask:
        case RegisterMember():
            return () if ask.director_id is None else (ask.director_id,)
        case DeregisterMember() | PlaceMember() | ConfigureMonitor():
            return (ask.agent_id,)
        case BeatMonitor():
            return ask.pinged
        case CreateFleet() | DeleteFleet() | ClaimMonitor() | ReleaseMonitor():
            return ()


def key_of(ask: CreateFleet | RegisterMember) -> Key | None:
    if ask.key is None or ask.caller is None:
        return None
    operation = CREATING if isinstance(ask, CreateFleet) else REGISTERING
    return Key(ask.zone_id, ask.caller.client_id, operation, f"{ask.fleet_id} {ask.key}")
