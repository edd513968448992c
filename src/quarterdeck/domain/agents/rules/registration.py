"""Decides registrations of agents, and who may register or terminate an agent."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.command import SERVER_ACTOR
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import (
    Agent,
    AgentHealth,
    AgentUpdate,
    Register,
    RegisterBody,
    State,
    Terminate,
    Verb,
)
from quarterdeck.domain.agents.rules import errors
from quarterdeck.domain.agents.rules.states import EVENT_TYPES, AgentChange

_decode_capabilities = msgspec.json.Decoder(list[str]).decode
FLEET_AGENT_ID = re.compile(r"fleet-[0-9]+-[0-9]+")
"""Ids of the agents of fleet members. Reserved, because a caller that registers such an id first could act for a member
that is added later."""


@dataclass(frozen=True, slots=True)
class RegistrationContext:
    """The caller of a registration, and the configured launchers."""

    caller: Caller | None
    role: Role | None
    """None for the server itself."""
    launchers: Collection[str]


def update_from_body(body: RegisterBody) -> AgentUpdate:
    """Convert a body to the values to store."""
    fields: dict[str, object] = {}
    for name in AgentUpdate.__struct_fields__:
        value = getattr(body, name)
        if value is UNSET:
            continue
        if name == "capabilities":
            value = _to_json([*dict.fromkeys(value)])
        elif name == "labels":
            value = _to_json(dict(sorted(value.items())))
        fields[name] = int(value) if isinstance(value, bool) else value
    return AgentUpdate(**fields)  # type: ignore[arg-type]  # the body has validated fields of the same names


def register(
    command: Register, before: Agent | None, context: RegistrationContext, now: Millis
) -> AgentChange | Agent | Problem:
    """Return the new agent, the change to an existing one, or a problem if the registration is refused.

    A registration counts as a heartbeat: it revives a stale agent. A terminated agent starts again with defaults.
    """
    if problem := errors.acting_agent_problem(context.caller, context.role, command.agent_id):
        return problem
    if context.role is Role.AGENT and (before is None or before.status is State.TERMINATED):
        # An agent's token cannot create the agent, because the agent could then choose its own capabilities.
        return errors.agent_not_found(command.agent_id)
    is_new = before is None or before.status is State.TERMINATED
    if is_new and context.caller is not None and FLEET_AGENT_ID.fullmatch(command.agent_id):
        return errors.agent_id_reserved(command.agent_id)
    base = _base_agent(command, before, now)
    if update_problem := _update_problem(command.update, base, context):
        return update_problem
    after = _mark_seen(_apply_update(command.update, base), now)
    if command.awaits_first_contact:
        after = msgspec.structs.replace(after, look_at=None)
    if before is None:
        return after
    changed = tuple(name for name in AgentUpdate.__struct_fields__ if getattr(after, name) != getattr(before, name))
    if before.status is State.TERMINATED:
        return AgentChange(before, after, EVENT_TYPES[Verb.REGISTER], registered_event_data(after))
    if before.status is State.ERROR:
        event_type, data = EVENT_TYPES[Verb.REVIVE], (("heldTasks", before.held),)
        return AgentChange(before, msgspec.structs.replace(after, updated_at=now), event_type, data)
    if not changed:
        return AgentChange(before, after)
    return AgentChange(before, msgspec.structs.replace(after, updated_at=now), "agent.changed", (("changed", changed),))


def loses_held_tasks(agent: Agent) -> bool:
    """Whether the agent's previous process held tasks that its new process does not continue.

    False for an agent with a launcher, which has one process per task.
    """
    return agent.launcher is None and agent.status is not State.TERMINATED and agent.held > 0


def termination_problem(command: Terminate, agent: Agent) -> Problem | None:
    """Return a problem if the agent belongs to a fleet member and a caller requests its termination.

    Only its fleet can terminate it. Otherwise the member would still exist, but its token would be refused. An agent
    with such an id that the server did not register is not a member: its id was taken before these ids were reserved.
    """
    is_member = FLEET_AGENT_ID.fullmatch(agent.id) is not None and agent.created_by == SERVER_ACTOR
    if command.caller is None or not is_member or agent.status is State.TERMINATED:
        return None
    return errors.agent_in_fleet(agent.id)


def registered_event_data(agent: Agent) -> tuple[tuple[str, object], ...]:
    return (
        ("name", agent.name),
        ("model", agent.model),
        ("capabilities", _decode_capabilities(agent.capabilities)),
        ("maxConcurrentTasks", agent.max_concurrent_tasks),
        ("launcher", agent.launcher),
    )


def _update_problem(update: AgentUpdate, base: Agent, context: RegistrationContext) -> Problem | None:
    if update.launcher is not UNSET and update.launcher != base.launcher:
        if context.role not in (None, Role.OWNER, Role.ADMIN):
            return errors.launcher_forbidden(context.role)
        if update.launcher is not None and update.launcher not in context.launchers:
            return errors.unknown_launcher(update.launcher, context.launchers)
    if (
        context.role is Role.AGENT
        and update.capabilities is not UNSET
        and not {*_decode_capabilities(update.capabilities)} <= {*_decode_capabilities(base.capabilities)}
    ):
        return errors.capabilities_not_allowed()
    return None


def _apply_update(update: AgentUpdate, base: Agent) -> Agent:
    changes = {name: value for name in AgentUpdate.__struct_fields__ if (value := getattr(update, name)) is not UNSET}
    return msgspec.structs.replace(base, **changes)


def _base_agent(command: Register, before: Agent | None, now: Millis) -> Agent:
    """Return the agent that the update applies to: the existing one, or one with defaults.

    A terminated agent also starts with defaults, because it must not keep its capabilities.
    """
    if before is None:
        return _new_agent(command, now)
    if before.status is State.TERMINATED:
        # A token is valid for one registration time, so this one must be later, even if the clock was set back.
        registered_at = max(now, before.created_at + 1)
        return msgspec.structs.replace(_new_agent(command, now), held=before.held, created_at=registered_at)
    return before


def _mark_seen(agent: Agent, now: Millis) -> Agent:
    """Mark the agent as seen. A stale agent becomes IDLE and healthy, without a current task."""
    was_stale = agent.status is State.ERROR
    return msgspec.structs.replace(
        agent,
        status=State.IDLE if was_stale else agent.status,
        status_reason=None if was_stale else agent.status_reason,
        pulse_status=AgentHealth.HEALTHY if was_stale else agent.pulse_status,
        current_task_id=None if was_stale else agent.current_task_id,
        last_seen_at=now,
        look_at=now + agent.stale_threshold_seconds * SECOND,
    )


def _new_agent(command: Register, now: Millis) -> Agent:
    return Agent(
        zone_id=command.zone_id,
        id=command.agent_id,
        name=command.agent_id,
        model=None,
        description=None,
        capabilities="[]",
        max_concurrent_tasks=1,
        heartbeat_interval_seconds=30,
        stale_threshold_seconds=180,
        coordinator_enabled=1,
        launcher=None,
        labels="{}",
        pool=None,
        status=State.IDLE,
        status_reason=None,
        draining=0,
        look_at=None,
        terminated_at=None,
        created_by=command.actor,
        created_at=now,
        updated_at=now,
        pulse_status=AgentHealth.HEALTHY,
        held=0,
        current_task_id=None,
        progress_percent=None,
        current_step=None,
        memory_mb=None,
        cpu_percent=None,
        last_seen_at=now,
        kept_at=0,
    )


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
