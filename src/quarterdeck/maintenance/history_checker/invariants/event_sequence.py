"""The events form a valid sequence.

Every session is spawned once and terminated at most once, after its children. Each event starts from the state in which
the previous one ended. The same progress of a task is not recorded twice in a row. Positions have no gaps. The other
invariants rely on this.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Violation, decode_event_data
from quarterdeck.maintenance.history_checker.nouns import TASK
from quarterdeck.maintenance.history_checker.replay import ATTEMPT_NOUNS, Replay, ReplayedObject
from quarterdeck.maintenance.history_checker.session_replay import SessionReplay

NAME = "story"
SESSION_EVENTS = ("session.spawn", "session.suspend", "session.resume", "session.terminate")


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions = SessionReplay(evidence)
    states: dict[tuple[str, str], str | None] = {}
    previous: Event | None = None
    for event in evidence.log:
        if previous is not None and event.pos != previous.pos + 1:
            yield _violation(event, f"the previous event is at position {previous.pos}")
        previous = event
        data = TASK.decode_data(event) if event.type.startswith("task.") else decode_event_data(event)
        if data is None:
            yield _violation(event, f"the data of {event.type} is malformed")
            continue
        if event.type in SESSION_EVENTS:
            yield from _check_session(evidence, event, sessions, states)
        sessions.apply(event, data)
    yield from _check_states(evidence)


def _check_session(
    evidence: Evidence, event: Event, sessions: SessionReplay, states: dict[tuple[str, str], str | None]
) -> Iterator[Violation]:
    ref = (event.zone_id, event.subject)
    session = sessions.get(*ref)
    if event.type == "session.spawn":
        if session is not None and session.spawned_pos:
            yield _violation(event, f"session {event.subject} was already spawned at {session.spawned_pos}")
    elif session is None:
        if evidence.is_log_complete:
            yield _violation(event, f"{event.type} of {event.subject}, which was never spawned")
    elif event.type == "session.terminate":
        if session.terminated_pos is not None:
            yield _violation(event, f"session {event.subject} was already terminated at {session.terminated_pos}")
        # A child with `ended_pos` 0 ended below the floor, where its own termination event may be, too.
        open_children = [
            child.id for child in sessions.children(session) if child.ended_pos != 0 and not child.terminated_pos
        ]
        if open_children:
            yield _violation(event, f"session {event.subject} ended before its child {open_children[0]}")
    if ref in states and states[ref] != event.from_state:
        yield _violation(event, f"the event has from_state {event.from_state}, but {event.subject} was {states[ref]}")
    states[ref] = event.to_state


def _violation(event: Event, detail: str) -> Violation:
    return Violation(NAME, event.zone_id, event.subject, detail, event.pos)


# -- states --------------------------------------------------------------------------------------------------------

MANUAL_RETRY = "retry"
"""The `reason` of a `task.requeued` event that a client's retry caused."""
UNSTARTED_FAILURE_REASONS = frozenset({"dependency_failed", "dependency_cycle"})
"""The reasons for which a task can fail while no agent holds it."""


def _check_states(evidence: Evidence) -> Iterator[Violation]:
    for event, data, subject in Replay(evidence, *ATTEMPT_NOUNS).walk():
        noun = subject.noun
        if noun.starts_attempt(event) and subject.is_held:
            # The invariant `one-holder` reports this.
            continue
        detail = _transition_detail(event, subject)
        if detail is not None:
            yield Violation(noun.transition_invariant, event.zone_id, event.subject, detail, event.pos)
        elif noun is TASK and (detail := _task_detail(event, data, subject)) is not None:
            yield _violation(event, detail)


def _transition_detail(event: Event, subject: ReplayedObject) -> str | None:
    noun = subject.noun
    before, after = noun.transition(event, subject.state)
    if before == subject.state and (before, after) in noun.transitions.get(event.type, ()):
        return None
    if event.type not in noun.transitions:
        return f"{event.type} of {event.subject} is not a known {noun.name} event"
    verb, state = event.type.removeprefix(f"{noun.name}."), subject.state or "unknown"
    if before != subject.state:
        return f"{noun.name} {event.subject} was {verb} from {before}, but its state was {state}"
    return noun.forbidden_text.format(
        noun=noun.name, id=event.subject, verb=verb, before=before, after=after, state=state
    )


def _task_detail(event: Event, data: EventData, task: ReplayedObject) -> str | None:
    if event.type == "task.failed" and not task.is_held and data.reason not in UNSTARTED_FAILURE_REASONS:
        return f"task {event.subject} failed ({data.reason}), but no agent held it"
    if event.type == "task.requeued" and task.is_final and data.reason != MANUAL_RETRY:
        return f"task {event.subject} had ended permanently, but was requeued ({data.reason})"
    if event.type == "task.progressed" and (data.progress_percent, data.current_step) == task.last_progress:
        return f"the progress of {event.subject} was recorded twice"
    return None
