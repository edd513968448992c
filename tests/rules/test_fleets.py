"""Rules of fleets, members and monitors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from quarterdeck.core.errors import Problem, Refusal
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.fleets.model.commands import (
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

OTHER_FLEET_MEMBER = 9
MEMBERS = (member_row(DIRECTOR), administrator_row(), member_row(ALICE), member_row(BOB))
OTHER_MEMBERS = (member_row(OTHER_FLEET_MEMBER, fleet_id=2), administrator_row(10, 2))
PLACEMENTS = (placement_row(), placement_row(OTHER_FLEET_MEMBER, director_agent_id=OTHER_FLEET_MEMBER))
CONFIGS = (monitor_config_row(), monitor_config_row(OTHER_FLEET_MEMBER))


def batch_input(
    *,
    fleets: Sequence[Fleet] = (fleet_row(), fleet_row(2, director_agent_id=OTHER_FLEET_MEMBER)),
    members: Sequence[Member] = (*MEMBERS, *OTHER_MEMBERS),
    placements: Sequence[Placement] = PLACEMENTS,
    configs: Sequence[MonitorConfig] = CONFIGS,
    runtimes: Sequence[MonitorRuntime] = (),
) -> FleetBatchInput:
    return FleetBatchInput(
        NOW,
        {},
        {ZONE: LastIds(ZONE, 2, 10, 5)},
        {row.ref: row for row in fleets},
        {row.ref: row for row in members},
        {row.ref: row for row in placements},
        {(row.zone_id, row.agent_id): row for row in configs},
        {(row.zone_id, row.fleet_id): row for row in runtimes},
        active_counts=Counter((row.zone_id, row.fleet_id) for row in members if row.is_active),
    )


def create(**fields: object) -> CreateFleet:
    defaults: dict[str, object] = {"label": None, "location": None, "caller": admin()}
    return build_struct(CreateFleet, zone_id=ZONE, **(defaults | fields))


def register(**fields: object) -> RegisterMember:
    defaults: dict[str, object] = {"fleet_id": FLEET_ID, "name": "carol", "description": "d", "caller": admin()}
    return build_struct(RegisterMember, zone_id=ZONE, **(defaults | fields))


def deregister(agent_id: int, fleet_id: int = FLEET_ID) -> DeregisterMember:
    return DeregisterMember(zone_id=ZONE, fleet_id=fleet_id, agent_id=agent_id)


def delete(fleet_id: int = FLEET_ID) -> DeleteFleet:
    return DeleteFleet(zone_id=ZONE, fleet_id=fleet_id)


def configure(agent_id: int = ALICE, **fields: object) -> ConfigureMonitor:
    return build_struct(ConfigureMonitor, zone_id=ZONE, fleet_id=FLEET_ID, agent_id=agent_id, **fields)


def heartbeat(*pinged: int, pid: int = 100, host_id: str = "host") -> RecordMonitorHeartbeat:
    return RecordMonitorHeartbeat(zone_id=ZONE, fleet_id=FLEET_ID, pid=pid, host_id=host_id, pinged_agent_ids=pinged)


def release(pid: int = 100, host_id: str = "host") -> ReleaseMonitor:
    return ReleaseMonitor(zone_id=ZONE, fleet_id=FLEET_ID, pid=pid, host_id=host_id)


def detail(outcome: object) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.detail


def is_unchanged(batch: FleetBatch, loaded: FleetBatchInput) -> bool:
    return (
        batch.fleets == loaded.fleets
        and batch.members == loaded.members
        and batch.placements == loaded.placements
        and batch.configs == loaded.configs
        and batch.runtimes == loaded.runtimes
        and batch.last_ids == loaded.last_ids
        and (batch.events, batch.keys.new_records) == ([], [])
    )


# -- creation of a fleet


def test_new_fleet_has_a_director_with_a_pane_and_an_administrator() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(create(label="PR-42", location=pane_location()))
    assert isinstance(result, CreateFleetResult)
    assert (result.fleet.fleet_id, result.fleet.director_agent_id, result.fleet.label) == (3, 11, "PR-42")
    assert (result.director.agent_id, result.administrator.agent_id) == (11, 12)
    instants = {result.fleet.created_at, result.director.registered_at, result.administrator.registered_at}
    assert result.placement is not None
    assert instants | {result.placement.created_at} == {NOW}
    assert result.placement.director_agent_id is None
    assert result.placement.tmux_pane_id == "%1"
    assert [event.type for event in batch.events] == ["fleet.created", "member.registered", "member.registered"]
    assert batch.last_ids[ZONE] == LastIds(ZONE, 3, 12, 5)


def test_administrator_has_its_card_but_no_registry_id_and_no_pane() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(create(location=pane_location()))
    assert isinstance(result, CreateFleetResult)
    card = msgspec.json.decode(result.administrator.agent_card_json)
    assert card == {
        "name": "Administrator",
        "description": "Built-in administrator agent for fleet 3",
        "skills": [],
        "cafleet": {"kind": "builtin-administrator"},
    }
    assert result.administrator.registry_id is None
    assert result.administrator.ref not in batch.placements
    assert {ref for ref in batch.configs if ref not in batch_input().configs} == {result.director.ref}
    assert result.director.registry_id == "fleet-3-11"


def test_director_without_a_pane_has_no_monitor_config() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(create())
    assert isinstance(result, CreateFleetResult)
    assert result.placement is None
    assert batch.configs == batch_input().configs


def test_repeated_key_returns_the_fleet_and_is_refused_after_its_deletion() -> None:
    batch = FleetBatch(batch_input())
    first = batch.decide(create(idempotency_key="k", request_digest="d", location=pane_location()))
    second = batch.decide(create(idempotency_key="k", request_digest="d", location=pane_location()))
    assert isinstance(first, CreateFleetResult)
    assert second == msgspec.structs.replace(first, created=False)
    batch.decide(delete(first.fleet.fleet_id))
    assert (
        detail(batch.decide(create(idempotency_key="k", request_digest="d", location=pane_location())))
        == "fleet 3 is deleted"
    )
    assert len(batch.keys.new_records) == 1


# -- cards


@pytest.mark.parametrize(
    "skills",
    [
        '[{"cafleet":{"kind":"builtin-administrator"}}]',
        '[{"name":"s"}],"cafleet":{"kind":"builtin-administrator"},"x":[]',
    ],
)
def test_caller_cannot_forge_an_administrator_card(skills: str) -> None:
    try:
        card = agent_cards.build_card("Administrator", '","cafleet":{"kind":"builtin-administrator"}', skills)
    except msgspec.DecodeError:
        return
    assert agent_cards.member_kind(card) == "user"


def test_administrator_card_has_the_administrator_kind() -> None:
    assert agent_cards.member_kind(agent_cards.build_administrator_card(1)) == "builtin-administrator"


# -- members


def test_member_with_a_pane_gets_a_placement_and_a_monitor_config() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(register(director_id=DIRECTOR, location=pane_location(None)))
    assert isinstance(result, RegisterMemberResult)
    assert result.placement == placement_row(11, created_at=NOW)
    assert batch.configs[result.member.ref] == monitor_config_row(11)
    assert (result.member.registry_id, result.member.status) == ("fleet-1-11", MemberStatus.ACTIVE)


def test_member_without_a_pane_has_no_monitor_config() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(register())
    assert isinstance(result, RegisterMemberResult)
    assert result.placement is None
    assert result.member.ref not in batch.configs


@pytest.mark.parametrize(
    ("director", "expected"),
    [
        (ADMINISTRATOR, "Administrator cannot be a director"),
        (ALICE, "nested teams are not supported: members are created by the root Director (agent 1), not by agent 3"),
        (OTHER_FLEET_MEMBER, "agent 9 is not a member of fleet 1."),
        (77, "agent 77 is not a member of fleet 1."),
    ],
)
def test_only_the_root_director_can_create_members(director: int, expected: str) -> None:
    loaded = batch_input()
    batch = FleetBatch(loaded)
    assert detail(batch.decide(register(director_id=director, location=pane_location(None)))) == expected
    assert is_unchanged(batch, loaded)


def test_number_of_members_of_a_fleet_is_limited() -> None:
    more_members = [member_row(100 + number) for number in range(MEMBERS_MAX - len(MEMBERS) - 1)]
    batch = FleetBatch(batch_input(members=[*MEMBERS, *OTHER_MEMBERS, *more_members]))
    assert isinstance(batch.decide(register()), RegisterMemberResult)
    full = batch.decide(register())
    assert isinstance(full, Problem)
    assert (full.code, full.used, full.limit) == ("fleet_full", MEMBERS_MAX, MEMBERS_MAX)
    batch.decide(deregister(ALICE))
    assert isinstance(batch.decide(register()), RegisterMemberResult)


@pytest.mark.parametrize(
    ("agent_id", "expected"),
    [
        (ADMINISTRATOR, "Administrator cannot be deregistered"),
        (DIRECTOR, "cannot deregister the root Director; use 'qd fleet delete' instead"),
        (OTHER_FLEET_MEMBER, "agent 9 is not a member of fleet 1."),
        (77, "agent 77 is not a member of fleet 1."),
    ],
)
def test_administrator_director_and_outsiders_cannot_be_deregistered(agent_id: int, expected: str) -> None:
    loaded = batch_input()
    batch = FleetBatch(loaded)
    assert detail(batch.decide(deregister(agent_id))) == expected
    assert is_unchanged(batch, loaded)


def test_deregistering_removes_placement_and_monitor_config_and_works_once() -> None:
    batch = FleetBatch(batch_input())
    result = batch.decide(deregister(ALICE))
    assert isinstance(result, DeregisterMemberResult)
    assert result.member == msgspec.structs.replace(deregistered_row(ALICE), deregistered_at=NOW)
    assert result.placement == placement_row()
    assert (ZONE, ALICE) not in batch.placements
    assert (ZONE, ALICE) not in batch.configs
    assert detail(batch.decide(deregister(ALICE))) == "agent 3 is not a member of fleet 1."


def test_pane_of_a_member_can_be_set_once() -> None:
    batch = FleetBatch(batch_input())
    command = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=ALICE, pane_id="%7")
    placed = batch.decide(command)
    assert placed == placement_row(tmux_pane_id="%7") == batch.decide(command)
    assert [event.type for event in batch.events] == ["member.placed"]
    other = msgspec.structs.replace(command, pane_id="%8")
    assert detail(batch.decide(other)) == "agent 3 already has a pane"
    unplaced = msgspec.structs.replace(command, agent_id=BOB)
    assert detail(batch.decide(unplaced)) == "agent 4 has no pane"


def test_member_of_another_fleet_cannot_be_placed_configured_or_pinged() -> None:
    loaded = batch_input(runtimes=[monitor_runtime_row()])
    batch = FleetBatch(loaded)
    command = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=OTHER_FLEET_MEMBER, pane_id="%7")
    assert detail(batch.decide(command)) == "agent 9 is not a member of fleet 1."
    assert detail(batch.decide(configure(OTHER_FLEET_MEMBER, enabled=False))) == "agent 9 is not a member of fleet 1."
    assert is_unchanged(batch, loaded)
    batch.decide(heartbeat(OTHER_FLEET_MEMBER))
    assert batch.configs == loaded.configs


def test_commands_load_the_members_they_name_and_all_only_for_a_deletion() -> None:
    fleet, none = {(ZONE, FLEET_ID)}, set[tuple[str, int]]()
    pane = SetMemberPane(zone_id=ZONE, fleet_id=FLEET_ID, agent_id=ALICE, pane_id="%7")
    for member_command in (deregister(ALICE), pane, configure(ALICE), heartbeat(ALICE)):
        assert collect_refs([member_command], []) == FleetBatchRefs(fleet, {(ZONE, ALICE)}, none, none)
    for command in (claim_monitor_command(), heartbeat(), release()):
        assert collect_refs([command], []) == FleetBatchRefs(fleet, none, none, none)
    assert collect_refs([delete()], []) == FleetBatchRefs(fleet, none, fleet, none)
    assert collect_refs([register()], []) == FleetBatchRefs(fleet, none, none, fleet)
    assert collect_refs([register(director_id=DIRECTOR)], []).members == {(ZONE, DIRECTOR)}


def test_key_records_add_the_fleet_or_member_they_refer_to() -> None:
    none, create_record = set[tuple[str, int]](), KeyRecord(ZONE, "app", CREATE_OPERATION, "k", "d", "7")
    register_record = msgspec.structs.replace(create_record, operation=REGISTER_OPERATION)
    assert collect_refs([create()], []) == FleetBatchRefs(none, none, none, none)
    assert collect_refs([create()], [create_record]) == FleetBatchRefs({(ZONE, 7)}, none, {(ZONE, 7)}, none)
    assert collect_refs([create()], [register_record]) == FleetBatchRefs(none, {(ZONE, 7)}, none, none)


# -- deletion of a fleet


def test_deleting_a_fleet_deregisters_all_members_and_works_once() -> None:
    batch = FleetBatch(batch_input(runtimes=[monitor_runtime_row(), monitor_runtime_row(fleet_id=2)]))
    result = batch.decide(delete())
    assert isinstance(result, DeleteFleetResult)
    assert (result.deregistered_count, result.fleet.deleted_at, result.placements) == (4, NOW, (placement_row(),))
    assert {row.status for row in batch.members.values() if row.fleet_id == FLEET_ID} == {MemberStatus.DEREGISTERED}
    assert all(row.is_active for row in batch.members.values() if row.fleet_id == 2)
    assert [*batch.placements] == [*batch.configs] == [(ZONE, OTHER_FLEET_MEMBER)]
    assert [*batch.runtimes] == [(ZONE, 2)]
    event_count = len(batch.events)
    second = batch.decide(delete())
    assert second == DeleteFleetResult(result.fleet, 0)
    assert len(batch.events) == event_count == 5


@pytest.mark.parametrize(
    "command",
    [register(), deregister(ALICE), configure(enabled=False), claim_monitor_command(), heartbeat(), release()],
    ids=lambda command: type(command).__name__,
)
def test_every_command_in_a_deleted_or_unknown_fleet_is_refused(command: FleetCommand) -> None:
    deleted = batch_input(fleets=[fleet_row(deleted_at=NOW - 1)], members=[], placements=[], configs=[])
    assert detail(FleetBatch(deleted).decide(command)) == "fleet 1 is deleted"
    assert detail(FleetBatch(batch_input(fleets=[])).decide(command)) == "fleet 1 not found."


def test_ids_are_never_reused_and_a_refusal_uses_none() -> None:
    batch = FleetBatch(batch_input())
    batch.decide(register(director_id=77))
    agent_ids = []
    for _ in range(3):
        result = batch.decide(register())
        assert isinstance(result, RegisterMemberResult)
        agent_ids.append(result.member.agent_id)
        batch.decide(deregister(result.member.agent_id))
    assert agent_ids == [11, 12, 13]
    batch.decide(delete())
    result = batch.decide(create())
    assert isinstance(result, CreateFleetResult)
    assert (result.fleet.fleet_id, result.director.agent_id) == (3, 14)


def test_ended_zone_refuses_new_fleets_and_members_but_allows_removal() -> None:
    zone_ended = Refusal("zone_ended", "ended")
    batch = FleetBatch(replace(batch_input(), zone_problems={ZONE: zone_ended}))
    assert batch.decide(create()) is zone_ended
    assert batch.decide(register()) is zone_ended
    assert isinstance(batch.decide(deregister(ALICE)), DeregisterMemberResult)
    assert isinstance(batch.decide(delete()), DeleteFleetResult)


# -- the monitor


def test_omitted_monitor_settings_stay_unchanged() -> None:
    batch = FleetBatch(batch_input())
    assert batch.decide(configure(interval_seconds=5)) == monitor_config_row(interval_seconds=5)
    assert batch.decide(configure(enabled=False)) == monitor_config_row(interval_seconds=5, enabled=0)
    assert batch.decide(configure()) == monitor_config_row(interval_seconds=5, enabled=0)
    assert detail(batch.decide(configure(BOB))) == "agent 4 has no pane"


def test_only_one_of_two_monitor_claims_succeeds() -> None:
    batch = FleetBatch(batch_input())
    first = batch.decide(claim_monitor_command(100))
    assert first == monitor_runtime_row(started_at=NOW, last_tick_at=NOW)
    assert (
        detail(batch.decide(claim_monitor_command(101, previous_is_alive=True)))
        == "monitor already running for fleet 1"
    )
    assert batch.runtimes == {(ZONE, FLEET_ID): first}


def test_dead_monitor_is_replaced_only_from_the_same_host_and_user() -> None:
    for fields, is_accepted in (({}, True), ({"host_id": "other-host"}, False), ({"user_id": 1}, False)):
        command = claim_monitor_command(101, previous_pid=100, previous_is_alive=False, **fields)
        outcome = FleetBatch(batch_input(runtimes=[monitor_runtime_row()])).decide(command)
        assert isinstance(outcome, MonitorRuntime) == is_accepted, fields


def test_only_one_of_two_claims_after_a_dead_monitor_succeeds() -> None:
    batch = FleetBatch(batch_input(runtimes=[monitor_runtime_row()]))
    first = batch.decide(claim_monitor_command(101, previous_pid=100, previous_is_alive=False))
    assert isinstance(first, MonitorRuntime)
    second = batch.decide(claim_monitor_command(102, previous_pid=100, previous_is_alive=False))
    assert detail(second) == "monitor already running for fleet 1"
    assert batch.runtimes == {(ZONE, FLEET_ID): first}


def test_stale_monitor_is_replaced_even_from_another_host() -> None:
    stale = monitor_runtime_row(last_tick_at=NOW - 15_001, host_id="other-host")
    assert isinstance(FleetBatch(batch_input(runtimes=[stale])).decide(claim_monitor_command(101)), MonitorRuntime)


def test_only_the_current_monitor_can_send_heartbeats_and_release() -> None:
    loaded = batch_input(runtimes=[monitor_runtime_row()])
    for command in (heartbeat(ALICE, pid=101), heartbeat(ALICE, host_id="x"), release(101), release(host_id="x")):
        batch = FleetBatch(loaded)
        assert detail(batch.decide(command)) == "this process no longer monitors fleet 1"
        assert is_unchanged(batch, loaded)
    batch = FleetBatch(batch_input())
    assert detail(batch.decide(heartbeat())) == "this process no longer monitors fleet 1"


def test_heartbeat_updates_the_tick_and_the_last_ping_of_pinged_members() -> None:
    batch = FleetBatch(batch_input(runtimes=[monitor_runtime_row()]))
    assert batch.decide(heartbeat(ALICE, BOB, 77)) == monitor_runtime_row(last_tick_at=NOW)
    assert batch.configs == {
        (ZONE, ALICE): monitor_config_row(last_ping_at=NOW),
        (ZONE, OTHER_FLEET_MEMBER): monitor_config_row(OTHER_FLEET_MEMBER),
    }


def test_released_monitor_keeps_only_its_tick_interval_and_can_be_claimed() -> None:
    batch = FleetBatch(batch_input(runtimes=[monitor_runtime_row(tick_seconds=9)]))
    after = batch.decide(release())
    assert isinstance(after, MonitorRuntime)
    assert (after.pid, after.started_at, after.last_tick_at, after.tick_seconds) == (None, None, None, 9)
    assert isinstance(batch.decide(claim_monitor_command(101)), MonitorRuntime)


@pytest.mark.parametrize(
    ("tick", "age", "expected"),
    [(5, 15_000, True), (5, 15_001, False), (10, 30_000, True), (10, 30_001, False), (1, 14_000, True)],
)
def test_monitor_is_live_for_three_ticks_and_at_least_15_seconds(tick: int, age: int, expected: bool) -> None:
    row = monitor_runtime_row(tick_seconds=tick, last_tick_at=NOW - age)
    assert is_recent(row, NOW) is expected
    assert [is_live(row, alive, NOW) for alive in (True, None, False)] == [expected, expected, False]


def test_monitor_without_a_pid_or_heartbeat_is_not_live() -> None:
    for fields in ({"pid": None}, {"last_tick_at": None}):
        assert not is_live(monitor_runtime_row(**fields), True, NOW)


@pytest.mark.parametrize(
    ("last_ping_at", "expected"), [(None, True), (NOW - 60_000, True), (NOW - 59_999, False), (NOW, False)]
)
def test_ping_is_due_if_there_was_none_or_the_interval_has_passed(last_ping_at: int | None, expected: bool) -> None:
    assert is_ping_due(monitor_config_row(last_ping_at=last_ping_at), NOW) is expected
    assert not is_ping_due(monitor_config_row(last_ping_at=last_ping_at, enabled=0), NOW)
