"""How an agent stands, by what was heard of it, and what it may still be given."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.state_machine import Machine
from quarterdeck.domain.agents.model import KEPT_EVERY, Agent, Beat, Health, Shown, State, Verb, Waiting
from quarterdeck.domain.agents.rules import errors

STALE = "stale"
JUST_HEARD = SECOND
"""So soon after it was heard of, that it is there tells nothing new."""
AGENT = Machine(
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
TOLD = {
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
class Moved:
    """An agent before and after, and what there is to tell of it: an event's type and what stands in it."""

    before: Agent
    after: Agent
    told: str | None = None
    data: tuple[tuple[str, object], ...] = ()


# -- how it stands -----------------------------------------------------------------------------------------------


def shown(agent: Agent) -> Shown:
    """IDLE or WORKING is nothing that an agent does: it follows from what it holds."""
    if agent.status is State.IDLE and agent.held > 0:
        return Shown.WORKING
    return Shown(agent.status.value)


def expected_within(agent: Agent) -> int:
    """Seconds until it is to be heard of again: its interval, or sooner where that is no less than the time after
    which silence counts."""
    return min(agent.heartbeat_interval_seconds, max(1, agent.stale_threshold_seconds // 2))


def silent_from(agent: Agent) -> Millis:
    """When it will have been silent for too long, if nothing more is heard of it."""
    return agent.last_seen_at + agent.stale_threshold_seconds * SECOND


def is_unheard(agent: Agent) -> bool:
    """Whether it was registered by the server and has not spoken since: nobody looks whether it is there."""
    return agent.look_at is None and agent.status in (State.IDLE, State.DEGRADED)


def is_silent(agent: Agent, now: Millis) -> bool:
    """Of an agent that is launched for each task nothing is to be heard while it has none: nobody is there. And one
    that has never spoken is not missed."""
    is_nowhere = agent.launcher is not None and agent.held == 0
    return now >= silent_from(agent) and not is_nowhere and not is_unheard(agent)


def is_news(agent: Agent, now: Millis) -> bool:
    """Whether somebody has to look at an agent that was heard of: it stands otherwise than is stored, or it has spoken
    for the first time, and is to be missed from now on."""
    return judged(agent, now).after.status is not agent.status or is_unheard(agent)


def judged(agent: Agent, now: Millis) -> Moved:
    """How an agent stands by when, and how, it was last heard of; and when to look again.

    Of one that was lost nothing is to be looked for: should it be heard of, that is a reason to look. But an agent that
    is launched cannot be heard of before it is launched, so it is given another chance after the same time again. One
    that has never spoken stays as it is until it does.
    """
    if agent.status is State.TERMINATED or (is_unheard(agent) and now >= silent_from(agent)):
        return _stands(agent, agent.status, agent.status_reason, None, now)
    if not is_silent(agent, now):
        absent = now >= silent_from(agent)
        degraded = agent.pulse_status is Health.DEGRADED and not absent
        look_at = (now if absent else agent.last_seen_at) + agent.stale_threshold_seconds * SECOND
        reason = None if agent.status is State.ERROR else agent.status_reason
        return _stands(agent, State.DEGRADED if degraded else State.IDLE, reason, look_at, now)
    again = None if agent.launcher is None else now + agent.stale_threshold_seconds * SECOND
    if agent.status is State.ERROR:
        return _stands(agent, agent.status, agent.status_reason, again, now)
    return _stands(agent, State.ERROR, STALE, again, now)


def _stands(agent: Agent, status: State, reason: str | None, look_at: Millis | None, now: Millis) -> Moved:
    moves = status is not agent.status
    after = msgspec.structs.replace(
        agent,
        status=status,
        status_reason=reason if moves else agent.status_reason,
        look_at=look_at,
        updated_at=now if moves else agent.updated_at,
    )
    if not moves:
        return Moved(agent, after)
    verb = next(verb for verb in Verb if AGENT.target(verb, agent.status) is status)
    data: tuple[tuple[str, object], ...] = (("heldTasks", agent.held),)
    if verb is Verb.LOSE:
        data += (("reason", STALE), ("silentSeconds", (now - agent.last_seen_at) // SECOND))
    return Moved(agent, after, TOLD[verb], data)


def terminated(agent: Agent, reason: str | None, now: Millis, *, graceful: bool) -> Moved:
    """What becomes of one that is to end: at once, or when it holds nothing any more."""
    if agent.status is State.TERMINATED:
        return Moved(agent, agent)
    if graceful and agent.held > 0:
        if agent.draining:
            return Moved(agent, agent)
        drains = msgspec.structs.replace(agent, draining=1, status_reason=reason, updated_at=now)
        data = (("reason", reason), ("heldTasks", agent.held))
        return Moved(agent, drains, "agent.draining", data)
    ended = msgspec.structs.replace(
        agent,
        status=State.TERMINATED,
        status_reason=reason,
        draining=0,
        look_at=None,
        terminated_at=now,
        updated_at=now,
    )
    return Moved(agent, ended, TOLD[Verb.TERMINATE], (("graceful", graceful), ("reason", reason)))


# -- being heard of ----------------------------------------------------------------------------------------------


def beaten(agent: Agent, beat: Beat, now: Millis) -> Agent:
    """An agent that was heard of. Everything that a heartbeat says replaces what the last one said."""
    return msgspec.structs.replace(
        agent,
        pulse_status=beat.status,
        current_task_id=beat.current_task_id,
        progress_percent=beat.progress_percent,
        current_step=beat.current_step,
        memory_mb=beat.memory_mb,
        cpu_percent=beat.cpu_percent,
        last_seen_at=now,
        kept_at=now if kept(agent, beat, now) else agent.kept_at,
    )


def was_just_heard(agent: Agent, now: Millis) -> bool:
    """Whether it was heard of so lately that to write down that it is still there would be for nothing."""
    return now - agent.last_seen_at < min(JUST_HEARD, agent.stale_threshold_seconds * SECOND // 4)


def heard_within(waiting: Waiting, now: Millis) -> Millis:
    """In how long one that waits for work must be heard of again, which is well before its silence counts. At once, if
    it is lost, or is given nothing any more: then it is to ask, by which it is back, or is told."""
    if waiting.draining or waiting.status in (State.ERROR, State.TERMINATED):
        return 0
    return max(0, waiting.last_seen_at + waiting.stale_threshold_seconds * SECOND // 2 - now)


def kept(agent: Agent, beat: Beat, now: Millis) -> bool:
    """Whether a heartbeat goes into the history: it tells of a change, or the last one that did is old."""
    return (
        beat.status is not agent.pulse_status
        or beat.current_task_id != agent.current_task_id
        or now - agent.kept_at >= KEPT_EVERY
    )


# -- what it may be given ----------------------------------------------------------------------------------------


def free_slots(agent: Agent, *, speaks: bool = False) -> int:
    """How many tasks it may still be given. One that asks for them is there, and not lost, whatever was believed."""
    is_lost = agent.status is State.ERROR and not speaks
    if agent.draining or is_lost or agent.status is State.TERMINATED:
        return 0
    return max(0, agent.max_concurrent_tasks - agent.held)


def claim_problem(agent: Agent) -> Problem | None:
    """Why it may be given none, whatever it holds."""
    if agent.status is State.TERMINATED:
        return errors.has_terminated(agent.id)
    return errors.is_draining(agent.id) if agent.draining else None
