"""Rules of agents: liveness, termination, slots, and who may register or change an agent."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import (
    HISTORY_INTERVAL_MS,
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
from quarterdeck.domain.agents.rules import AGENT_STATES, registration, states, views
from quarterdeck.domain.agents.rules.registration import RegistrationContext
from quarterdeck.domain.agents.rules.states import AgentChange
from tests.support.agents import AGENT_ID, LAUNCHER_NAMES, agent_caller, agent_row, user_caller
from tests.support.builders import NOW, ZONE
from tests.support.structs import build_struct

replace = msgspec.structs.replace
STATES = st.sampled_from([State.IDLE, State.DEGRADED, State.ERROR, State.TERMINATED])


@st.composite
def agents(draw: st.DrawFn) -> Agent:
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


def registration_context(caller: Caller | None = None, role: Role | None = Role.MEMBER) -> RegistrationContext:
    return RegistrationContext(caller or user_caller(), role, LAUNCHER_NAMES)


def register(before: Agent | None, context: RegistrationContext, **fields: object) -> AgentChange | Agent | Problem:
    command = Register(
        zone_id=ZONE, agent_id=AGENT_ID, caller=context.caller, update=build_struct(AgentUpdate, **fields)
    )
    return registration.register(command, before, context, NOW)


# -- status and slots --------------------------------------------------------------------------------------------


@given(agents())
def test_status_changes_only_by_a_transition_and_the_evaluation_is_idempotent(agent: Agent) -> None:
    change = states.evaluate_liveness(agent, NOW)
    transitions = [
        verb for verb in AGENT_STATES.transitions if AGENT_STATES.next_state(verb, agent.status) is change.after.status
    ]
    assert bool(transitions) == (change.after.status is not agent.status) == (change.event_type is not None)
    second_change = states.evaluate_liveness(change.after, NOW)
    assert (second_change.after, second_change.event_type) == (change.after, None)


@given(agents())
def test_evaluated_agent_is_in_error_exactly_if_stale_and_has_the_next_check(agent: Agent) -> None:
    after = states.evaluate_liveness(agent, NOW).after
    if agent.status is State.TERMINATED:
        assert (after.status, after.look_at) == (State.TERMINATED, None)
        return
    assert (after.status is State.ERROR) == states.is_stale(agent, NOW)
    if states.awaits_first_contact(after):
        assert after == agent
    elif after.status is State.ERROR:
        assert after.status_reason == agent.status_reason if agent.status is State.ERROR else "stale"
        # Only a heartbeat revives an agent without a launcher, so it needs no further check.
        assert (after.look_at is None) == (agent.launcher is None)
    else:
        assert after.look_at is not None and after.look_at > NOW
        assert after.status_reason is None


@given(agents(), st.sampled_from([*AgentHealth]))
def test_heartbeat_sets_idle_or_degraded_and_never_error(agent: Agent, health: AgentHealth) -> None:
    heartbeat = RecordHeartbeat(zone_id=ZONE, agent_id=AGENT_ID, status=health)
    after = states.evaluate_liveness(states.apply_heartbeat(agent, heartbeat, NOW), NOW).after
    if agent.status is not State.TERMINATED:
        assert after.status is (State.DEGRADED if health is AgentHealth.DEGRADED else State.IDLE)


def test_agent_that_awaits_first_contact_is_never_stale_before_it() -> None:
    command = Register(zone_id=ZONE, agent_id="fleet-1-3", awaits_first_contact=True)
    agent = registration.register(command, None, RegistrationContext(None, None, ()), NOW)
    assert isinstance(agent, Agent)
    assert agent.look_at is None
    for now in (NOW, NOW + 179_999, NOW + 10**9):
        assert not states.is_stale(agent, now)
    assert states.evaluate_liveness(agent, NOW + 10**9).after == agent
    contacted = states.apply_heartbeat(agent, RecordHeartbeat(zone_id=ZONE, agent_id="fleet-1-3"), NOW + 10**9)
    assert states.needs_status_refresh(contacted, NOW + 10**9)
    after = states.evaluate_liveness(contacted, NOW + 10**9).after
    assert after.look_at == NOW + 10**9 + 180_000
    assert not states.needs_status_refresh(after, NOW + 10**9)
    assert states.evaluate_liveness(after, NOW + 2 * 10**9).after.status is State.ERROR


@pytest.mark.parametrize("before", [None, agent_row(id="fleet-1-3", status=State.TERMINATED)])
def test_only_the_server_registers_ids_of_fleet_members(before: Agent | None) -> None:
    command = Register(zone_id=ZONE, agent_id="fleet-1-3", caller=user_caller())
    refused = registration.register(command, before, registration_context(), NOW)
    assert isinstance(refused, Problem)
    assert refused.code == "agent_id_reserved"
    registered = registration.register(command, agent_row(id="fleet-1-3"), registration_context(), NOW)
    assert isinstance(registered, AgentChange), "a registered agent can be changed"


def test_only_the_server_terminates_agents_of_fleet_members() -> None:
    member = agent_row(id="fleet-1-3", created_by="server")
    for graceful in (True, False):
        command = Terminate(zone_id=ZONE, agent_id="fleet-1-3", caller=user_caller(), graceful=graceful)
        refused = registration.termination_problem(command, member)
        assert refused is not None
        assert (refused.code, refused.status) == ("agent_in_fleet", 409)
        assert "`qd member delete --fleet-id 1 --member-id 3`" in refused.detail
        assert registration.termination_problem(replace(command, caller=None), member) is None
        assert registration.termination_problem(command, replace(member, status=State.TERMINATED)) is None, (
            "already terminated"
        )
        assert registration.termination_problem(command, replace(member, created_by="ada")) is None
        assert registration.termination_problem(command, replace(member, id="fleet-1-3b")) is None


@given(agents(), st.booleans())
def test_terminate_is_idempotent(agent: Agent, graceful: bool) -> None:
    change = states.terminate(agent, "done", NOW, graceful=graceful)
    is_graceful_wait = graceful and agent.held > 0 and agent.status is not State.TERMINATED
    assert (change.after.status is State.TERMINATED) != is_graceful_wait
    second_change = states.terminate(change.after, "again", NOW + 1, graceful=graceful)
    assert (second_change.after, second_change.event_type) == (change.after, None)
    if not is_graceful_wait:
        assert (change.after.draining, rules.free_slots(change.after)) == (0, 0)


@given(agents())
def test_agent_in_error_terminated_draining_or_full_has_no_free_slots(agent: Agent) -> None:
    is_unavailable = agent.status in (State.ERROR, State.TERMINATED) or bool(agent.draining)
    expected = 0 if is_unavailable else max(0, agent.max_concurrent_tasks - agent.held)
    assert rules.free_slots(agent) == expected
    if agent.status is State.ERROR:
        # A claim shows that the agent is live.
        assert rules.free_slots(agent, is_claiming=True) == rules.free_slots(replace(agent, status=State.IDLE))
    problem = states.claim_problem(agent)
    assert (problem is None) == (agent.status is not State.TERMINATED and not agent.draining)


@given(agents())
def test_heartbeat_is_due_well_before_the_agent_is_stale(agent: Agent) -> None:
    seconds = rules.next_heartbeat_seconds(agent)
    assert 1 <= seconds <= max(1, min(agent.heartbeat_interval_seconds, agent.stale_threshold_seconds // 2))


@given(agents())
def test_contact_of_a_waiting_agent_is_due_before_it_is_stale(agent: Agent) -> None:
    waiting = WaitingAgent(
        agent.zone_id, agent.id, agent.status, agent.draining, agent.stale_threshold_seconds, agent.last_seen_at
    )
    due_in = states.ms_until_contact(waiting, NOW)
    if agent.draining or agent.status in (State.ERROR, State.TERMINATED):
        assert due_in == 0
    elif due_in:
        assert NOW + due_in < agent.last_seen_at + agent.stale_threshold_seconds * 1_000
    if states.was_just_seen(agent, NOW):
        assert due_in or agent.draining or agent.status in (State.ERROR, State.TERMINATED)


def test_only_an_idle_agent_with_tasks_is_displayed_as_working() -> None:
    assert rules.displayed_status(agent_row(held=1)) is AgentStatus.WORKING
    for status in (State.DEGRADED, State.ERROR, State.TERMINATED):
        assert rules.displayed_status(agent_row(held=1, status=status)).value == status.value


def test_health_view_shows_staleness_before_any_status_refresh() -> None:
    stale_agent = agent_row(last_seen_at=NOW - 200_000, held=1)
    for agent, stale in (
        (stale_agent, True),
        (replace(stale_agent, last_seen_at=NOW), False),
        (replace(stale_agent, launcher="local", held=0), False),
        (replace(stale_agent, status=State.TERMINATED), False),
    ):
        view = views.health_view(AgentHistory(agent, NOW, ()))
        assert view.is_stale is stale
        assert view.age_seconds == (NOW - agent.last_seen_at) / 1_000


def test_history_keeps_heartbeats_that_change_something_or_follow_an_old_entry() -> None:
    agent = agent_row(kept_at=NOW - HISTORY_INTERVAL_MS + 1)
    heartbeat = RecordHeartbeat(zone_id=ZONE, agent_id=AGENT_ID)
    assert not states.belongs_in_history(agent, heartbeat, NOW)
    assert states.belongs_in_history(agent, heartbeat, NOW + 1)
    assert states.belongs_in_history(agent, replace(heartbeat, status=AgentHealth.DEGRADED), NOW)
    assert states.belongs_in_history(agent, replace(heartbeat, current_task_id="t"), NOW)
    assert not states.belongs_in_history(agent, replace(heartbeat, progress_percent=3), NOW)


# -- registration and tokens -------------------------------------------------------------------------------------


def test_update_contains_only_the_fields_of_the_body() -> None:
    assert registration.update_from_body(RegisterBody()) == AgentUpdate()
    body = RegisterBody(capabilities=["b", "a", "b"], coordinator_enabled=False, model=None)
    assert registration.update_from_body(body) == AgentUpdate(
        capabilities='["b","a"]', coordinator_enabled=0, model=None
    )


@given(
    st.sets(st.sampled_from("abcd")),
    st.sets(st.sampled_from("abcd")),
    st.sampled_from([Role.AGENT, Role.MEMBER, Role.ADMIN, Role.OWNER]),
)
def test_agent_cannot_extend_its_own_capabilities(current: set[str], requested: set[str], role: Role) -> None:
    before = agent_row(capabilities=_json(sorted(current)))
    context = registration_context(agent_caller(), role)
    outcome = register(before, context, capabilities=_json(sorted(requested)))
    refused = isinstance(outcome, Problem)
    assert refused == (role is Role.AGENT and not requested <= current)


@pytest.mark.parametrize(
    ("role", "before", "requested"),
    list(itertools.product([*Role], [None, "gateway", "gone"], [None, "local", "gone"])),
)
def test_only_owner_or_admin_can_set_a_launcher_that_the_server_has(
    role: Role, before: str | None, requested: str | None
) -> None:
    outcome = register(agent_row(launcher=before), registration_context(agent_caller(), role), launcher=requested)
    if requested == before:
        assert isinstance(outcome, AgentChange)
    elif role not in (Role.OWNER, Role.ADMIN):
        assert isinstance(outcome, Problem) and outcome.code == "forbidden_role"
    elif requested is not None and requested not in LAUNCHER_NAMES:
        assert isinstance(outcome, Problem) and outcome.code == "unknown_launcher"
        assert all(name in outcome.detail for name in LAUNCHER_NAMES), "the error names the launchers of the server"
    else:
        assert isinstance(outcome, AgentChange) and outcome.after.launcher == requested


@given(agents())
def test_registering_again_counts_as_contact_and_keeps_the_held_tasks(agent: Agent) -> None:
    outcome = register(agent, registration_context(role=Role.OWNER))
    assert isinstance(outcome, AgentChange)
    after = outcome.after
    assert (after.last_seen_at, after.held) == (NOW, agent.held)
    assert after.look_at == NOW + after.stale_threshold_seconds * 1_000
    assert after.status not in (State.ERROR, State.TERMINATED)
    if agent.status is State.TERMINATED:
        assert (after.capabilities, after.launcher, after.terminated_at) == ("[]", None, None)
    assert outcome.event_type == {State.TERMINATED: "agent.registered", State.ERROR: "agent.revived"}.get(agent.status)


def test_registration_again_in_the_same_millisecond_gets_a_later_created_at() -> None:
    terminated = agent_row(status=State.TERMINATED, created_at=NOW)
    outcome = register(terminated, registration_context(role=Role.OWNER))
    assert isinstance(outcome, AgentChange) and outcome.after.created_at == NOW + 1


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
