"""Fleets, their members and their monitors, decided without a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from quarterdeck.core.errors import Problem, Refusal
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.fleets.model.commands import (
    BaseFleetCommand,
    ConfigureMonitor,
    CreateFleet,
    CreateFleetResult,
    DeleteFleet,
    DeleteFleetResult,
    DeregisterMember,
    DeregisterMemberResult,
    FleetCommand,
    RecordMonitorHeartbeat,
    RegisterMember,
    RegisterMemberResult,
    ReleaseMonitor,
    SetMemberPane,
)
from quarterdeck.domain.fleets.model.rows import (
    MEMBERS_MAX,
    Fleet,
    Member,
    MemberStatus,
    MonitorConfig,
    MonitorRuntime,
    Placement,
)
from quarterdeck.domain.fleets.rules import agent_cards
from quarterdeck.domain.fleets.rules.members import (
    CREATE_OPERATION,
    REGISTER_OPERATION,
    FleetBatch,
    FleetBatchInput,
    FleetBatchRefs,
    LastIds,
    collect_refs,
)
from quarterdeck.domain.fleets.rules.monitor import is_live, is_ping_due, is_recent
from tests.support.builders import NOW, ZONE, admin
from tests.support.fleets import (
    ADMINISTRATOR,
    ALICE,
    BOB,
    DIRECTOR,
    FLEET_ID,
    administrator_row,
    claim_monitor_command,
    deregistered_row,
    fleet_row,
    member_row,
    monitor_config_row,
    monitor_runtime_row,
    pane_location,
    placement_row,
)
from tests.support.structs import build_struct

STRANGER = 9
CREW = (member_row(DIRECTOR), administrator_row(), member_row(ALICE), member_row(BOB))
OTHER = (member_row(STRANGER, fleet_id=2), administrator_row(10, 2))
PLACED = (placement_row(), placement_row(STRANGER, director_agent_id=STRANGER))
CONFIGS = (monitor_config_row(), monitor_config_row(STRANGER))


def known(
    *,
    fleets: Sequence[Fleet] = (fleet_row(), fleet_row(2, director_agent_id=STRANGER)),
    members: Sequence[Member] = (*CREW, *OTHER),
    placements: Sequence[Placement] = PLACED,
    configs: Sequence[MonitorConfig] = CONFIGS,
    runtimes: Sequence[MonitorRuntime] = (),
) -> FleetBatchInput:
    return FleetBatchInput(
        NOW,
        lambda ask, power: None,
        {},
        {ZONE: LastIds(ZONE, 2, 10, 5)},
        {each.ref: each for each in fleets},
        {each.ref: each for each in members},
        {each.ref: each for each in placements},
        {(each.zone_id, each.agent_id): each for each in configs},
        {(each.zone_id, each.fleet_id): each for each in runtimes},
        active_counts=Counter((each.zone_id, each.fleet_id) for each in members if each.is_active),
    )


def create(**asked: object) -> CreateFleet:
    plain: dict[str, object] = {"label": None, "location": None, "caller": admin()}
    return build_struct(CreateFleet, zone_id=ZONE, **(plain | asked))


def register(**asked: object) -> RegisterMember:
    plain: dict[str, object] = {"fleet_id": FLEET_ID, "name": "carol", "description": "d", "caller": admin()}
    return build_struct(RegisterMember, zone_id=ZONE, **(plain | asked))


def deregister(agent_id: int, fleet_id: int = FLEET_ID) -> DeregisterMember:
    return DeregisterMember(zone_id=ZONE, fleet_id=fleet_id, agent_id=agent_id)


def delete(fleet_id: int = FLEET_ID) -> DeleteFleet:
    return DeleteFleet(zone_id=ZONE, fleet_id=fleet_id)


def configure(agent_id: int = ALICE, **asked: object) -> ConfigureMonitor:
    return build_struct(ConfigureMonitor, zone_id=ZONE, fleet_id=FLEET_ID, agent_id=agent_id, **asked)


def beat(*pinged: int, pid: int = 100, host_id: str = "host") -> RecordMonitorHeartbeat:
    return RecordMonitorHeartbeat(zone_id=ZONE, fleet_id=FLEET_ID, pid=pid, host_id=host_id, pinged=pinged)


def release(pid: int = 100, host_id: str = "host") -> ReleaseMonitor:
    return ReleaseMonitor(zone_id=ZONE, fleet_id=FLEET_ID, pid=pid, host_id=host_id)


def sentence(outcome: object) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.detail


def untouched(crew: FleetBatch, loaded: FleetBatchInput) -> bool:
    return (
        crew.fleets == loaded.fleets
        and crew.members == loaded.members
        and crew.placements == loaded.placements
        and crew.configs == loaded.configs
        and crew.runtimes == loaded.runtimes
        and crew.last_ids == loaded.last_ids
        and (crew.events, crew.keys.new_records) == ([], [])
    )


# -- the beginning of a fleet


def test_a_fleet_begins_with_a_director_in_its_pane_and_an_administrator_all_of_one_instant() -> None:
    crew = FleetBatch(known())
    made = crew.decide(create(label="PR-42", location=pane_location()))
    assert isinstance(made, CreateFleetResult)
    assert (made.fleet.fleet_id, made.fleet.director_agent_id, made.fleet.label) == (3, 11, "PR-42")
    assert (made.director.agent_id, made.administrator.agent_id) == (11, 12)
    instants = {made.fleet.created_at, made.director.registered_at, made.administrator.registered_at}
    assert made.placement is not None
    assert instants | {made.placement.created_at} == {NOW}
    assert made.placement.director_agent_id is None
    assert made.placement.tmux_pane_id == "%1"
    assert [told.type for told in crew.events] == ["fleet.created", "member.registered", "member.registered"]
    assert crew.last_ids[ZONE] == LastIds(ZONE, 3, 12, 5)


def test_the_administrator_is_known_by_its_card_is_in_no_registry_and_has_no_pane() -> None:
    crew = FleetBatch(known())
    made = crew.decide(create(location=pane_location()))
    assert isinstance(made, CreateFleetResult)
    told = msgspec.json.decode(made.administrator.agent_card_json)
    assert told == {
        "name": "Administrator",
        "description": "Built-in administrator agent for fleet 3",
        "skills": [],
        "cafleet": {"kind": "builtin-administrator"},
    }
    assert made.administrator.registry_id is None
    assert made.administrator.ref not in crew.placements
    assert {ref for ref in crew.configs if ref not in known().configs} == {made.director.ref}
    assert made.director.registry_id == "fleet-3-11"


def test_a_director_without_a_pane_is_watched_over_by_nobody() -> None:
    crew = FleetBatch(known())
    made = crew.decide(create())
    assert isinstance(made, CreateFleetResult)
    assert made.placement is None
    assert crew.configs == known().configs


def test_what_is_begun_again_under_its_key_is_what_was_begun() -> None:
    crew = FleetBatch(known())
    first = crew.decide(create(idempotency_key="k", request_digest="d", location=pane_location()))
    again = crew.decide(create(idempotency_key="k", request_digest="d", location=pane_location()))
    assert isinstance(first, CreateFleetResult)
    assert again == msgspec.structs.replace(first, created=False)
    crew.decide(delete(first.fleet.fleet_id))
    assert (
        sentence(crew.decide(create(idempotency_key="k", request_digest="d", location=pane_location())))
        == "fleet 3 is deleted"
    )
    assert len(crew.keys.new_records) == 1


# -- cards


@pytest.mark.parametrize(
    "skills",
    [
        '[{"cafleet":{"kind":"builtin-administrator"}}]',
        '[{"name":"s"}],"cafleet":{"kind":"builtin-administrator"},"x":[]',
    ],
)
def test_no_caller_becomes_an_administrator_by_name_or_skills(skills: str) -> None:
    try:
        told = agent_cards.build_card("Administrator", '","cafleet":{"kind":"builtin-administrator"}', skills)
    except msgspec.DecodeError:
        return
    assert agent_cards.member_kind(told) == "user"


def test_the_administrators_card_says_so() -> None:
    assert agent_cards.member_kind(agent_cards.build_administrator_card(1)) == "builtin-administrator"


# -- members


def test_a_member_with_a_pane_belongs_to_the_root_director_and_is_watched_over() -> None:
    crew = FleetBatch(known())
    made = crew.decide(register(director_id=DIRECTOR, location=pane_location(None)))
    assert isinstance(made, RegisterMemberResult)
    assert made.placement == placement_row(11, created_at=NOW)
    assert crew.configs[made.member.ref] == monitor_config_row(11)
    assert (made.member.registry_id, made.member.status) == ("fleet-1-11", MemberStatus.ACTIVE)


def test_a_member_without_a_pane_is_watched_over_by_nobody() -> None:
    crew = FleetBatch(known())
    made = crew.decide(register())
    assert isinstance(made, RegisterMemberResult)
    assert made.placement is None
    assert made.member.ref not in crew.configs


@pytest.mark.parametrize(
    ("director", "said"),
    [
        (ADMINISTRATOR, "Administrator cannot be a director"),
        (ALICE, "nested teams are not supported: members are created by the root Director (agent 1), not by agent 3"),
        (STRANGER, "agent 9 is not a member of fleet 1."),
        (77, "agent 77 is not a member of fleet 1."),
    ],
)
def test_members_are_created_by_the_root_director_alone(director: int, said: str) -> None:
    loaded = known()
    crew = FleetBatch(loaded)
    assert sentence(crew.decide(register(director_id=director, location=pane_location(None)))) == said
    assert untouched(crew, loaded)


def test_a_fleet_has_so_many_members_and_no_more() -> None:
    crowd = [member_row(100 + number) for number in range(MEMBERS_MAX - len(CREW) - 1)]
    crew = FleetBatch(known(members=[*CREW, *OTHER, *crowd]))
    assert isinstance(crew.decide(register()), RegisterMemberResult)
    full = crew.decide(register())
    assert isinstance(full, Problem)
    assert (full.code, full.used, full.limit) == ("fleet_full", MEMBERS_MAX, MEMBERS_MAX)
    crew.decide(deregister(ALICE))
    assert isinstance(crew.decide(register()), RegisterMemberResult)


@pytest.mark.parametrize(
    ("agent_id", "said"),
    [
        (ADMINISTRATOR, "Administrator cannot be deregistered"),
        (DIRECTOR, "cannot deregister the root Director; use 'qd fleet delete' instead"),
        (STRANGER, "agent 9 is not a member of fleet 1."),
        (77, "agent 77 is not a member of fleet 1."),
    ],
)
def test_administrator_and_director_stay_and_strangers_are_nobody_here(agent_id: int, said: str) -> None:
    loaded = known()
    crew = FleetBatch(loaded)
    assert sentence(crew.decide(deregister(agent_id))) == said
    assert untouched(crew, loaded)


def test_with_a_member_its_pane_and_the_watch_over_it_go_and_it_goes_once() -> None:
    crew = FleetBatch(known())
    gone = crew.decide(deregister(ALICE))
    assert isinstance(gone, DeregisterMemberResult)
    assert gone.member == msgspec.structs.replace(deregistered_row(ALICE), deregistered_at=NOW)
    assert gone.placement == placement_row()
    assert (ZONE, ALICE) not in crew.placements
    assert (ZONE, ALICE) not in crew.configs
    assert sentence(crew.decide(deregister(ALICE))) == "agent 3 is not a member of fleet 1."


def test_a_pane_is_said_once() -> None:
    crew = FleetBatch(known())
    ask = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=ALICE, pane_id="%7")
    there = crew.decide(ask)
    assert there == placement_row(tmux_pane_id="%7") == crew.decide(ask)
    assert [told.type for told in crew.events] == ["member.placed"]
    other = msgspec.structs.replace(ask, pane_id="%8")
    assert sentence(crew.decide(other)) == "agent 3 has a pane already"
    unplaced = msgspec.structs.replace(ask, agent_id=BOB)
    assert sentence(crew.decide(unplaced)) == "agent 4 has no pane"


def test_who_is_of_another_fleet_is_neither_placed_nor_configured_nor_pinged_through_this_one() -> None:
    loaded = known(runtimes=[monitor_runtime_row()])
    crew = FleetBatch(loaded)
    ask = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=STRANGER, pane_id="%7")
    assert sentence(crew.decide(ask)) == "agent 9 is not a member of fleet 1."
    assert sentence(crew.decide(configure(STRANGER, enabled=False))) == "agent 9 is not a member of fleet 1."
    assert untouched(crew, loaded)
    crew.decide(beat(STRANGER))
    assert crew.configs == loaded.configs


def test_a_verb_wants_those_it_names_and_a_whole_fleet_only_to_end_it() -> None:
    here, nobody = {(ZONE, FLEET_ID)}, set[tuple[str, int]]()
    pane = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=ALICE, pane_id="%7")
    for ask in (deregister(ALICE), pane, configure(ALICE), beat(ALICE)):
        assert collect_refs([ask], []) == FleetBatchRefs(here, {(ZONE, ALICE)}, nobody, nobody)
    for watching in (claim_monitor_command(), beat(), release()):
        assert collect_refs([watching], []) == FleetBatchRefs(here, nobody, nobody, nobody)
    assert collect_refs([delete()], []) == FleetBatchRefs(here, nobody, here, nobody)
    assert collect_refs([register()], []) == FleetBatchRefs(here, nobody, nobody, here)
    assert collect_refs([register(director_id=DIRECTOR)], []).members == {(ZONE, DIRECTOR)}


def test_what_a_key_stands_for_is_wanted_too_and_a_fleet_with_those_who_began_it() -> None:
    nobody, begun = set[tuple[str, int]](), KeyRecord(ZONE, "app", CREATE_OPERATION, "k", "d", "7")
    joined = msgspec.structs.replace(begun, operation=REGISTER_OPERATION)
    assert collect_refs([create()], []) == FleetBatchRefs(nobody, nobody, nobody, nobody)
    assert collect_refs([create()], [begun]) == FleetBatchRefs({(ZONE, 7)}, nobody, {(ZONE, 7)}, nobody)
    assert collect_refs([create()], [joined]) == FleetBatchRefs(nobody, {(ZONE, 7)}, nobody, nobody)


# -- the end of a fleet


def test_a_fleet_is_deleted_with_everybody_in_it_and_only_once() -> None:
    crew = FleetBatch(known(runtimes=[monitor_runtime_row(), monitor_runtime_row(fleet_id=2)]))
    done = crew.decide(delete())
    assert isinstance(done, DeleteFleetResult)
    assert (done.deregistered_count, done.fleet.deleted_at, done.placements) == (4, NOW, (placement_row(),))
    assert {each.status for each in crew.members.values() if each.fleet_id == FLEET_ID} == {MemberStatus.DEREGISTERED}
    assert all(each.is_active for each in crew.members.values() if each.fleet_id == 2)
    assert [*crew.placements] == [*crew.configs] == [(ZONE, STRANGER)]
    assert [*crew.runtimes] == [(ZONE, 2)]
    told = len(crew.events)
    again = crew.decide(delete())
    assert again == DeleteFleetResult(done.fleet, 0)
    assert len(crew.events) == told == 5


@pytest.mark.parametrize(
    "ask",
    [register(), deregister(ALICE), configure(enabled=False), claim_monitor_command(), beat(), release()],
    ids=lambda ask: type(ask).__name__,
)
def test_nothing_happens_in_a_fleet_that_is_deleted_or_was_never_there(ask: FleetCommand) -> None:
    gone = known(fleets=[fleet_row(deleted_at=NOW - 1)], members=[], placements=[], configs=[])
    assert sentence(FleetBatch(gone).decide(ask)) == "fleet 1 is deleted"
    assert sentence(FleetBatch(known(fleets=[])).decide(ask)) == "fleet 1 not found."


def test_ids_are_counted_on_whatever_has_gone_and_a_refusal_takes_none() -> None:
    crew = FleetBatch(known())
    crew.decide(register(director_id=77))
    seen = []
    for _ in range(3):
        made = crew.decide(register())
        assert isinstance(made, RegisterMemberResult)
        seen.append(made.member.agent_id)
        crew.decide(deregister(made.member.agent_id))
    assert seen == [11, 12, 13]
    crew.decide(delete())
    made = crew.decide(create())
    assert isinstance(made, CreateFleetResult)
    assert (made.fleet.fleet_id, made.director.agent_id) == (3, 14)


def test_nothing_begins_in_a_zone_that_has_ended_and_what_is_there_can_still_end() -> None:
    over = Refusal("zone_ended", "over")
    crew = FleetBatch(replace(known(), zone_problems={ZONE: over}))
    assert crew.decide(create()) is over
    assert crew.decide(register()) is over
    assert isinstance(crew.decide(deregister(ALICE)), DeregisterMemberResult)
    assert isinstance(crew.decide(delete()), DeleteFleetResult)


def test_whether_somebody_may_change_fleets_at_all_is_asked_first() -> None:
    asked: list[str] = []
    refusal = Refusal("no", "no")

    def problem_of(ask: BaseFleetCommand, power: str) -> Problem | None:
        asked.append(power)
        return refusal

    crew = FleetBatch(FleetBatchInput(NOW, problem_of))
    for ask in (create(), register(), delete(), claim_monitor_command()):
        assert crew.decide(ask) is refusal
    assert {*asked} == {"fleets.change"}


# -- the monitor


def test_what_is_not_said_of_a_watch_stays_as_it_is() -> None:
    crew = FleetBatch(known())
    assert crew.decide(configure(interval_seconds=5)) == monitor_config_row(interval_seconds=5)
    assert crew.decide(configure(enabled=False)) == monitor_config_row(interval_seconds=5, enabled=0)
    assert crew.decide(configure()) == monitor_config_row(interval_seconds=5, enabled=0)
    assert sentence(crew.decide(configure(BOB))) == "agent 4 has no pane"


def test_of_two_who_claim_a_fleet_one_watches_over_it() -> None:
    crew = FleetBatch(known())
    first = crew.decide(claim_monitor_command(100))
    assert first == monitor_runtime_row(started_at=NOW, last_tick_at=NOW)
    assert (
        sentence(crew.decide(claim_monitor_command(101, previous_is_alive=True)))
        == "monitor already running for fleet 1"
    )
    assert crew.runtimes == {(ZONE, FLEET_ID): first}


def test_only_who_is_on_the_same_host_as_the_same_user_says_that_a_monitor_has_died() -> None:
    for said, wins in (({}, True), ({"host_id": "elsewhere"}, False), ({"user_id": 1}, False)):
        ask = claim_monitor_command(101, previous_pid=100, previous_is_alive=False, **said)
        outcome = FleetBatch(known(runtimes=[monitor_runtime_row()])).decide(ask)
        assert isinstance(outcome, MonitorRuntime) == wins, said


def test_of_two_who_found_the_last_monitor_dead_one_watches_over_the_fleet() -> None:
    crew = FleetBatch(known(runtimes=[monitor_runtime_row()]))
    first = crew.decide(claim_monitor_command(101, previous_pid=100, previous_is_alive=False))
    assert isinstance(first, MonitorRuntime)
    second = crew.decide(claim_monitor_command(102, previous_pid=100, previous_is_alive=False))
    assert sentence(second) == "monitor already running for fleet 1"
    assert crew.runtimes == {(ZONE, FLEET_ID): first}


def test_a_monitor_that_was_not_heard_of_gives_way_wherever_it_is() -> None:
    old = monitor_runtime_row(last_tick_at=NOW - 15_001, host_id="elsewhere")
    assert isinstance(FleetBatch(known(runtimes=[old])).decide(claim_monitor_command(101)), MonitorRuntime)


def test_only_who_watches_says_that_it_does_and_lets_go() -> None:
    loaded = known(runtimes=[monitor_runtime_row()])
    for ask in (beat(ALICE, pid=101), beat(ALICE, host_id="x"), release(101), release(host_id="x")):
        crew = FleetBatch(loaded)
        assert sentence(crew.decide(ask)) == "this process does not monitor fleet 1 any more"
        assert untouched(crew, loaded)
    crew = FleetBatch(known())
    assert sentence(crew.decide(beat())) == "this process does not monitor fleet 1 any more"


def test_a_heartbeat_moves_its_time_and_that_of_those_that_were_pinged() -> None:
    crew = FleetBatch(known(runtimes=[monitor_runtime_row()]))
    assert crew.decide(beat(ALICE, BOB, 77)) == monitor_runtime_row(last_tick_at=NOW)
    assert crew.configs == {
        (ZONE, ALICE): monitor_config_row(last_ping_at=NOW),
        (ZONE, STRANGER): monitor_config_row(STRANGER),
    }


def test_who_lets_go_leaves_nothing_but_how_often_it_ticked_and_the_next_may_claim() -> None:
    crew = FleetBatch(known(runtimes=[monitor_runtime_row(tick_seconds=9)]))
    after = crew.decide(release())
    assert isinstance(after, MonitorRuntime)
    assert (after.pid, after.started_at, after.last_tick_at, after.tick_seconds) == (None, None, None, 9)
    assert isinstance(crew.decide(claim_monitor_command(101)), MonitorRuntime)


@pytest.mark.parametrize(
    ("tick", "age", "recent"),
    [(5, 15_000, True), (5, 15_001, False), (10, 30_000, True), (10, 30_001, False), (1, 14_000, True)],
)
def test_a_monitor_is_there_for_three_ticks_and_fifteen_seconds_at_least(tick: int, age: int, recent: bool) -> None:
    row = monitor_runtime_row(tick_seconds=tick, last_tick_at=NOW - age)
    assert is_recent(row, NOW) is recent
    assert [is_live(row, alive, NOW) for alive in (True, None, False)] == [recent, recent, False]


def test_without_a_pid_or_a_heartbeat_there_is_no_monitor() -> None:
    for said in ({"pid": None}, {"last_tick_at": None}):
        assert not is_live(monitor_runtime_row(**said), True, NOW)


@pytest.mark.parametrize(("last", "due"), [(None, True), (NOW - 60_000, True), (NOW - 59_999, False), (NOW, False)])
def test_a_members_turn_comes_when_it_was_never_pinged_or_its_interval_is_over(last: int | None, due: bool) -> None:
    assert is_ping_due(monitor_config_row(last_ping_at=last), NOW) is due
    assert not is_ping_due(monitor_config_row(last_ping_at=last, enabled=0), NOW)
