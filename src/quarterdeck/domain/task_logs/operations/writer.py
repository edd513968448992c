"""Adds lines to the logs of tasks.

Adding a line does not lock the zone, because no decision depends on lines. Agents that log a lot therefore do not delay
claims or completions. The row of the task is not locked either; it does not matter if the attempt ends after its token
was checked. A transaction waits only for others that add lines to the same task, because they update the same counter
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.task_logs import rules
from quarterdeck.domain.task_logs.model import LINES_MAX, AddLogLines
from quarterdeck.domain.task_logs.queries import Q
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.log_lines import NewLogLine
from quarterdeck.domain.tasks.model.rows import TABLE, Task, TaskRef
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.secrets import FieldCipher, FieldRef
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode

WORK_PERMISSION = "tasks.work"


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
            tasks.load_statement(task_refs),
            Q.task_log_counts_and_secrets(batch=task_refs),
            Q.task_log_lines_existing(batch=first_lines),
        )
        tasks_by_ref = {task.ref: task for task in decode(task_rows, Task)}
        log_batch = _LogBatch(count_rows, {str(row[0]) for row in existing_rows})
        outcomes: list[list[str] | Problem | Busy] = []
        for command in commands:
            task = tasks_by_ref.get((command.zone_id, command.id))
            problem = batch.permission_problem(command, WORK_PERMISSION) or rules.append_problem(
                command.caller, task, command.id, command.attempt_token
            )
            if problem is None and task is not None:
                problem = log_batch.add(command, task)
            outcomes.append(problem or [line.id for line in command.lines])
        if not log_batch.added_lines:
            return outcomes
        # Redact before the counter row is locked, because redaction is slow.
        redacted = [(task, self._redact(line, log_batch.secrets.get(task.ref))) for task, line in log_batch.added_lines]
        full_logs = await tasks.add_log_lines(tx, redacted, LINES_MAX)
        tx.on_commit(self._wake)
        return [
            rules.log_full(LINES_MAX)
            if (command.zone_id, command.id) in full_logs and isinstance(outcome, list)
            else outcome
            for command, outcome in zip(commands, outcomes, strict=True)
        ]

    def _redact(self, line: NewLogLine, stored: Sequence[tuple[str, FieldRef]] | None) -> NewLogLine:
        """Redact the secrets of the line's task. `new_line` has already redacted secret-like strings."""
        return rules.redact_line(line, partial(self._cipher.redact, stored=stored)) if stored else line


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
            return rules.log_full(used)
        self._line_counts[ref] = used + len(command.lines)
        self.added_lines += [(task, line) for line in command.lines]
        return None
