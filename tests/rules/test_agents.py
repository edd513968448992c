"""Agents, the pure part: how they stand by what was heard of them, and what may be said of them by whom."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import (
    HISTORY_INTERVAL,
    Agent,
    AgentHealth,
    AgentHistory,
    AgentStatus,
    AgentUpdate,
    RecordHeartbeat,
    Register,
    RegisterBody,
    State,
    Terminate,
    WaitingAgent,
)
from quarterdeck.domain.agents.rules import AGENT as MACHINE, AgentChange, RegistrationContext
from tests.support.agents import AGENT_ID, LAUNCHER_NAMES, agent_caller, agent_row, user_caller
from tests.support.builders import NOW, ZONE
from tests.support.structs import build_struct

replace = msgspec.structs.replace
STATES = st.sampled_from([State.IDLE, State.DEGRADED, State.ERROR, State.TERMINATED])


@st.composite
def some_agent(draw: st.DrawFn) -> Agent:
    status = draw(STATES)
    return agent_row(
        status=status,
        status_reason=draw(st.sampled_from(["stale", None])) if status is State.ERROR else None,
        terminated_at=NOW - 1 if status is State.TERMINATED else None,
        pulse_status=draw(st.sampled_from([*AgentHealth])),
        held=draw(st.integers(0, 3)),
        max_concurrent_tasks=draw(st.integers(1, 3)),
        draining=draw(st.integers(0, 1)) if status is not State.TERMINATED else 0,
        launcher=draw(st.sampled_from([None, "local"])),
        stale_threshold_seconds=draw(st.integers(1, 400)),
        heartbeat_interval_seconds=draw(st.integers(1, 400)),
        last_seen_at=NOW - draw(st.integers(0, 500)) * 1_000,
        look_at=draw(st.sampled_from([None, NOW])),
    )


def by(caller: Caller | None = None, role: Role | None = Role.MEMBER) -> RegistrationContext:
    return RegistrationContext(caller or user_caller(), role, LAUNCHER_NAMES)


def register(before: Agent | None, speaker: RegistrationContext, **said: object) -> AgentChange | Agent | Problem:
    ask = Register(zone_id=ZONE, agent_id=AGENT_ID, caller=speaker.caller, update=build_struct(AgentUpdate, **said))
    return rules.register(ask, before, speaker, NOW)


# -- how it stands -----------------------------------------------------------------------------------------------


@given(some_agent())
def test_a_look_moves_by_an_arrow_or_not_at_all_and_a_second_one_moves_nothing(one: Agent) -> None:
    moved = rules.evaluate_liveness(one, NOW)
    arrows = [verb for verb in MACHINE.transitions if MACHINE.next_state(verb, one.status) is moved.after.status]
    assert bool(arrows) == (moved.after.status is not one.status) == (moved.event_type is not None)
    again = rules.evaluate_liveness(moved.after, NOW)
    assert (again.after, again.event_type) == (moved.after, None)


@given(some_agent())
def test_after_a_look_an_agent_is_lost_exactly_if_it_was_silent_and_looked_at_again_if_it_may_be(one: Agent) -> None:
    after = rules.evaluate_liveness(one, NOW).after
    if one.status is State.TERMINATED:
        assert (after.status, after.look_at) == (State.TERMINATED, None)
        return
    assert (after.status is State.ERROR) == rules.is_stale(one, NOW)
    if rules.awaits_first_contact(after):
        assert after == one
    elif after.status is State.ERROR:
        assert after.status_reason == one.status_reason if one.status is State.ERROR else "stale"
        # Nobody looks at one that only a heartbeat brings back; one that is launched is given another chance.
        assert (after.look_at is None) == (one.launcher is None)
    else:
        assert after.look_at is not None and after.look_at > NOW
        assert after.status_reason is None


@given(some_agent(), st.sampled_from([*AgentHealth]))
def test_one_that_was_just_heard_of_is_never_lost(one: Agent, health: AgentHealth) -> None:
    beat = RecordHeartbeat(zone_id=ZONE, agent_id=AGENT_ID, status=health)
    after = rules.evaluate_liveness(rules.apply_heartbeat(one, beat, NOW), NOW).after
    if one.status is not State.TERMINATED:
        assert after.status is (State.DEGRADED if health is AgentHealth.DEGRADED else State.IDLE)


def test_one_that_the_server_registered_is_missed_only_after_it_has_spoken() -> None:
    ask = Register(zone_id=ZONE, agent_id="fleet-1-3", awaits_first_contact=True)
    one = rules.register(ask, None, RegistrationContext(None, None, ()), NOW)
    assert isinstance(one, Agent)
    assert one.look_at is None
    for later in (NOW, NOW + 179_999, NOW + 10**9):
        assert not rules.is_stale(one, later)
    assert rules.evaluate_liveness(one, NOW + 10**9).after == one
    spoke = rules.apply_heartbeat(one, RecordHeartbeat(zone_id=ZONE, agent_id="fleet-1-3"), NOW + 10**9)
    assert rules.needs_status_refresh(spoke, NOW + 10**9)
    after = rules.evaluate_liveness(spoke, NOW + 10**9).after
    assert after.look_at == NOW + 10**9 + 180_000
    assert not rules.needs_status_refresh(after, NOW + 10**9)
    assert rules.evaluate_liveness(after, NOW + 2 * 10**9).after.status is State.ERROR


@pytest.mark.parametrize("before", [None, agent_row(id="fleet-1-3", status=State.TERMINATED)])
def test_ids_of_members_of_fleets_are_registered_by_the_server_alone(before: Agent | None) -> None:
    ask = Register(zone_id=ZONE, agent_id="fleet-1-3", caller=user_caller())
    refused = rules.register(ask, before, by(), NOW)
    assert isinstance(refused, Problem)
    assert refused.code == "agent_id_reserved"
    there = rules.register(ask, agent_row(id="fleet-1-3"), by(), NOW)
    assert isinstance(there, AgentChange), "what is said of one that is there can be changed"


def test_members_of_fleets_are_ended_by_the_server_alone_and_not_whoever_had_such_an_id_before() -> None:
    member = agent_row(id="fleet-1-3", created_by="server")
    for graceful in (True, False):
        ask = Terminate(zone_id=ZONE, agent_id="fleet-1-3", caller=user_caller(), graceful=graceful)
        refused = rules.termination_problem(ask, member)
        assert refused is not None
        assert (refused.code, refused.status) == ("agent_in_fleet", 409)
        assert "`qd member delete --fleet-id 1 --member-id 3`" in refused.detail
        assert rules.termination_problem(replace(ask, caller=None), member) is None
        assert rules.termination_problem(ask, replace(member, status=State.TERMINATED)) is None, "it is over already"
        assert rules.termination_problem(ask, replace(member, created_by="ada")) is None
        assert rules.termination_problem(ask, replace(member, id="fleet-1-3b")) is None


@given(some_agent(), st.booleans())
def test_terminating_twice_is_terminating_once(one: Agent, graceful: bool) -> None:
    moved = rules.terminate(one, "over", NOW, graceful=graceful)
    waits = graceful and one.held > 0 and one.status is not State.TERMINATED
    assert (moved.after.status is State.TERMINATED) != waits
    again = rules.terminate(moved.after, "again", NOW + 1, graceful=graceful)
    assert (again.after, again.event_type) == (moved.after, None)
    if not waits:
        assert (moved.after.draining, rules.free_slots(moved.after)) == (0, 0)


@given(some_agent())
def test_nothing_is_given_to_one_that_is_lost_ended_draining_or_full(one: Agent) -> None:
    gone = one.status in (State.ERROR, State.TERMINATED) or bool(one.draining)
    expected = 0 if gone else max(0, one.max_concurrent_tasks - one.held)
    assert rules.free_slots(one) == expected
    if one.status is State.ERROR:
        # What speaks is not lost.
        assert rules.free_slots(one, is_claiming=True) == rules.free_slots(replace(one, status=State.IDLE))
    problem = rules.claim_problem(one)
    assert (problem is None) == (one.status is not State.TERMINATED and not one.draining)


@given(some_agent())
def test_it_is_to_be_heard_of_well_before_its_silence_counts(one: Agent) -> None:
    within = rules.next_heartbeat_seconds(one)
    assert 1 <= within <= max(1, min(one.heartbeat_interval_seconds, one.stale_threshold_seconds // 2))


@given(some_agent())
def test_one_that_waits_for_work_speaks_well_before_its_silence_counts(one: Agent) -> None:
    waiting = WaitingAgent(one.zone_id, one.id, one.status, one.draining, one.stale_threshold_seconds, one.last_seen_at)
    within = rules.contact_due_in(waiting, NOW)
    if one.draining or one.status in (State.ERROR, State.TERMINATED):
        assert within == 0
    elif within:
        assert NOW + within < one.last_seen_at + one.stale_threshold_seconds * 1_000
    if rules.was_just_seen(one, NOW):
        assert within or one.draining or one.status in (State.ERROR, State.TERMINATED)


def test_working_is_shown_of_one_that_is_well_and_holds_something() -> None:
    assert rules.displayed_status(agent_row(held=1)) is AgentStatus.WORKING
    for status in (State.DEGRADED, State.ERROR, State.TERMINATED):
        assert rules.displayed_status(agent_row(held=1, status=status)).value == status.value


def test_health_tells_of_silence_before_anybody_has_looked() -> None:
    silent = agent_row(last_seen_at=NOW - 200_000, held=1)
    for watched, stale in (
        (silent, True),
        (replace(silent, last_seen_at=NOW), False),
        (replace(silent, launcher="local", held=0), False),
        (replace(silent, status=State.TERMINATED), False),
    ):
        told = rules.health_view(AgentHistory(watched, NOW, ()))
        assert told.is_stale is stale
        assert told.age_seconds == (NOW - watched.last_seen_at) / 1_000


def test_a_heartbeat_is_kept_if_it_tells_of_a_change_or_the_last_one_is_old() -> None:
    one = agent_row(kept_at=NOW - HISTORY_INTERVAL + 1)
    beat = RecordHeartbeat(zone_id=ZONE, agent_id=AGENT_ID)
    assert not rules.belongs_in_history(one, beat, NOW)
    assert rules.belongs_in_history(one, beat, NOW + 1)
    assert rules.belongs_in_history(one, replace(beat, status=AgentHealth.DEGRADED), NOW)
    assert rules.belongs_in_history(one, replace(beat, current_task_id="t"), NOW)
    assert not rules.belongs_in_history(one, replace(beat, progress_percent=3), NOW)


# -- what may be said --------------------------------------------------------------------------------------------


def test_a_body_says_what_it_says_and_nothing_else() -> None:
    assert rules.update_from_body(RegisterBody()) == AgentUpdate()
    said = rules.update_from_body(RegisterBody(capabilities=["b", "a", "b"], coordinator_enabled=False, model=None))
    assert said == AgentUpdate(capabilities='["b","a"]', coordinator_enabled=0, model=None)


@given(
    st.sets(st.sampled_from("abcd")),
    st.sets(st.sampled_from("abcd")),
    st.sampled_from([Role.AGENT, Role.MEMBER, Role.ADMIN, Role.OWNER]),
)
def test_an_agent_never_has_more_by_its_own_word(had: set[str], asked: set[str], role: Role) -> None:
    before = agent_row(capabilities=_text(sorted(had)))
    speaker = by(agent_caller(), role)
    outcome = register(before, speaker, capabilities=_text(sorted(asked)))
    refused = isinstance(outcome, Problem)
    assert refused == (role is Role.AGENT and not asked <= had)


@pytest.mark.parametrize(
    ("role", "before", "asked"), list(itertools.product([*Role], [None, "gateway", "gone"], [None, "local", "gone"]))
)
def test_a_launcher_is_changed_by_rulers_to_what_the_server_names(
    role: Role, before: str | None, asked: str | None
) -> None:
    outcome = register(agent_row(launcher=before), by(agent_caller(), role), launcher=asked)
    if asked == before:
        assert isinstance(outcome, AgentChange)
    elif role not in (Role.OWNER, Role.ADMIN):
        assert isinstance(outcome, Problem) and outcome.code == "forbidden_role"
    elif asked is not None and asked not in LAUNCHER_NAMES:
        assert isinstance(outcome, Problem) and outcome.code == "unknown_launcher"
        assert all(name in outcome.detail for name in LAUNCHER_NAMES), "whoever may choose is told which there are"
    else:
        assert isinstance(outcome, AgentChange) and outcome.after.launcher == asked


@given(some_agent())
def test_to_register_is_to_be_heard_of_and_what_is_held_stays_held(one: Agent) -> None:
    outcome = register(one, by(role=Role.OWNER))
    assert isinstance(outcome, AgentChange)
    after = outcome.after
    assert (after.last_seen_at, after.held) == (NOW, one.held)
    assert after.look_at == NOW + after.stale_threshold_seconds * 1_000
    assert after.status not in (State.ERROR, State.TERMINATED)
    if one.status is State.TERMINATED:
        assert (after.capabilities, after.launcher, after.terminated_at) == ("[]", None, None)
    assert outcome.event_type == {State.TERMINATED: "agent.registered", State.ERROR: "agent.revived"}.get(one.status)


@pytest.mark.parametrize(
    ("said", "is_heard"),
    [
        ({"agent_since": NOW}, True),
        ({"agent_since": NOW - 1, "issued_at": NOW + 9}, False),
        ({"agent_since": NOW + 1, "issued_at": NOW + 9}, False),
        ({"issued_at": NOW}, True),
        ({"issued_at": NOW - 1}, False),
        ({"issued_at": 0}, False),
    ],
)
def test_a_token_speaks_for_the_registration_it_was_made_for(said: dict[str, int], is_heard: bool) -> None:
    caller = replace(agent_caller(), **said)
    assert (rules.agent_token_problem(caller, State.IDLE, NOW) is None) is is_heard
    assert rules.agent_token_problem(caller, State.TERMINATED, NOW) is not None


def test_one_that_is_registered_again_in_the_same_moment_has_another_moment_all_the_same() -> None:
    ended = agent_row(status=State.TERMINATED, created_at=NOW)
    outcome = register(ended, by(role=Role.OWNER))
    assert isinstance(outcome, AgentChange) and outcome.after.created_at == NOW + 1


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
