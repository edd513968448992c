"""The log of a task: who may say something in it, how its transitions read, and how its two halves become one.

A transition is not written a second time: it is an event, read as a line.

| event                 | level                                          | `event`           |
|-----------------------|------------------------------------------------|-------------------|
| task.failed           | ERROR; CRITICAL if it was the last retry        | state_transition  |
| task.aborted          | ERROR                                          | state_transition  |
| task.warned           | WARN                                           | warning           |
| task.progressed       | INFO                                           | progress_update   |
| task.changed          | INFO                                           | change            |
| task.unblocked        | INFO                                           | unblocked         |
| all others            | INFO                                           | state_transition  |

What an agent says has the level and the event that it says; `error` is where an attempt failed, with its stack trace.

Each half has an order of its own, that of its commits, and keeps it: a cursor is a place in each. They are merged by
time, which may be wrong by a moment where a clock was set back, and loses nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.errors import LimitReached, Problem, TooLarge
from quarterdeck.domain.tasks.model.log_types import (
    DETAILS_MAX,
    LINES_MAX,
    Entry,
    Level,
    Line,
    LogItem,
    LogPage,
    LogView,
    Place,
    SaidLine,
)
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD

TRANSITION = "state_transition"
ERROR = "error"
FAILED = "task.failed"
KINDS: dict[str, tuple[Level, str]] = {
    "task.created": (Level.INFO, TRANSITION),
    "task.assigned": (Level.INFO, TRANSITION),
    "task.started": (Level.INFO, TRANSITION),
    "task.released": (Level.INFO, TRANSITION),
    "task.paused": (Level.INFO, TRANSITION),
    "task.resumed": (Level.INFO, TRANSITION),
    "task.requeued": (Level.INFO, TRANSITION),
    "task.completed": (Level.INFO, TRANSITION),
    "task.archived": (Level.INFO, TRANSITION),
    FAILED: (Level.ERROR, TRANSITION),
    "task.aborted": (Level.ERROR, TRANSITION),
    "task.warned": (Level.WARN, "warning"),
    "task.progressed": (Level.INFO, "progress_update"),
    "task.changed": (Level.INFO, "change"),
    "task.unblocked": (Level.INFO, "unblocked"),
}
"""How each transition reads."""
Strike = Callable[[str], str]


# -- saying something --------------------------------------------------------------------------------------------


def may_say(caller: Caller, row: Task | None, task_id: str, token: str | None) -> Problem | None:
    """Only whoever holds the task says something in its log, and only while it does."""
    if row is None:
        return errors.not_found(task_id)
    if token is None:
        return errors.token_required()
    is_other = caller.agent_id is not None and caller.agent_id != row.agent_id
    if is_other or token != row.attempt_token or row.status not in HELD:
        return errors.stale(row)
    return None


def full(used: int) -> LimitReached:
    return LimitReached(
        "log_full",
        f"The log of a task has {LINES_MAX} lines at most.",
        bound="lines",
        limit=LINES_MAX,
        used=used,
        frees="nothing: what was said stays said",
    )


def said(item: LogItem, line_id: str) -> SaidLine:
    """A line as it was said. What stands under the name of a secret, or says itself that it is one, is gone here
    already, and never stored."""
    details = redaction.redacted(item.details)
    encoded = msgspec.json.encode(details)
    if len(encoded) > DETAILS_MAX:
        raise TooLarge("field_too_large", f"`details` may be {DETAILS_MAX} bytes at most.", field="details")
    line = SaidLine(line_id, item.level, item.event, item.message, encoded.decode(), item.stack_trace)
    return cleaned(line, redaction.redact_text)


def cleaned(line: SaidLine, strike: Strike) -> SaidLine:
    """The same with something struck out of all that it says."""
    details = msgspec.json.decode(line.details)
    return msgspec.structs.replace(
        line,
        message=None if line.message is None else strike(line.message),
        stack_trace=None if line.stack_trace is None else strike(line.stack_trace),
        details=msgspec.json.encode(_struck(details, strike)).decode() if details else line.details,
    )


def _struck(value: object, strike: Strike) -> object:
    """In each text by itself: struck out of the whole, a secret that is a number would leave no JSON behind."""
    if isinstance(value, str):
        return strike(value)
    if isinstance(value, dict):
        return {strike(name): _struck(member, strike) for name, member in value.items()}
    if isinstance(value, list):
        return [_struck(item, strike) for item in value]
    return value


# -- reading -----------------------------------------------------------------------------------------------------


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """An event, in the order of the select lists."""

    pos: int
    id: str
    type: str
    actor: str
    from_state: str | None
    to_state: str | None
    data: str
    at: Millis


class Wanted(msgspec.Struct, frozen=True):
    """Which transitions are wanted: None is all of them."""

    types: tuple[str, ...] | None
    exhausted: bool | None = None


def wanted(level: Level | None, event: str | None) -> Wanted:
    # The last of all failures is one of the failures, and told apart from the others by its data.
    of_level = Level.ERROR if level is Level.CRITICAL else level
    types = tuple(
        name
        for name, (its_level, its_event) in KINDS.items()
        if (of_level is None or its_level is of_level) and (event is None or its_event == event)
    )
    if level is Level.CRITICAL:
        return Wanted(tuple(name for name in types if name == FAILED), True)
    if level is Level.ERROR:
        return Wanted(types, False)
    return Wanted(None if level is None and event is None else types)


class _Told(msgspec.Struct, frozen=True, rename="camel"):
    """What of an event's data a line shows apart."""

    agent_id: str | None = None
    session_key: str | None = None
    attempt: int | None = None
    reason: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None
    exhausted: bool = False
    final: bool = False
    available_at: str | None = None


