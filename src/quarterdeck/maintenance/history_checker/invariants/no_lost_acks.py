"""Nothing acknowledged was lost.

For every call that was answered with success the log has the event that it caused, of the subject and with the content
that the client was told of. A call whose outcome is not known needs none; whether what it may have left is whole is the
promise `agreement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.attempts import accepted_completions, attempt_numbers, attempt_token_of
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Op, RecordedCall, Ref, Violation
from quarterdeck.maintenance.history_checker.replay import SessionReplay, readable_events
from quarterdeck.maintenance.history_checker.task_replay import TaskReplay

NAME = "acknowledged"
CREATE_EVENTS: Mapping[str, str] = {
    Op.SPAWN: "session.spawn",
    Op.INVOKE: "invocation.created",
    Op.DELEGATE: "delegation.create",
    Op.REGISTER: "service.register",
    Op.TASK_CREATE: "task.created",
}
"""What makes something: the answer has its id, and the log must have this event of it."""
CHANGE_EVENTS: Mapping[str, frozenset[str]] = {
    Op.CANCEL: frozenset({"invocation.cancel_requested", "invocation.canceled"}),
    Op.REVOKE: frozenset({"delegation.revoke", "delegation.expire"}),
    Op.TASK_CANCEL: frozenset({"task.aborted"}),
}
"""What moves something: one of these, of what the path names."""
SUSPENSION_EVENTS: Mapping[str, str] = {Op.SUSPEND: "session.suspend", Op.RESUME: "session.resume"}
"""What is told of each time that it is done."""


class LoggedEvents:
    """Of the log, what the histories speak of."""

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
    """A suspension tells of everybody it reaches; the one that was asked for is its own cause."""
    return event.type not in SUSPENSION_EVENTS.values() or data.cause == event.subject


def _subject_ref(call: RecordedCall) -> Ref | None:
    name = call.response.id if call.op in CREATE_EVENTS else call.request.id
    return None if name is None else (call.zone, name)


def check(evidence: Evidence) -> Iterator[Violation]:
    logged = LoggedEvents(evidence)
    acknowledged: Counter[tuple[str, Ref]] = Counter()
    for call in evidence.successful_calls(*Op):
        ref = _subject_ref(call)
        if ref is None:
            continue
        if call.op in CREATE_EVENTS:
            yield from _check_created(call, ref, logged)
        elif call.op in CHANGE_EVENTS:
            if not any((name, ref) in logged.first_data for name in _expected_events(call)):
                yield _violation(call, ref, f"the log says nothing of {ref[1]} that a {call.op} would leave")
        elif call.op in SUSPENSION_EVENTS:
            acknowledged[SUSPENSION_EVENTS[call.op], ref] += 1
            if acknowledged[SUSPENSION_EVENTS[call.op], ref] > logged.counts[SUSPENSION_EVENTS[call.op], ref]:
                yield _violation(
                    call, ref, f"the {call.op} of {ref[1]} was answered more often than the log tells of it"
                )
        elif call.op == Op.TERMINATE:
            session = logged.sessions.get(*ref)
            if session is None or session.ended_pos is None:
                yield _violation(call, ref, f"the end of {ref[1]} was acknowledged, and the log has none")
    yield from _check_completions(evidence)
    yield from _check_progress(evidence)


def _expected_events(call: RecordedCall) -> frozenset[str]:
    """Whoever was told that it still runs was told that its end was asked for."""
    still_runs = call.op == Op.CANCEL and call.response.status == "running"
    return frozenset({"invocation.cancel_requested"}) if still_runs else CHANGE_EVENTS[call.op]


def _check_created(call: RecordedCall, ref: Ref, logged: LoggedEvents) -> Iterator[Violation]:
    data = logged.first_data.get((CREATE_EVENTS[call.op], ref))
    if data is None:
        yield _violation(call, ref, f"{ref[1]} was acknowledged, and the log has no {CREATE_EVENTS[call.op]} of it")
        return
    for name in ("application_id", "parent_id", "service_id", "source_session_id", "target_session_id"):
        requested, actual = getattr(call.request, name), getattr(data, name)
        if requested is not None and requested != actual and (actual is not None or call.op == Op.SPAWN):
            yield _violation(call, ref, f"{ref[1]} was asked for with {name} {requested}, and the log says {actual}")


def _check_completions(evidence: Evidence) -> Iterator[Violation]:
    for completion in accepted_completions(evidence):
        call = completion.call
        if not completion.own_ends or (
            completion.attempt is None and not any(end.verb in completion.expected_verbs for end in completion.own_ends)
        ):
            attempt_text = "an attempt" if completion.attempt is None else f"attempt {completion.attempt}"
            name = call.request.id or ""
            detail = f"the {call.op} of {attempt_text} of {name} was acknowledged, and in the log it has not ended so"
            yield _violation(call, (call.zone, name), detail)


def _check_progress(evidence: Evidence) -> Iterator[Violation]:
    """A step that an attempt at a task has come to is told once in that attempt, however often it is said."""
    numbers_by_token = attempt_numbers(evidence)
    steps = {
        (event.zone_id, event.subject, data.attempt, data.current_step)
        for event, data, _ in TaskReplay(evidence).walk()
        if event.type == "task.progressed"
    }
    for call in evidence.successful_calls(Op.TASK_PROGRESS):
        step = call.task_data.request.current_step if call.task_data else None
        attempt = numbers_by_token.get(attempt_token_of(call))
        if step is None or attempt is None:
            continue
        ref = (call.zone, call.request.id or "")
        if (*ref, attempt, step) not in steps:
            yield _violation(call, ref, f"attempt {attempt} of {ref[1]} came to {step!r}, and the log has it not")


def _violation(call: RecordedCall, ref: Ref, detail: str) -> Violation:
    return Violation(NAME, ref[0], ref[1], detail, call=call.location)
