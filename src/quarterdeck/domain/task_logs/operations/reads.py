"""Reads the transitions and the lines of a task as one log.

Transitions are in the event log. Lines are in a separate table, in commit order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from quarterdeck.domain.access import operations as access
from quarterdeck.domain.task_logs import rules
from quarterdeck.domain.task_logs.model import PAGE_BYTES_MAX, LogFilter, LogLine, LogPage, LogPosition
from quarterdeck.domain.task_logs.queries import Q
from quarterdeck.domain.task_logs.rules import LogPart, PageRange, Transition
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.rows import TaskRef
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.engine.event_log import POSITION_MAX
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

READ_PERMISSION = "tasks.read"
FIRST_POSITION = LogPosition(0, 0)
"""Before all entries: reading oldest first starts here, and reading newest first ends here."""
LAST_POSITION = LogPosition(POSITION_MAX, POSITION_MAX)
"""After all entries: reading newest first starts here."""


async def read_log(tx: Transaction, filters: LogFilter) -> LogPage:
    """Read one page. A reader that reads oldest first can continue later at the position of the page."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    start = filters.position or (FIRST_POSITION if filters.oldest_first else LAST_POSITION)
    task_rows, [head], event_rows, line_rows = await tx.read(
        tasks.load_statement([(filters.zone_id, filters.id)]),
        Q.task_log_head(zone_id=filters.zone_id, task_id=filters.id),
        _transitions_statement(filters, start),
        _lines_statement(filters, start),
    )
    if not task_rows:
        raise errors.task_not_found(filters.id)
    transitions = LogPart(
        [rules.entry_from_transition(transition) for transition in decode(event_rows, Transition)],
        len(event_rows) > filters.limit,
    )
    lines = decode([row[1:] for row in line_rows], LogLine)
    line_count = int(str(line_rows[0][0])) if line_rows else 0
    line_part = LogPart(
        [rules.entry_from_line(line) for line in lines], line_count > filters.limit or line_count > len(lines)
    )
    end = _end_position(start, head, transitions, lines) if filters.oldest_first else FIRST_POSITION
    return rules.merge_parts(transitions, line_part, PageRange(start, end, filters.limit, filters.oldest_first))


def _end_position(start: LogPosition, head: Row, transitions: LogPart, lines: Sequence[LogLine]) -> LogPosition:
    """Return the end of both sources, including entries that were committed after the head was read."""
    pos, number = (int(str(position)) for position in head)
    return LogPosition(
        max([pos, start.pos, *(entry.pos or 0 for entry in transitions.entries)]),
        max([number, start.number, *(line.number for line in lines)]),
    )


def _transitions_statement(filters: LogFilter, start: LogPosition) -> BoundStatement:
    transition_filter = rules.transition_filter(filters.level, filters.event)
    exhausted = transition_filter.retries_exhausted
    if filters.oldest_first:
        statement = partial(Q.task_log_transitions, after=start.pos)
    else:
        statement = partial(Q.task_log_transitions_newest_first, before=start.pos)
    return statement(
        subject=filters.id,
        zone_id=filters.zone_id,
        any_type=int(transition_filter.types is None),
        types=[(name,) for name in transition_filter.types or ()],
        exhausted=None if exhausted is None else int(exhausted),
        limit=filters.limit + 1,
    )


def _lines_statement(filters: LogFilter, start: LogPosition) -> BoundStatement:
    if filters.oldest_first:
        statement = partial(Q.task_log_lines_page, after=start.number)
    else:
        statement = partial(Q.task_log_lines_newest_first, before=start.number)
    return statement(
        task_id=filters.id,
        zone_id=filters.zone_id,
        level=filters.level,
        event=filters.event,
        limit=filters.limit + 1,
        bytes=PAGE_BYTES_MAX,
    )


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a task's log: the position of its last event, and the number of its last line."""

    zone_id: str
    task_id: str
    pos: int
    number: int


async def read_log_ends(tx: Transaction, tasks: Iterable[TaskRef]) -> list[LogEnd]:
    return await tx.fetch(LogEnd, Q.task_log_ends(batch=[*tasks]))
