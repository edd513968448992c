"""Nothing acknowledged was lost.

For every call that was answered with success the log has the event that it caused, of the subject and with the content
that the client was told of. A call whose outcome is not known needs none; whether what it may have left is whole is the
promise `agreement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.attempts import accepted, numbers, token_of
from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Op, Ref, Told
from quarterdeck.maintenance.history_checker.replay import Lives, reading
from quarterdeck.maintenance.history_checker.task_replay import Tales

NAME = "acknowledged"
MADE: Mapping[str, str] = {
    Op.SPAWN: "session.spawn",
    Op.INVOKE: "invocation.created",
    Op.DELEGATE: "delegation.create",
    Op.REGISTER: "service.register",
    Op.TASK_CREATE: "task.created",
}
"""What makes something: the answer has its id, and the log must have this event of it."""
MOVED: Mapping[str, frozenset[str]] = {
    Op.CANCEL: frozenset({"invocation.cancel_requested", "invocation.canceled"}),
    Op.REVOKE: frozenset({"delegation.revoke", "delegation.expire"}),
    Op.TASK_CANCEL: frozenset({"task.aborted"}),
}
"""What moves something: one of these, of what the path names."""
HELD: Mapping[str, str] = {Op.SUSPEND: "session.suspend", Op.RESUME: "session.resume"}
"""What is told of each time that it is done."""


class Heard:
    """Of the log, what the histories speak of."""

    def __init__(self, evidence: Evidence) -> None:
        names = {*MADE.values(), *HELD.values(), *(name for some in MOVED.values() for name in some)}
        wanted = {ref for call in evidence.history if (ref := _subject(call))}
        self.made: dict[tuple[str, Ref], Told] = {}
        self.times: Counter[tuple[str, Ref]] = Counter()
        self.lives = Lives(evidence)
        for event, told in reading(evidence):
            self.lives.feed(event, told)
            ref = (event.zone_id, event.subject)
            if event.type in names and ref in wanted and _named(event, told):
                self.made.setdefault((event.type, ref), told)
                self.times[event.type, ref] += 1


def _named(event: Event, told: Told) -> bool:
    """A suspension tells of everybody it reaches; the one that was asked for is its own cause."""
    return event.type not in HELD.values() or told.cause == event.subject


def _subject(call: Call) -> Ref | None:
    name = call.said.id if call.op in MADE else call.asked.id
    return None if name is None else (call.zone, name)


def judge(evidence: Evidence) -> Iterator[Finding]:
    heard = Heard(evidence)
    held: Counter[tuple[str, Ref]] = Counter()
    for call in evidence.done(*Op):
        ref = _subject(call)
        if ref is None:
            continue
        if call.op in MADE:
            yield from _made(call, ref, heard)
        elif call.op in MOVED:
            if not any((name, ref) in heard.made for name in _moves(call)):
                yield _lost(call, ref, f"the log says nothing of {ref[1]} that a {call.op} would leave")
        elif call.op in HELD:
            held[HELD[call.op], ref] += 1
            if held[HELD[call.op], ref] > heard.times[HELD[call.op], ref]:
                yield _lost(call, ref, f"the {call.op} of {ref[1]} was answered more often than the log tells of it")
        elif call.op == Op.TERMINATE:
            life = heard.lives.get(*ref)
            if life is None or life.ended_pos is None:
                yield _lost(call, ref, f"the end of {ref[1]} was acknowledged, and the log has none")
    yield from _completed(evidence)
    yield from _progressed(evidence)


def _moves(call: Call) -> frozenset[str]:
    """Whoever was told that it still runs was told that its end was asked for."""
    still_runs = call.op == Op.CANCEL and call.said.status == "running"
    return frozenset({"invocation.cancel_requested"}) if still_runs else MOVED[call.op]


def _made(call: Call, ref: Ref, heard: Heard) -> Iterator[Finding]:
    told = heard.made.get((MADE[call.op], ref))
    if told is None:
        yield _lost(call, ref, f"{ref[1]} was acknowledged, and the log has no {MADE[call.op]} of it")
        return
    for name in ("application_id", "parent_id", "service_id", "source_session_id", "target_session_id"):
        asked, kept = getattr(call.asked, name), getattr(told, name)
        if asked is not None and asked != kept and (kept is not None or call.op == Op.SPAWN):
            yield _lost(call, ref, f"{ref[1]} was asked for with {name} {asked}, and the log says {kept}")


def _completed(evidence: Evidence) -> Iterator[Finding]:
    for taken in accepted(evidence):
        call = taken.call
        if not taken.own or (taken.attempt is None and not any(end.verb in taken.wanted for end in taken.own)):
            which = "an attempt" if taken.attempt is None else f"attempt {taken.attempt}"
            name = call.asked.id or ""
            detail = f"the {call.op} of {which} of {name} was acknowledged, and in the log it has not ended so"
            yield _lost(call, (call.zone, name), detail)


def _progressed(evidence: Evidence) -> Iterator[Finding]:
    """A step that an attempt at a task has come to is told once in that attempt, however often it is said."""
    known = numbers(evidence)
    steps = {
        (event.zone_id, event.subject, told.attempt, told.current_step)
        for event, told, _ in Tales(evidence).walk()
        if event.type == "task.progressed"
    }
    for call in evidence.done(Op.TASK_PROGRESS):
        step = call.work.asked.current_step if call.work else None
        attempt = known.get(token_of(call))
        if step is None or attempt is None:
            continue
        ref = (call.zone, call.asked.id or "")
        if (*ref, attempt, step) not in steps:
            yield _lost(call, ref, f"attempt {attempt} of {ref[1]} came to {step!r}, and the log has it not")


def _lost(call: Call, ref: Ref, detail: str) -> Finding:
    return Finding(NAME, ref[0], ref[1], detail, call=call.where)
