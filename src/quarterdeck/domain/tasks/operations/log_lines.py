"""Writes lines to the logs of tasks: those of `domain.task_logs`, and the stack traces of failed attempts.

Stack traces are written here, because they are stored in the transaction that fails the attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quarterdeck.core import redaction
from quarterdeck.core.ids import new_id
from quarterdeck.domain.tasks.model.log_lines import Level, NewLogLine
from quarterdeck.domain.tasks.model.rows import Task, TaskRef
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import chunks

ERROR = "error"
"""The event of the line with the stack trace of a failed attempt."""
NO_LIMIT = 2**53
TaskLine = tuple[Task, NewLogLine]


async def add_log_lines(tx: Transaction, lines: Sequence[TaskLine], lines_max: int) -> set[TaskRef]:
    """Write lines to logs that stay within `lines_max` lines. Returns the tasks whose logs would exceed it."""
    [updated_rows] = await tx.read(Q.task_log_counts_add(batch=_count_by_task(lines), lines_max=lines_max))
    accepted = {(str(row[0]), str(row[1])) for row in updated_rows}
    _insert_lines(tx, [(task, line) for task, line in lines if task.ref in accepted])
    return {task.ref for task, _ in lines} - accepted


def write_stack_traces(tx: Transaction, stack_traces: Sequence[tuple[Task, str]]) -> None:
    """Store the stack traces of failed attempts, in the transaction that fails them.

    The line limit does not apply: retries already limit the number of failures, and users need these stack traces.
    """
    lines = [
        (
            task,
            NewLogLine(
                new_id(), Level.ERROR, ERROR, f"Attempt {task.attempt} failed.", "{}", redaction.redact_text(trace)
            ),
        )
        for task, trace in stack_traces
    ]
    for piece in chunks(_count_by_task(lines)):
        tx.write(Q.task_log_counts_add(batch=piece, lines_max=NO_LIMIT))
    _insert_lines(tx, lines)


def _count_by_task(lines: Sequence[TaskLine]) -> list[tuple[str, str, int]]:
    counts = Counter(task.ref for task, _ in lines)
    return [(*ref, count) for ref, count in sorted(counts.items())]


def _insert_lines(tx: Transaction, lines: Sequence[TaskLine]) -> None:
    """Insert these lines. `lines_after` counts the later lines of the task in this batch."""
    lines_after = Counter(task.ref for task, _ in lines)
    rows = []
    for task, line in lines:
        lines_after[task.ref] -= 1
        rows.append(
            (
                *(task.zone_id, task.id, line.id, lines_after[task.ref], task.agent_id, task.attempt),
                *(line.level, line.event, line.message, line.details, task.session_key),
                *(line.stack_trace, line.size, tx.now),
            )
        )
    for piece in chunks(rows):
        tx.write(Q.task_log_lines_insert(batch=piece))
