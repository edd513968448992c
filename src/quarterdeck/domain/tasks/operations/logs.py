"""Adds lines to the log of a task, and reads lines and transitions as one log.

Transitions are in the event log. Lines are in a separate table, in commit order.

Adding a line does not lock the zone, because no decision depends on lines. Agents that log a lot therefore do not delay
claims or completions. The row of the task is not locked either; it does not matter if the attempt ends after its token
was checked. A transaction waits only for others that add lines to the same task, because they update the same counter
row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.tasks.model.log_types import (
    LINES_MAX,
    PAGE_BYTES_MAX,
    AddLogLines,
    Level,
    LogFilter,
    LogLine,
    LogPage,
    LogPosition,
    NewLogLine,
)
from quarterdeck.domain.tasks.model.rows import TABLE, Task, TaskRef
from quarterdeck.domain.tasks.queries import LOGS, Q
from quarterdeck.domain.tasks.rules import errors, log_rendering
from quarterdeck.domain.tasks.rules.log_rendering import LogPart, PageRange, Transition
from quarterdeck.engine.event_log import POSITION_MAX
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.secrets import FieldCipher, FieldRef
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, chunks

READ_PERMISSION = "tasks.read"
WORK_PERMISSION = "tasks.work"
NO_LIMIT = 2**53
FIRST_POSITION = LogPosition(0, 0)
"""Before all entries: reading oldest first starts here, and reading newest first ends here."""
LAST_POSITION = LogPosition(POSITION_MAX, POSITION_MAX)
"""After all entries: reading newest first starts here."""


# -- add lines ---------------------------------------------------------------------------------------------------


class LogWriter:
    """Runs the batches of the log lane. It wakes waiting readers itself, because adding a line emits no event."""

    def __init__(self, cipher: FieldCipher, wake: Callable[[], None]) -> None:
        self._cipher = cipher
        self._wake = wake

    async def add(self, tx: Transaction, commands: Sequence[AddLogLines]) -> list[list[str] | Problem | Busy]:
        task_refs = sorted({(command.zone_id, command.id) for command in commands})
        first_lines = [(command.zone_id, command.id, command.lines[0].id) for command in commands]
        batch, [task_rows, count_rows, existing_rows] = await access.load_with_roles(
            tx,
            commands,
            Q.tasks_get(batch=task_refs),
            LOGS.task_log_counts_and_secrets(batch=task_refs),
            LOGS.task_log_lines_existing(batch=first_lines),
        )
        tasks_by_ref = {(task.zone_id, task.id): task for task in decode(task_rows, Task)}
        log_batch = _LogBatch(count_rows, {str(row[0]) for row in existing_rows})
        outcomes: list[list[str] | Problem | Busy] = []
        for command in commands:
            task = tasks_by_ref.get((command.zone_id, command.id))
            problem = batch.permission_problem(command, WORK_PERMISSION) or log_rendering.append_problem(
                command.caller, task, command.id, command.attempt_token
            )
            if problem is None and task is not None:
                problem = log_batch.add(command, task)
            outcomes.append(problem or [line.id for line in command.lines])
        if not log_batch.added_lines:
            return outcomes
        full_logs = await self._write(tx, log_batch)
        return [
            log_rendering.log_full(LINES_MAX)
            if (command.zone_id, command.id) in full_logs and isinstance(outcome, list)
            else outcome
            for command, outcome in zip(commands, outcomes, strict=True)
        ]

    async def _write(self, tx: Transaction, log_batch: _LogBatch) -> set[TaskRef]:
        """Write the lines. Returns the tasks whose logs another transaction has filled up in the meantime."""
        # Redact before the counter row is locked, because redaction is slow.
        redacted = [
            (task, self._redact(line, log_batch.secrets.get((task.zone_id, task.id))))
            for task, line in log_batch.added_lines
        ]
        counts = Counter[TaskRef]((task.zone_id, task.id) for task, _ in log_batch.added_lines)
        batch = [(*ref, count) for ref, count in sorted(counts.items())]
        [updated_rows] = await tx.read(LOGS.task_log_counts_add(batch=batch, lines_max=LINES_MAX))
        accepted = {(str(row[0]), str(row[1])) for row in updated_rows}
        lines = [(task, line) for task, line in redacted if (task.zone_id, task.id) in accepted]
        _insert_lines(tx, lines)
        tx.on_commit(self._wake)
        return counts.keys() - accepted

    def _redact(self, line: NewLogLine, stored: Sequence[tuple[str, FieldRef]] | None) -> NewLogLine:
        """Redact the secrets of the line's task. `new_line` has already redacted secret-like strings."""
        return log_rendering.redact_line(line, partial(self._cipher.redact, stored=stored)) if stored else line


