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
    DETAILS_BYTES_MAX,
    LINES_MAX,
    Level,
    LogEntry,
    LogItem,
    LogLine,
    LogPage,
    LogPosition,
    LogView,
    NewLogLine,
)
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD

TRANSITION = "state_transition"
ERROR = "error"
FAILED = "task.failed"
EVENT_RENDERING: dict[str, tuple[Level, str]] = {
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
Redactor = Callable[[str], str]


# -- saying something --------------------------------------------------------------------------------------------


def append_problem(caller: Caller, task: Task | None, task_id: str, token: str | None) -> Problem | None:
    """Only whoever holds the task says something in its log, and only while it does."""
    if task is None:
        return errors.task_not_found(task_id)
    if token is None:
        return errors.token_required()
    is_other_agent = caller.agent_id is not None and caller.agent_id != task.agent_id
    if is_other_agent or token != task.attempt_token or task.status not in HELD:
        return errors.stale_attempt(task)
    return None


def log_full(used: int) -> LimitReached:
    return LimitReached(
        "log_full",
        f"The log of a task has {LINES_MAX} lines at most.",
        bound="lines",
        limit=LINES_MAX,
        used=used,
        frees="nothing: what was said stays said",
    )


def new_line(item: LogItem, line_id: str) -> NewLogLine:
    """A line as it was said. What stands under the name of a secret, or says itself that it is one, is gone here
    already, and never stored."""
    details = redaction.redact(item.details)
    encoded = msgspec.json.encode(details)
    if len(encoded) > DETAILS_BYTES_MAX:
        raise TooLarge("field_too_large", f"`details` may be {DETAILS_BYTES_MAX} bytes at most.", field="details")
    line = NewLogLine(line_id, item.level, item.event, item.message, encoded.decode(), item.stack_trace)
    return redact_line(line, redaction.redact_text)


def redact_line(line: NewLogLine, redact: Redactor) -> NewLogLine:
    """The same with something struck out of all that it says."""
    details = msgspec.json.decode(line.details)
    return msgspec.structs.replace(
        line,
        message=None if line.message is None else redact(line.message),
        stack_trace=None if line.stack_trace is None else redact(line.stack_trace),
        details=msgspec.json.encode(_redact_value(details, redact)).decode() if details else line.details,
    )


def _redact_value(value: object, redact: Redactor) -> object:
    """In each text by itself: struck out of the whole, a secret that is a number would leave no JSON behind."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): _redact_value(member, redact) for name, member in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, redact) for item in value]
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


class TransitionFilter(msgspec.Struct, frozen=True):
    """Which transitions are wanted: None is all of them."""

    types: tuple[str, ...] | None
    exhausted: bool | None = None


def transition_filter(level: Level | None, event: str | None) -> TransitionFilter:
    # The last of all failures is one of the failures, and told apart from the others by its data.
    searched_level = Level.ERROR if level is Level.CRITICAL else level
    types = tuple(
        name
        for name, (type_level, type_event) in EVENT_RENDERING.items()
        if (searched_level is None or type_level is searched_level) and (event is None or type_event == event)
    )
    if level is Level.CRITICAL:
        return TransitionFilter(tuple(name for name in types if name == FAILED), True)
    if level is Level.ERROR:
        return TransitionFilter(types, False)
    return TransitionFilter(None if level is None and event is None else types)


class _EventData(msgspec.Struct, frozen=True, rename="camel"):
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


_decode_event_data = msgspec.json.Decoder(_EventData).decode


def entry_from_transition(transition: Transition) -> LogEntry:
    event_data = _decode_event_data(transition.data)
    level, event = EVENT_RENDERING.get(transition.type, (Level.INFO, TRANSITION))
    return LogEntry(
        pos=transition.pos,
        number=None,
        id=transition.id,
        agent_id=event_data.agent_id,
        level=Level.CRITICAL if event_data.exhausted else level,
        event=event,
        message=render_message(transition, event_data),
        details=transition.data,
        previous_status=transition.from_state,
        new_status=transition.to_state,
        session_key=event_data.session_key,
        stack_trace=None,
        created_at=transition.at,
    )


def render_message(transition: Transition, event_data: _EventData) -> str:
    reason = "" if event_data.reason is None else f": {event_data.reason}"
    by_agent = "" if event_data.agent_id is None else f" by {event_data.agent_id}"
    match transition.type:
        case "task.created":
            return f"It was made by {transition.actor}{reason}."
        case "task.started":
            return f"Attempt {event_data.attempt} has begun{by_agent}."
        case "task.assigned":
            return f"It was assigned to {event_data.agent_id}, as attempt {event_data.attempt}."
        case "task.progressed":
            step = "" if event_data.current_step is None else f", {event_data.current_step}"
            return f"It is at {event_data.progress_percent} %{step}."
        case "task.failed" | "task.aborted":
            verb = "has failed" if transition.type == FAILED else "was aborted"
            if event_data.exhausted:
                return f"It {verb} for good, and no retries are left{reason}."
            if event_data.final:
                return f"It {verb} for good{reason}."
            after = (
                "" if event_data.available_at is None else f"; another attempt may begin at {event_data.available_at}"
            )
            return f"Attempt {event_data.attempt} {verb}{reason}{after}."
        case "task.unblocked":
            return "Everything it depends on is out of its way."
        case "task.warned":
            return f"It is long past its estimate{reason}."
        case other:
            return f"It was {other.removeprefix('task.')} by {transition.actor}{reason}."


def entry_from_line(line: LogLine) -> LogEntry:
    return LogEntry(
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


class LogPart(msgspec.Struct, frozen=True):
    """What was read of one half, in its order; `is_cut` if there is more of it."""

    entries: Sequence[LogEntry]
    is_truncated: bool


class PageRange(msgspec.Struct, frozen=True):
    """From where on a page is read, and where a half is gone on from if all of it was read: where it ends now, or
    backwards before its beginning."""

    start: LogPosition
    end: LogPosition
    limit: int
    oldest_first: bool


def merge_parts(transitions: LogPart, lines: LogPart, page_range: PageRange) -> LogPage:
    """One page of both."""
    transition_entries, line_entries = [*transitions.entries], [*lines.entries]
    page: list[LogEntry] = []
    i = j = 0
    while len(page) < page_range.limit:
        if (i == len(transition_entries) and transitions.is_truncated) or (
            j == len(line_entries) and lines.is_truncated
        ):
            # What comes next of that half is not known, and might come first.
            break
        if i == len(transition_entries) and j == len(line_entries):
            break
        takes_transition = j == len(line_entries) or (
            i < len(transition_entries)
            and _comes_first(transition_entries[i], line_entries[j], oldest_first=page_range.oldest_first)
        )
        page.append(transition_entries[i] if takes_transition else line_entries[j])
        i, j = (i + 1, j) if takes_transition else (i, j + 1)
    has_all_transitions = i == len(transition_entries) and not transitions.is_truncated
    has_all_lines = j == len(line_entries) and not lines.is_truncated
    pos = (
        page_range.end.pos
        if has_all_transitions
        else _last_position(transition_entries[:i], page_range.start.pos, "pos")
    )
    number = (
        page_range.end.number if has_all_lines else _last_position(line_entries[:j], page_range.start.number, "number")
    )
    return LogPage(page, LogPosition(pos, number), has_all_transitions and has_all_lines)


def _comes_first(transition: LogEntry, line: LogEntry, *, oldest_first: bool) -> bool:
    """Of the same moment the transition is the older one, in either order."""
    if oldest_first:
        return transition.created_at <= line.created_at
    return transition.created_at > line.created_at


def _last_position(taken: Sequence[LogEntry], default: int, field: str) -> int:
    return int(getattr(taken[-1], field)) if taken else default


def to_view(entry: LogEntry, task_id: str) -> LogView:
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
