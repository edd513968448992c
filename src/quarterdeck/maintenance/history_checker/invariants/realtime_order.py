"""A call that starts after another call's response has a later position in the event log.

A response is sent after the commit, and positions are in the order of commits. So this holds even if different servers
answered the two calls. Only the calls of one file are compared, because their times come from one clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import CREATE_EVENTS
from quarterdeck.maintenance.history_checker.model import Evidence, Op, Outcome, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.session_replay import SessionReplay, readable_events

NAME = "order"


@dataclass(frozen=True, slots=True)
class _LoggedCall:
    call: RecordedCall
    first_pos: int
    last_pos: int
    """Later than `first_pos` if a service was registered more than once. If a client got no response and registered
    again, the history does not show which of the events this call caused."""
    is_cause: bool
    """Whether this call certainly caused the event. False for a terminate call: its session may already have
    ended for another reason."""


def check(evidence: Evidence) -> Iterator[Violation]:
    by_file: dict[str, list[_LoggedCall]] = {}
    for logged in _logged_calls(evidence):
        by_file.setdefault(logged.call.file, []).append(logged)
    for calls in by_file.values():
        yield from _check_order(calls)


def _logged_calls(evidence: Evidence) -> Iterator[_LoggedCall]:
    """The calls whose effect has a position in the event log."""
    creations: dict[tuple[str, str, str], RecordedCall] = {}
    for call in evidence.history:
        if call.op in CREATE_EVENTS and call.has_created and call.response.id:
            creations.setdefault((CREATE_EVENTS[call.op], call.zone, call.response.id), call)
    sessions = SessionReplay(evidence)
    positions: dict[tuple[str, str, str], tuple[int, int]] = {}
    for event, data in readable_events(evidence):
        sessions.apply(event, data)
        key = (event.type, event.zone_id, event.subject)
        if key in creations:
            first_pos, _ = positions.get(key, (event.pos, event.pos))
            positions[key] = (first_pos, event.pos)
    for key, (first_pos, last_pos) in positions.items():
        yield _LoggedCall(creations[key], first_pos, last_pos, is_cause=True)
    for call in evidence.history:
        if call.op == Op.TERMINATE and call.outcome is Outcome.DONE:
            session = sessions.get(call.zone, call.request.id)
            if session and session.ended_pos is not None:
                yield _LoggedCall(call, session.ended_pos, session.ended_pos, is_cause=False)


def _check_order(calls: Sequence[_LoggedCall]) -> Iterator[Violation]:
    by_end = sorted(calls, key=lambda logged: logged.call.ended)
    highest: _LoggedCall | None = None
    index = 0
    for later in sorted(calls, key=lambda logged: logged.call.started):
        while index < len(by_end) and by_end[index].call.ended < later.call.started:
            if highest is None or by_end[index].first_pos > highest.first_pos:
                highest = by_end[index]
            index += 1
        if later.is_cause and highest is not None and later.last_pos < highest.first_pos:
            call, earlier = later.call, highest.call
            created_id = call.response.id or ""
            detail = (
                f"{created_id} is at position {later.last_pos}, but was requested after the response for "
                f"{earlier.response.id or earlier.request.id} at position {highest.first_pos} ({earlier.location})"
            )
            yield Violation(NAME, call.zone, created_id, detail, later.last_pos, call.location)
