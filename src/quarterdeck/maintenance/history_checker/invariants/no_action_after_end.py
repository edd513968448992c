"""After its end nobody acted again.

A session has ended from the position of its own event on, or of the cascade that stamped it, or from the instant its
time ran out. After that it parents nothing, registers nothing, neither gives nor is given authority, nothing is invoked
from it or on it and nothing of its begins, it neither falls asleep nor wakes; and no call succeeds whose credential
spoke for it. The same is asked of those who sleep, for what a suspended session may not do; and of agents that are lost
or have ended, that they begin no task.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import MADE
from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Ref, Told
from quarterdeck.maintenance.history_checker.replay import Life, Lives, reading
from quarterdeck.maintenance.history_checker.task_model import task_told_by
from quarterdeck.maintenance.history_checker.task_replay import begins

NAME = "after-the-end"


def judge(evidence: Evidence) -> Iterator[Finding]:
    lives, spoken = Lives(evidence), _spoken_for(evidence)
    for event, told in reading(evidence):
        for who, how in _acting(event, told):
            if life := lives.get(event.zone_id, who):
                yield from _late(event, life, how)
        if call := spoken.pop((event.type, event.zone_id, event.subject), None):
            yield from _late_bearer(event, call, lives.get(call.zone, call.session))
        lives.feed(event, told)
    yield from _check_tasks(evidence, NAME)


def _spoken_for(evidence: Evidence) -> dict[tuple[str, str, str], Call]:
    """By the event that it caused: the call that was made for a session. Only what was new was caused by it."""
    return {
        (MADE[call.op], call.zone, call.said.id): call
        for call in evidence.history
        if call.session and call.created and call.op in MADE and call.said.id
    }


def _acting(event: Event, told: Told) -> Iterator[tuple[str | None, str]]:
    """Who must be alive for this event to be, and what it does."""
    match event.type:
        case "session.spawn":
            yield told.parent_id, "was the parent of a spawn"
        case "session.suspend" | "session.resume":
            yield event.subject, f"was told to {event.type.removeprefix('session.')}"
        case "delegation.create":
            yield told.source_session_id, "delegated"
            yield told.target_session_id, "was delegated to"
        case "service.register":
            # Whose it is. One that is its application's alone names nobody, and waits for nobody's end.
            yield told.agent_id, "registered a service"
        case "invocation.created":
            yield told.source_session_id, "invoked"
            yield told.target_session_id, "was invoked"
        case "invocation.started":
            yield told.source_session_id, "had an invocation begun"
            yield told.target_session_id, "was to run an invocation"


SLEEPING = frozenset({"was told to suspend", "was told to resume"})
"""What may happen to a suspended session; all else is for those who are awake."""


def _late(event: Event, life: Life, how: str) -> Iterator[Finding]:
    if life.is_live(event.at):
        if life.asleep and how not in SLEEPING:
            detail = f"the session {life.id} {how} ({event.subject}) while it was suspended"
            yield Finding(NAME, event.zone_id, life.id, detail, event.pos)
        return
    detail = f"the session {life.id} {how} ({event.subject}) after {_end(life)}"
    yield Finding(NAME, event.zone_id, life.id, detail, event.pos)


def _late_bearer(event: Event, call: Call, life: Life | None) -> Iterator[Finding]:
    if life is not None and not life.is_live(event.at):
        detail = f"a {call.op} was made for the session {life.id} ({event.subject}) after {_end(life)}"
        yield Finding(NAME, event.zone_id, life.id, detail, event.pos, call.where)


def _end(life: Life) -> str:
    return "its time had run out" if life.ended_pos is None else f"its end at {life.ended_pos}"


GONE = frozenset({"ERROR", "TERMINATED"})


def _check_tasks(evidence: Evidence, promise: str) -> Iterator[Finding]:
    gone: dict[Ref, int] = {}
    """Where each of those ended who have."""
    for event in evidence.log:
        if event.type.startswith("agent.") and event.to_state is not None:
            ref = (event.zone_id, event.subject)
            if event.to_state in GONE:
                gone[ref] = event.pos
            else:
                gone.pop(ref, None)
        elif begins(event) and (told := task_told_by(event)) is not None:
            pos = gone.get((event.zone_id, told.agent_id or ""))
            if pos is not None:
                detail = f"the agent {told.agent_id} began {event.subject}, and was gone since {pos}"
                yield Finding(promise, event.zone_id, event.subject, detail, event.pos)
