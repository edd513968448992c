"""No acknowledged change is lost.

The event log has an event for every successful call that creates, cancels, revokes, suspends, resumes or terminates an
object, ends an attempt, or reports a step of a task. A creation event has the values of the request. A call with
an unknown outcome needs no event; the invariant `agreement` checks that it took effect completely or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quarterdeck.core.ids import Ref
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.attempts import accepted_completions, attempt_numbers, attempt_token_of
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Op, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.nouns import TASK, noun_events
from quarterdeck.maintenance.history_checker.session_replay import SessionReplay, readable_events

NAME = "acknowledged"
CREATE_EVENTS: Mapping[str, str] = {
    Op.SPAWN: "session.spawn",
    Op.INVOKE: "invocation.created",
    Op.DELEGATE: "delegation.create",
    Op.REGISTER: "service.register",
    Op.TASK_CREATE: "task.created",
}
"""Calls that create an object: the response has its id, and the event log must have this event for it."""
CHANGE_EVENTS: Mapping[str, frozenset[str]] = {
    Op.CANCEL: frozenset({"invocation.cancel_requested", "invocation.canceled"}),
    Op.REVOKE: frozenset({"delegation.revoke", "delegation.expire"}),
    Op.TASK_CANCEL: frozenset({"task.aborted"}),
}
"""Calls that change the object in the path: the event log must have one of these events for it."""
SUSPENSION_EVENTS: Mapping[str, str] = {Op.SUSPEND: "session.suspend", Op.RESUME: "session.resume"}
"""Calls that cause an event each time they succeed."""


class LoggedEvents:
    """The events about the objects that the histories name."""

    def __init__(self, evidence: Evidence) -> None:
        event_types = {
            *CREATE_EVENTS.values(),
            *SUSPENSION_EVENTS.values(),
            *(event_type for types in CHANGE_EVENTS.values() for event_type in types),
        }
        refs = {ref for call in evidence.history if (ref := _subject_ref(call))}
        self.first_data: dict[tuple[str, Ref], EventData] = {}
        self.counts: Counter[tuple[str, Ref]] = Counter()
        self.sessions = SessionReplay(evidence)
        for event, data in readable_events(evidence):
            self.sessions.apply(event, data)
            ref = (event.zone_id, event.subject)
            if event.type in event_types and ref in refs and _is_requested(event, data):
                self.first_data.setdefault((event.type, ref), data)
                self.counts[event.type, ref] += 1


def _is_requested(event: Event, data: EventData) -> bool:
    """A suspension has an event for each affected session. The event of the requested session names itself as cause."""
    return event.type not in SUSPENSION_EVENTS.values() or data.cause == event.subject


def _subject_ref(call: RecordedCall) -> Ref | None:
    subject = call.response.id if call.op in CREATE_EVENTS else call.request.id
    return None if subject is None else (call.zone, subject)


def check(evidence: Evidence) -> Iterator[Violation]:
    logged = LoggedEvents(evidence)
    acknowledged_counts: Counter[tuple[str, Ref]] = Counter()
    for call in evidence.successful_calls(*Op):
        ref = _subject_ref(call)
        if ref is None:
            continue
        if call.op in CREATE_EVENTS:
            yield from _check_created(call, ref, logged)
        elif call.op in CHANGE_EVENTS:
            if not any((event_type, ref) in logged.first_data for event_type in _expected_events(call)):
                yield _violation(call, ref, f"the event log has no event for the {call.op} of {ref[1]}")
        elif call.op in SUSPENSION_EVENTS:
            acknowledged_counts[SUSPENSION_EVENTS[call.op], ref] += 1
            if acknowledged_counts[SUSPENSION_EVENTS[call.op], ref] > logged.counts[SUSPENSION_EVENTS[call.op], ref]:
                yield _violation(
                    call, ref, f"the {call.op} of {ref[1]} succeeded more often than the event log records"
                )
        elif call.op == Op.TERMINATE:
            session = logged.sessions.get(*ref)
            if session is None or session.ended_pos is None:
                yield _violation(call, ref, f"the end of {ref[1]} was acknowledged, but is not in the event log")
    yield from _check_completions(evidence)
    yield from _check_progress(evidence)


def _expected_events(call: RecordedCall) -> frozenset[str]:
    """The events that a change may cause. If the response status is `running`, the cancellation was only requested."""
    is_still_running = call.op == Op.CANCEL and call.response.status == "running"
    return frozenset({"invocation.cancel_requested"}) if is_still_running else CHANGE_EVENTS[call.op]


def _check_created(call: RecordedCall, ref: Ref, logged: LoggedEvents) -> Iterator[Violation]:
    data = logged.first_data.get((CREATE_EVENTS[call.op], ref))
    if data is None:
        detail = f"{ref[1]} was acknowledged, but the event log has no {CREATE_EVENTS[call.op]} for it"
        yield _violation(call, ref, detail)
        return
    for field in ("application_id", "parent_id", "service_id", "source_session_id", "target_session_id"):
        requested, actual = getattr(call.request, field), getattr(data, field)
        if requested is not None and requested != actual and (actual is not None or call.op == Op.SPAWN):
            detail = f"{ref[1]} was requested with {field} {requested}, but the event log has {actual}"
            yield _violation(call, ref, detail)


def _check_completions(evidence: Evidence) -> Iterator[Violation]:
    for completion in accepted_completions(evidence):
        call = completion.call
        if not completion.own_ends or (
            completion.attempt is None and not any(end.verb in completion.expected_verbs for end in completion.own_ends)
        ):
            attempt_text = "an attempt" if completion.attempt is None else f"attempt {completion.attempt}"
            subject = call.request.id or ""
            detail = f"the {call.op} of {attempt_text} of {subject} was acknowledged, but is not in the event log"
            yield _violation(call, (call.zone, subject), detail)


def _check_progress(evidence: Evidence) -> Iterator[Violation]:
    """Every acknowledged step of an attempt has an event."""
    numbers_by_token = attempt_numbers(evidence)
    steps = {
        (event.zone_id, event.subject, data.attempt, data.current_step)
        for _, event, data in noun_events(evidence, TASK)
        if event.type == "task.progressed"
    }
    for call in evidence.successful_calls(Op.TASK_PROGRESS):
        step = call.request.current_step
        attempt = numbers_by_token.get(attempt_token_of(call))
        if step is None or attempt is None:
            continue
        ref = (call.zone, call.request.id or "")
        if (*ref, attempt, step) not in steps:
            yield _violation(call, ref, f"step {step!r} of attempt {attempt} of {ref[1]} is not in the event log")


def _violation(call: RecordedCall, ref: Ref, detail: str) -> Violation:
    return Violation(NAME, ref[0], ref[1], detail, call=call.location)