class _LogBatch:
    """The logs that a batch adds to, and the lines that it adds."""

    def __init__(self, count_rows: Sequence[Row], existing_ids: set[str]) -> None:
        self._line_counts: dict[TaskRef, int] = {}
        self._existing_ids = existing_ids
        self.secrets: dict[TaskRef, list[tuple[str, FieldRef]]] = {}
        """Task → its encrypted fields: the stored value of each, and the field reference it was encrypted with."""
        self.added_lines: list[tuple[Task, NewLogLine]] = []
        for zone_id, task_id, lines, context, checkpoint in count_rows:
            ref = (str(zone_id), str(task_id))
            self._line_counts[ref] = int(str(lines))
            fields = (("input_context", context), ("checkpoint_data", checkpoint))
            self.secrets[ref] = [
                (str(text), (ref[0], TABLE, ref[1], name)) for name, text in fields if text is not None
            ]

    def add(self, command: AddLogLines, task: Task) -> Problem | None:
        if command.lines[0].id in self._existing_ids:
            # The response to COMMIT was lost and the batch is being retried, but its lines are already stored.
            return None
        ref = (command.zone_id, command.id)
        used = self._line_counts.get(ref, 0)
        if used + len(command.lines) > LINES_MAX:
            return log_rendering.log_full(used)
        self._line_counts[ref] = used + len(command.lines)
        self.added_lines += [(task, line) for line in command.lines]
        return None


def write_stack_traces(tx: Transaction, stack_traces: Sequence[tuple[Task, str]]) -> None:
    """Store the stack traces of failed attempts, in the transaction that fails them.

    The line limit does not apply: retries already limit the number of failures, and users need these stack traces.
    """
    lines = [
        (
            task,
            NewLogLine(
                new_id(), Level.ERROR, log_rendering.ERROR, _failure_message(task), "{}", redaction.redact_text(trace)
            ),
        )
        for task, trace in stack_traces
    ]
    counts = Counter[TaskRef]((task.zone_id, task.id) for task, _ in lines)
    batch = [(*ref, count) for ref, count in sorted(counts.items())]
    for piece in chunks(batch):
        tx.write(LOGS.task_log_counts_add(batch=piece, lines_max=NO_LIMIT))
    _insert_lines(tx, lines)


def _failure_message(task: Task) -> str:
    return f"Attempt {task.attempt} failed."


def _insert_lines(tx: Transaction, lines: Sequence[tuple[Task, NewLogLine]]) -> None:
    """Insert these lines. `lines_after` counts the later lines of the task in this batch."""
    lines_after = Counter[TaskRef]((task.zone_id, task.id) for task, _ in lines)
    rows = []
    for task, line in lines:
        ref = (task.zone_id, task.id)
        lines_after[ref] -= 1
        rows.append(
            (
                *(task.zone_id, task.id, line.id, lines_after[ref], task.agent_id, task.attempt),
                *(line.level, line.event, line.message, line.details, task.session_key),
                *(line.stack_trace, line.size, tx.now),
            )
        )
    for piece in chunks(rows):
        tx.write(LOGS.task_log_lines_insert(batch=piece))


# -- read --------------------------------------------------------------------------------------------------------


async def read_log(tx: Transaction, filters: LogFilter) -> LogPage:
    """Read one page. A reader that reads oldest first can continue later at the position of the page."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    start = filters.position or (FIRST_POSITION if filters.oldest_first else LAST_POSITION)
    task_rows, [head], event_rows, line_rows = await tx.read(
        Q.tasks_get(batch=[(filters.zone_id, filters.id)]),
        LOGS.task_log_head(zone_id=filters.zone_id, task_id=filters.id),
        _transitions_statement(filters, start),
        _lines_statement(filters, start),
    )
    if not task_rows:
        raise errors.task_not_found(filters.id)
    transitions = LogPart(
        [log_rendering.entry_from_transition(transition) for transition in decode(event_rows, Transition)],
        len(event_rows) > filters.limit,
    )
    lines = decode([row[1:] for row in line_rows], LogLine)
    line_count = int(str(line_rows[0][0])) if line_rows else 0
    line_part = LogPart(
        [log_rendering.entry_from_line(line) for line in lines], line_count > filters.limit or line_count > len(lines)
    )
    end = _end_position(start, head, transitions, lines) if filters.oldest_first else FIRST_POSITION
    return log_rendering.merge_parts(transitions, line_part, PageRange(start, end, filters.limit, filters.oldest_first))


def _end_position(start: LogPosition, head: Row, transitions: LogPart, lines: Sequence[LogLine]) -> LogPosition:
    """Return the end of both sources, including entries that were committed after the head was read."""
    pos, number = (int(str(position)) for position in head)
    return LogPosition(
        max([pos, start.pos, *(entry.pos or 0 for entry in transitions.entries)]),
        max([number, start.number, *(line.number for line in lines)]),
    )


def _transitions_statement(filters: LogFilter, start: LogPosition) -> BoundStatement:
    transition_filter = log_rendering.transition_filter(filters.level, filters.event)
    exhausted = transition_filter.retries_exhausted
    if filters.oldest_first:
        statement = partial(LOGS.task_log_transitions, after=start.pos)
    else:
        statement = partial(LOGS.task_log_transitions_newest_first, before=start.pos)
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
        statement = partial(LOGS.task_log_lines_page, after=start.number)
    else:
        statement = partial(LOGS.task_log_lines_newest_first, before=start.number)
    return statement(
        task_id=filters.id,
        zone_id=filters.zone_id,
        level=filters.level,
        event=filters.event,
        limit=filters.limit + 1,
        bytes=PAGE_BYTES_MAX,
    )


# -- follow ------------------------------------------------------------------------------------------------------


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a task's log: the position of its last event, and the number of its last line."""

    zone_id: str
    task_id: str
    pos: int
    number: int


async def read_log_ends(tx: Transaction, tasks: Iterable[TaskRef]) -> list[LogEnd]:
    return await tx.fetch(LogEnd, LOGS.task_log_ends(batch=[*tasks]))