_told = msgspec.json.Decoder(_Told).decode


def read_as(transition: Transition) -> Entry:
    told = _told(transition.data)
    level, event = KINDS.get(transition.type, (Level.INFO, TRANSITION))
    return Entry(
        pos=transition.pos,
        number=None,
        id=transition.id,
        agent_id=told.agent_id,
        level=Level.CRITICAL if told.exhausted else level,
        event=event,
        message=sentence(transition, told),
        details=transition.data,
        previous_status=transition.from_state,
        new_status=transition.to_state,
        session_key=told.session_key,
        stack_trace=None,
        created_at=transition.at,
    )


def sentence(transition: Transition, told: _Told) -> str:
    why = "" if told.reason is None else f": {told.reason}"
    whose = "" if told.agent_id is None else f" by {told.agent_id}"
    match transition.type:
        case "task.created":
            return f"It was made by {transition.actor}{why}."
        case "task.started":
            return f"Attempt {told.attempt} has begun{whose}."
        case "task.assigned":
            return f"It was assigned to {told.agent_id}, as attempt {told.attempt}."
        case "task.progressed":
            step = "" if told.current_step is None else f", {told.current_step}"
            return f"It is at {told.progress_percent} %{step}."
        case "task.failed" | "task.aborted":
            how = "has failed" if transition.type == FAILED else "was aborted"
            if told.exhausted:
                return f"It {how} for good, and no retries are left{why}."
            if told.final:
                return f"It {how} for good{why}."
            after = "" if told.available_at is None else f"; another attempt may begin at {told.available_at}"
            return f"Attempt {told.attempt} {how}{why}{after}."
        case "task.unblocked":
            return "Everything it depends on is out of its way."
        case "task.warned":
            return f"It is long past its estimate{why}."
        case other:
            return f"It was {other.removeprefix('task.')} by {transition.actor}{why}."


def line_as(line: Line) -> Entry:
    return Entry(
        pos=None,
        number=line.number,
        id=line.id,
        agent_id=line.agent_id,
        level=line.level,
        event=line.event,
        message=line.message,
        details=line.details,
        previous_status=None,
        new_status=None,
        session_key=line.session_key,
        stack_trace=line.stack_trace,
        created_at=line.created_at,
    )


class Half(msgspec.Struct, frozen=True):
    """What was read of one half, in its order; `is_cut` if there is more of it."""

    entries: Sequence[Entry]
    is_cut: bool


class Span(msgspec.Struct, frozen=True):
    """From where on a page is read, and where a half is gone on from if all of it was read: where it ends now, or
    backwards before its beginning."""

    begin: Place
    end: Place
    limit: int
    oldest_first: bool


def merged(transitions: Half, lines: Half, span: Span) -> LogPage:
    """One page of both."""
    left, right = [*transitions.entries], [*lines.entries]
    page: list[Entry] = []
    i = j = 0
    while len(page) < span.limit:
        if (i == len(left) and transitions.is_cut) or (j == len(right) and lines.is_cut):
            # What comes next of that half is not known, and might come first.
            break
        if i == len(left) and j == len(right):
            break
        takes_left = j == len(right) or (
            i < len(left) and _comes_first(left[i], right[j], oldest_first=span.oldest_first)
        )
        page.append(left[i] if takes_left else right[j])
        i, j = (i + 1, j) if takes_left else (i, j + 1)
    all_left = i == len(left) and not transitions.is_cut
    all_right = j == len(right) and not lines.is_cut
    pos = span.end.pos if all_left else _reached(left[:i], span.begin.pos, "pos")
    number = span.end.number if all_right else _reached(right[:j], span.begin.number, "number")
    return LogPage(page, Place(pos, number), all_left and all_right)


def _comes_first(transition: Entry, line: Entry, *, oldest_first: bool) -> bool:
    """Of the same moment the transition is the older one, in either order."""
    if oldest_first:
        return transition.created_at <= line.created_at
    return transition.created_at > line.created_at


def _reached(taken: Sequence[Entry], before: int, half: str) -> int:
    return int(getattr(taken[-1], half)) if taken else before


def view(entry: Entry, task_id: str) -> LogView:
    return LogView(
        id=entry.id,
        task_id=task_id,
        agent_id=entry.agent_id,
        level=entry.level,
        event=entry.event,
        message=entry.message,
        details=msgspec.Raw(entry.details.encode()),
        previous_status=entry.previous_status,
        new_status=entry.new_status,
        session_key=entry.session_key,
        stack_trace=entry.stack_trace,
        created_at=iso(entry.created_at),
    )
