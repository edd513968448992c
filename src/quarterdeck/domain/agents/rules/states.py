"""States and transitions of agents, when an agent is stale, what a heartbeat changes, and how many tasks it may get."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.agents.model import (
    HISTORY_INTERVAL_MS,
    Agent,
    AgentHealth,
    AgentStatus,
    RecordHeartbeat,
    State,
    Verb,
    WaitingAgent,
)
from quarterdeck.domain.agents.rules import errors

STALE = "stale"
RECENTLY_SEEN_MS = SECOND
"""An agent that was seen this recently is not marked as seen again, to save a write."""
AGENT_STATES = StateMachine(
    "agent",
    State,
    State.IDLE,
    {
        Verb.REGISTER: {State.TERMINATED: State.IDLE},
        Verb.DEGRADE: {State.IDLE: State.DEGRADED},
        Verb.RECOVER: {State.DEGRADED: State.IDLE},
        Verb.MARK_STALE: {State.IDLE: State.ERROR, State.DEGRADED: State.ERROR},
        Verb.REVIVE: {State.ERROR: State.IDLE},
        Verb.REVIVE_DEGRADED: {State.ERROR: State.DEGRADED},
        Verb.TERMINATE: {State.IDLE: State.TERMINATED, State.DEGRADED: State.TERMINATED, State.ERROR: State.TERMINATED},
    },
)
EVENT_TYPES = {
    Verb.REGISTER: "agent.registered",
    Verb.DEGRADE: "agent.degraded",
    Verb.RECOVER: "agent.recovered",
    Verb.MARK_STALE: "agent.stale",
    Verb.REVIVE: "agent.revived",
    Verb.REVIVE_DEGRADED: "agent.revived",
    Verb.TERMINATE: "agent.terminated",
}
"""Event type of each transition."""


@dataclass(frozen=True, slots=True)
class AgentChange:
    """An agent before and after a command, with the type and data of its event. Without an event, the type is None."""

    before: Agent
    after: Agent
    event_type: str | None = None
    data: tuple[tuple[str, object], ...] = ()


# -- status ------------------------------------------------------------------------------------------------------


def displayed_status(agent: Agent) -> AgentStatus:
    """The stored status, or WORKING for an IDLE agent that holds tasks."""
    if agent.status is State.IDLE and agent.held > 0:
        return AgentStatus.WORKING
    return AgentStatus(agent.status.value)


def next_heartbeat_seconds(agent: Agent) -> int:
    """Seconds until the next heartbeat is due: the interval, or half the stale threshold if that is shorter."""
    return min(agent.heartbeat_interval_seconds, max(1, agent.stale_threshold_seconds // 2))


def stale_at(agent: Agent) -> Millis:
    """When the agent becomes stale if it is not seen again."""
    return agent.last_seen_at + agent.stale_threshold_seconds * SECOND


def awaits_first_contact(agent: Agent) -> bool:
    """Whether the server registered the agent and has not seen it since. Until then the agent is not checked."""
    return agent.look_at is None and agent.status in (State.IDLE, State.DEGRADED)


def is_stale(agent: Agent, now: Millis) -> bool:
    """Whether the agent has not been seen for its stale threshold.

    An agent with a launcher is not stale while it has no task, because it is not running then. An agent that awaits its
    first contact is not stale either.
    """
    is_not_running = agent.launcher is not None and agent.held == 0
    return now >= stale_at(agent) and not is_not_running and not awaits_first_contact(agent)


def needs_status_refresh(agent: Agent, now: Millis) -> bool:
    """Whether an agent that was just seen needs a `RefreshStatus`.

    It needs one if its stored status is out of date, or if this was its first contact, because checks start then.
    """
    return evaluate_liveness(agent, now).after.status is not agent.status or awaits_first_contact(agent)


def evaluate_liveness(agent: Agent, now: Millis) -> AgentChange:
    """Return the agent with the status that follows from its last contact, and the time of its next check (`look_at`).

    A stale agent needs no further check: its next heartbeat causes one. But an agent with a launcher cannot send a
    heartbeat before it is launched, so it is checked after another stale threshold and becomes IDLE if it holds no
    task. An agent that awaits its first contact keeps its status.
    """
    if agent.status is State.TERMINATED or (awaits_first_contact(agent) and now >= stale_at(agent)):
        return _with_status(agent, agent.status, agent.status_reason, None, now)
    if not is_stale(agent, now):
        is_overdue = now >= stale_at(agent)
        is_degraded = agent.pulse_status is AgentHealth.DEGRADED and not is_overdue
        look_at = (now if is_overdue else agent.last_seen_at) + agent.stale_threshold_seconds * SECOND
        reason = None if agent.status is State.ERROR else agent.status_reason
        return _with_status(agent, State.DEGRADED if is_degraded else State.IDLE, reason, look_at, now)
    retry_at = None if agent.launcher is None else now + agent.stale_threshold_seconds * SECOND
    if agent.status is State.ERROR:
        return _with_status(agent, agent.status, agent.status_reason, retry_at, now)
    return _with_status(agent, State.ERROR, STALE, retry_at, now)


def _with_status(agent: Agent, status: State, reason: str | None, look_at: Millis | None, now: Millis) -> AgentChange:
    has_changed = status is not agent.status
    after = msgspec.structs.replace(
        agent,
        status=status,
        status_reason=reason if has_changed else agent.status_reason,
        look_at=look_at,
        updated_at=now if has_changed else agent.updated_at,
    )
    if not has_changed:
        return AgentChange(agent, after)
    verb = next(verb for verb in Verb if AGENT_STATES.next_state(verb, agent.status) is status)
    data: tuple[tuple[str, object], ...] = (("heldTasks", agent.held),)
    if verb is Verb.MARK_STALE:
        data += (("reason", STALE), ("silentSeconds", (now - agent.last_seen_at) // SECOND))
    return AgentChange(agent, after, EVENT_TYPES[verb], data)


def terminate(agent: Agent, reason: str | None, now: Millis, *, graceful: bool) -> AgentChange:
    """Terminate an agent, or set it to draining if `graceful` and it still holds tasks."""
    if agent.status is State.TERMINATED:
        return AgentChange(agent, agent)
    if graceful and agent.held > 0:
        if agent.draining:
            return AgentChange(agent, agent)
        after = msgspec.structs.replace(agent, draining=1, status_reason=reason, updated_at=now)
        data = (("reason", reason), ("heldTasks", agent.held))
        return AgentChange(agent, after, "agent.draining", data)
    after = msgspec.structs.replace(
        agent,
        status=State.TERMINATED,
        status_reason=reason,
        draining=0,
        look_at=None,
        terminated_at=now,
        updated_at=now,
    )
    return AgentChange(agent, after, EVENT_TYPES[Verb.TERMINATE], (("graceful", graceful), ("reason", reason)))


# -- heartbeats --------------------------------------------------------------------------------------------------


def apply_heartbeat(agent: Agent, command: RecordHeartbeat, now: Millis) -> Agent:
    """Return the agent after a heartbeat. A value that the heartbeat omits is cleared."""
    return msgspec.structs.replace(
        agent,
        pulse_status=command.status,
        current_task_id=command.current_task_id,
        progress_percent=command.progress_percent,
        current_step=command.current_step,
        memory_mb=command.memory_mb,
        cpu_percent=command.cpu_percent,
        last_seen_at=now,
        kept_at=now if belongs_in_history(agent, command, now) else agent.kept_at,
    )


def was_just_seen(agent: Agent, now: Millis) -> bool:
    """Whether the agent was seen so recently that `last_seen_at` need not be written again."""
    return now - agent.last_seen_at < min(RECENTLY_SEEN_MS, agent.stale_threshold_seconds * SECOND // 4)


def ms_until_contact(agent: WaitingAgent, now: Millis) -> Millis:
    """Milliseconds until an agent with a waiting claim must be marked as seen again.

    That is half a stale threshold after its last contact. For a stale, draining or terminated agent it is 0: the claim
    is then submitted again, which revives the agent or refuses the claim.
    """
    if agent.draining or agent.status in (State.ERROR, State.TERMINATED):
        return 0
    return max(0, agent.last_seen_at + agent.stale_threshold_seconds * SECOND // 2 - now)


def belongs_in_history(agent: Agent, command: RecordHeartbeat, now: Millis) -> bool:
    """Whether to store a heartbeat in the history: its health or current task is new, or the last stored one is old."""
    return (
        command.status is not agent.pulse_status
        or command.current_task_id != agent.current_task_id
        or now - agent.kept_at >= HISTORY_INTERVAL_MS
    )


# -- tasks -------------------------------------------------------------------------------------------------------


def free_slots(agent: Agent, *, is_claiming: bool = False) -> int:
    """How many more tasks the agent may get. A claim proves that the agent is active, even if its status is ERROR."""
    is_inactive = agent.status is State.ERROR and not is_claiming
    if agent.draining or is_inactive or agent.status is State.TERMINATED:
        return 0
    return max(0, agent.max_concurrent_tasks - agent.held)


def claim_problem(agent: Agent) -> Problem | None:
    """Return a problem if the agent may get no new task, even with a free slot."""
    if agent.status is State.TERMINATED:
        return errors.agent_terminated(agent.id)
    return errors.agent_draining(agent.id) if agent.draining else None
