"""How an agent stands, by what was heard of it, and what it may still be given."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.agents.model import (
    HISTORY_INTERVAL,
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
RECENTLY_SEEN = SECOND
"""So soon after it was heard of, that it is there tells nothing new."""
AGENT = StateMachine(
    "agent",
    State,
    State.IDLE,
    {
        Verb.REGISTER: {State.TERMINATED: State.IDLE},
        Verb.DEGRADE: {State.IDLE: State.DEGRADED},
        Verb.RECOVER: {State.DEGRADED: State.IDLE},
        Verb.LOSE: {State.IDLE: State.ERROR, State.DEGRADED: State.ERROR},
        Verb.REVIVE: {State.ERROR: State.IDLE},
        Verb.REVIVE_DEGRADED: {State.ERROR: State.DEGRADED},
        Verb.TERMINATE: {State.IDLE: State.TERMINATED, State.DEGRADED: State.TERMINATED, State.ERROR: State.TERMINATED},
    },
)
EVENT_TYPES = {
    Verb.REGISTER: "agent.registered",
    Verb.DEGRADE: "agent.degraded",
    Verb.RECOVER: "agent.recovered",
    Verb.LOSE: "agent.stale",
    Verb.REVIVE: "agent.revived",
    Verb.REVIVE_DEGRADED: "agent.revived",
    Verb.TERMINATE: "agent.terminated",
}
"""What each move is called in the log."""


@dataclass(frozen=True, slots=True)
class AgentChange:
    """An agent before and after, and what there is to tell of it: an event's type and what stands in it."""

    before: Agent
    after: Agent
    event_type: str | None = None
    data: tuple[tuple[str, object], ...] = ()


# -- how it stands -----------------------------------------------------------------------------------------------


def displayed_status(agent: Agent) -> AgentStatus:
    """IDLE or WORKING is nothing that an agent does: it follows from what it holds."""
    if agent.status is State.IDLE and agent.held > 0:
        return AgentStatus.WORKING
    return AgentStatus(agent.status.value)


def next_heartbeat_seconds(agent: Agent) -> int:
    """Seconds until it is to be heard of again: its interval, or sooner where that is no less than the time after
    which silence counts."""
    return min(agent.heartbeat_interval_seconds, max(1, agent.stale_threshold_seconds // 2))


def stale_at(agent: Agent) -> Millis:
    """When it will have been silent for too long, if nothing more is heard of it."""
    return agent.last_seen_at + agent.stale_threshold_seconds * SECOND


def awaits_first_contact(agent: Agent) -> bool:
    """Whether it was registered by the server and has not spoken since: nobody looks whether it is there."""
    return agent.look_at is None and agent.status in (State.IDLE, State.DEGRADED)


def is_stale(agent: Agent, now: Millis) -> bool:
    """Of an agent that is launched for each task nothing is to be heard while it has none: nobody is there. And one
    that has never spoken is not missed."""
    is_not_running = agent.launcher is not None and agent.held == 0
    return now >= stale_at(agent) and not is_not_running and not awaits_first_contact(agent)


def needs_status_refresh(agent: Agent, now: Millis) -> bool:
    """Whether somebody has to look at an agent that was heard of: it stands otherwise than is stored, or it has spoken
    for the first time, and is to be missed from now on."""
    return evaluate_liveness(agent, now).after.status is not agent.status or awaits_first_contact(agent)


def evaluate_liveness(agent: Agent, now: Millis) -> AgentChange:
    """How an agent stands by when, and how, it was last heard of; and when to look again.

    Of one that was lost nothing is to be looked for: should it be heard of, that is a reason to look. But an agent that
    is launched cannot be heard of before it is launched, so it is given another chance after the same time again. One
    that has never spoken stays as it is until it does.
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
    verb = next(verb for verb in Verb if AGENT.next_state(verb, agent.status) is status)
    data: tuple[tuple[str, object], ...] = (("heldTasks", agent.held),)
    if verb is Verb.LOSE:
        data += (("reason", STALE), ("silentSeconds", (now - agent.last_seen_at) // SECOND))
    return AgentChange(agent, after, EVENT_TYPES[verb], data)


def terminate(agent: Agent, reason: str | None, now: Millis, *, graceful: bool) -> AgentChange:
    """What becomes of one that is to end: at once, or when it holds nothing any more."""
    if agent.status is State.TERMINATED:
        return AgentChange(agent, agent)
    if graceful and agent.held > 0:
        if agent.draining:
            return AgentChange(agent, agent)
        draining = msgspec.structs.replace(agent, draining=1, status_reason=reason, updated_at=now)
        data = (("reason", reason), ("heldTasks", agent.held))
        return AgentChange(agent, draining, "agent.draining", data)
    ended = msgspec.structs.replace(
        agent,
        status=State.TERMINATED,
        status_reason=reason,
        draining=0,
        look_at=None,
        terminated_at=now,
        updated_at=now,
    )
    return AgentChange(agent, ended, EVENT_TYPES[Verb.TERMINATE], (("graceful", graceful), ("reason", reason)))


# -- being heard of ----------------------------------------------------------------------------------------------


def apply_heartbeat(agent: Agent, command: RecordHeartbeat, now: Millis) -> Agent:
    """An agent that was heard of. Everything that a heartbeat says replaces what the last one said."""
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
    """Whether it was heard of so lately that to write down that it is still there would be for nothing."""
    return now - agent.last_seen_at < min(RECENTLY_SEEN, agent.stale_threshold_seconds * SECOND // 4)


def contact_due_in(agent: WaitingAgent, now: Millis) -> Millis:
    """In how long one that waits for work must be heard of again, which is well before its silence counts. At once, if
    it is lost, or is given nothing any more: then it is to ask, by which it is back, or is told."""
    if agent.draining or agent.status in (State.ERROR, State.TERMINATED):
        return 0
    return max(0, agent.last_seen_at + agent.stale_threshold_seconds * SECOND // 2 - now)


def belongs_in_history(agent: Agent, command: RecordHeartbeat, now: Millis) -> bool:
    """Whether a heartbeat goes into the history: it tells of a change, or the last one that did is old."""
    return (
        command.status is not agent.pulse_status
        or command.current_task_id != agent.current_task_id
        or now - agent.kept_at >= HISTORY_INTERVAL
    )


# -- what it may be given ----------------------------------------------------------------------------------------


def free_slots(agent: Agent, *, is_claiming: bool = False) -> int:
    """How many tasks it may still be given. One that asks for them is there, and not lost, whatever was believed."""
    is_lost = agent.status is State.ERROR and not is_claiming
    if agent.draining or is_lost or agent.status is State.TERMINATED:
        return 0
    return max(0, agent.max_concurrent_tasks - agent.held)


def claim_problem(agent: Agent) -> Problem | None:
    """Why it may be given none, whatever it holds."""
    if agent.status is State.TERMINATED:
        return errors.agent_terminated(agent.id)
    return errors.agent_draining(agent.id) if agent.draining else None
