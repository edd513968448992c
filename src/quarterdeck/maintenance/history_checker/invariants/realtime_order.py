"""Whoever begins after another's answer comes after it in the log.

An answer is given after the commit, and positions are in the order of commits. So what a call made that began after
another had been answered stands behind it; also when the two were answered by different servers. It holds between
calls whose times are of one clock, which those of one file are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import CREATE_EVENTS
from quarterdeck.maintenance.history_checker.model import Evidence, Op, Outcome, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.replay import SessionReplay, readable_events

NAME = "order"


@dataclass(frozen=True, slots=True)
class _LoggedCall:
    call: RecordedCall
    pos: int
    is_cause: bool
    """Whether this very call caused it: of an ending only somebody did, before the answer."""


def check(evidence: Evidence) -> Iterator[Violation]:
    by_file: dict[str, list[_LoggedCall]] = {}
    for logged in _logged_calls(evidence):
        by_file.setdefault(logged.call.file, []).append(logged)
    for calls in by_file.values():
        yield from _check_order(calls)


def _logged_calls(evidence: Evidence) -> Iterator[_LoggedCall]:
    """Calls whose effect has a position."""
    creations: dict[tuple[str, str, str], RecordedCall] = {}
    for call in evidence.history:
        if call.op in CREATE_EVENTS and call.has_created and call.response.id:
            creations.setdefault((CREATE_EVENTS[call.op], call.zone, call.response.id), call)
    sessions = SessionReplay(evidence)
    for event, data in readable_events(evidence):
        sessions.apply(event, data)
        # Once: a service may be registered again later, by somebody else.
        if creator := creations.pop((event.type, event.zone_id, event.subject), None):
            yield _LoggedCall(creator, event.pos, is_cause=True)
    for call in evidence.history:
        if call.op == Op.TERMINATE and call.outcome is Outcome.DONE:
            session = sessions.get(call.zone, call.request.id)
            if session and session.ended_pos is not None:
                yield _LoggedCall(call, session.ended_pos, is_cause=False)


def _check_order(calls: Sequence[_LoggedCall]) -> Iterator[Violation]:
    by_end = sorted(calls, key=lambda logged: logged.call.ended)
    latest: _LoggedCall | None = None
    index = 0
    for later in sorted(calls, key=lambda logged: logged.call.started):
        while index < len(by_end) and by_end[index].call.ended < later.call.started:
            if latest is None or by_end[index].pos > latest.pos:
                latest = by_end[index]
            index += 1
        if later.is_cause and latest is not None and later.pos < latest.pos:
            call, earlier = later.call, latest.call
            name = call.response.id or ""
            detail = (
                f"{name} stands at {later.pos}, though it was asked for when {earlier.response.id or earlier.request.id}, at "
                f"{latest.pos}, had been answered ({earlier.location})"
            )
            yield Violation(NAME, call.zone, name, detail, later.pos, call.location)
