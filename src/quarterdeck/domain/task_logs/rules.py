"""The log of a task: who may add lines, how transitions are rendered, and how lines and transitions are merged.

Transitions are not stored twice: they are read from the event log and rendered as log entries.

| event type            | level                                          | `event`           |
|-----------------------|------------------------------------------------|-------------------|
| task.failed           | ERROR; CRITICAL if no retry is left            | state_transition  |
| task.aborted          | ERROR                                          | state_transition  |
| task.warned           | WARN                                           | warning           |
| task.progressed       | INFO                                           | progress_update   |
| task.changed          | INFO                                           | change            |
| task.unblocked        | INFO                                           | unblocked         |
| all others            | INFO                                           | state_transition  |

Agents choose the level and `event` of the lines they add. A line with the event `error` holds the stack trace of a
failed attempt.

Lines and transitions are each in commit order, and a cursor holds a position in both. They are merged by time. If a
clock was set back, entries may be slightly out of order, but none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.errors import LimitReached, Problem, TooLarge
from quarterdeck.domain.task_logs.model import (
    DETAILS_BYTES_MAX,
    LINES_MAX,
    LogEntry,
    LogItem,
    LogLine,
    LogPage,
    LogPosition,
    LogView,
)
from quarterdeck.domain.tasks.model.log_lines import Level, NewLogLine
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD

TRANSITION = "state_transition"
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
"""Event type → (level, `event`)"""
Redactor = Callable[[str], str]


# -- add lines ---------------------------------------------------------------------------------------------------


def append_problem(caller: Caller, task: Task | None, task_id: str, token: str | None) -> Problem | None:
    """The error if the caller may not add lines, or None. Only the holder of the current attempt may."""
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
        f"The task's log has {used} of {LINES_MAX} lines. The new lines were not added.",
        bound="lines",
        limit=LINES_MAX,
        used=used,
        frees="nothing: lines are not deleted before their task",
    )


def new_line(item: LogItem, line_id: str) -> NewLogLine:
    """The line to store. Values under secret-like names and secret-like strings are redacted here, so they are never
    stored."""
    details = redaction.redact(item.details)
    encoded = msgspec.json.encode(details)
    if len(encoded) > DETAILS_BYTES_MAX:
        raise TooLarge("field_too_large", f"`details` is larger than {DETAILS_BYTES_MAX} bytes.", field="details")
    line = NewLogLine(line_id, item.level, item.event, item.message, encoded.decode(), item.stack_trace)
    return redact_line(line, redaction.redact_text)


def redact_line(line: NewLogLine, redact: Redactor) -> NewLogLine:
    """Apply `redact` to every string in the line."""
    details = msgspec.json.decode(line.details)
    return msgspec.structs.replace(
        line,
        message=None if line.message is None else redact(line.message),
        stack_trace=None if line.stack_trace is None else redact(line.stack_trace),
        details=msgspec.json.encode(_redact_value(details, redact)).decode() if details else line.details,
    )


def _redact_value(value: object, redact: Redactor) -> object:
    # Redact each string separately: redacting the encoded JSON could replace a number and make the JSON invalid.
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): _redact_value(member, redact) for name, member in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, redact) for item in value]
    return value


# -- read --------------------------------------------------------------------------------------------------------


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """An event, in the column order of the statements `task_log_transitions*`."""

    pos: int
    id: str
    type: str
    actor: str
    from_state: str | None
    to_state: str | None
    data: str
    at: Millis


class TransitionFilter(msgspec.Struct, frozen=True):
    """Which transitions to read. A field that is None does not filter."""

    types: tuple[str, ...] | None
    retries_exhausted: bool | None = None


def transition_filter(level: Level | None, event: str | None) -> TransitionFilter:
    # CRITICAL and ERROR share the type task.failed. The event's data distinguishes them.
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
    """The members of an event's data that a log entry shows, as fields or in its message."""

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
            return f"Created by {transition.actor}{reason}."
        case "task.started":
            return f"Attempt {event_data.attempt} started{by_agent}."
        case "task.assigned":
            return f"Attempt {event_data.attempt} assigned to {event_data.agent_id}."
        case "task.progressed":
            step = "" if event_data.current_step is None else f", {event_data.current_step}"
            return f"Progress: {event_data.progress_percent} %{step}."
        case "task.failed" | "task.aborted":
            verb = "failed" if transition.type == FAILED else "aborted"
            if event_data.exhausted:
                return f"Task {verb}, no retries left{reason}."
            if event_data.final:
                return f"Task {verb}{reason}."
            retry = (
                "" if event_data.available_at is None else f"; the next attempt may start at {event_data.available_at}"
            )
            return f"Attempt {event_data.attempt} {verb}{reason}{retry}."
        case "task.unblocked":
            return "All dependencies are met."
        case "task.warned":
            return f"The attempt is long past its estimate{reason}."
        case other:
            return f"{other.removeprefix('task.').capitalize()} by {transition.actor}{reason}."


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
    """The entries that were read from one source, in the order of that source."""

    entries: Sequence[LogEntry]
    is_truncated: bool
    """The source has more entries."""


class PageRange(msgspec.Struct, frozen=True):
    start: LogPosition
    end: LogPosition
    """Where the next page continues in a source that this page has read completely: after its last entry or, when
    reading newest first, before its first."""
    limit: int
    oldest_first: bool


def merge_parts(transitions: LogPart, lines: LogPart, page_range: PageRange) -> LogPage:
    """Merge transitions and lines into one page."""
    transition_entries, line_entries = [*transitions.entries], [*lines.entries]
    page: list[LogEntry] = []
    i = j = 0
    while len(page) < page_range.limit:
        if (i == len(transition_entries) and transitions.is_truncated) or (
            j == len(line_entries) and lines.is_truncated
        ):
            # The next entry of a truncated source is not loaded, and it might precede the entries that are.
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
    """Whether the transition precedes the line on the page. If their times are equal, the transition is older."""
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
