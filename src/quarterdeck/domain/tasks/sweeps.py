"""Retention: archives ended tasks after `task_archive_days` and deletes archived tasks after `task_retention_days`.

The sweep scans the whole table in slices, because there is no index on the time at which tasks end: updating one on
every completion would cost more than the scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.costs import operations as costs
from quarterdeck.domain.tasks.model.commands import Archive
from quarterdeck.domain.tasks.model.rows import State, TaskRef, TaskSettings
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.engine.sweep_passes import ROWS_PER_SCAN, SLICE, Position, scan, submit_all
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

RETENTION = "task-retention"
BATCH = 500
"""Number of tasks that are archived concurrently, or deleted per transaction."""


class _TaskRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    status: str
    id: str
    final: int
    updated_at: Millis


_decode_tags = msgspec.json.Decoder(list[str]).decode
START = _TaskRow("", "", "", 0, 0)


class TaskRetention:
    def __init__(self, cross_zone_engine: Engine, submit: SubmitTaskCommand, settings: TaskSettings) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._submit = submit
        self._archive_ms = round(settings.task_archive_days * DAY)
        self._retention_ms = round(settings.task_retention_days * DAY)
        self.run_once = scan(START, self._process_slice)

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(RETENTION, every_ms, ROWS_PER_SCAN, self.run_once)

    async def _process_slice(self, position: Position[_TaskRow]) -> int:
        to_archive, to_delete = await self._cross_zone_engine.read(lambda tx: self._scan_slice(tx, position))
        # A task that was retried or deleted after the scan is skipped.
        await submit_all(self._submit, to_archive, BATCH, ignored=(NotFound, Conflict))
        for start in range(0, len(to_delete), BATCH):
            chunk = to_delete[start : start + BATCH]
            await self._cross_zone_engine.transact(partial(delete_past_retention, refs=chunk))
        return len(to_archive) + len(to_delete)

    async def _scan_slice(self, tx: Transaction, position: Position[_TaskRow]) -> tuple[list[Archive], list[TaskRef]]:
        """Scan one slice. Returns (commands for tasks to archive, tasks to delete)."""
        last = position.value
        scanned = await tx.fetch(
            _TaskRow, COORDINATOR.tasks_slice(zone_id=last.zone_id, status=last.status, id=last.id, limit=SLICE)
        )
        position.advance(scanned)
        to_archive = [
            Archive(zone_id=row.zone_id, id=row.id)
            for row in scanned
            if row.updated_at < tx.now - self._archive_ms and (row.final or row.status == State.COMPLETED)
            if row.status != State.ARCHIVED
        ]
        to_delete = [
            (row.zone_id, row.id)
            for row in scanned
            if row.status == State.ARCHIVED and row.updated_at < tx.now - self._retention_ms
        ]
        return to_archive, to_delete


async def delete_past_retention(tx: Transaction, refs: Sequence[TaskRef]) -> None:
    """Delete archived tasks with their tags, dependencies, log lines, costs and budgets."""
    [deleted] = await tx.read(COORDINATOR.tasks_delete_expired(batch=sorted(refs)))
    batch = sorted((str(zone_id), str(task_id)) for zone_id, task_id, _ in deleted)
    if not batch:
        return
    tags = [
        (str(zone_id), tag, str(task_id)) for zone_id, task_id, encoded in deleted for tag in _decode_tags(str(encoded))
    ]
    if tags:
        tx.write(Q.task_tags_remove(batch=sorted(tags)))
    tx.write(Q.task_dependencies_remove(batch=batch))
    tx.write(COORDINATOR.task_log_lines_delete_expired(batch=batch))
    tx.write(COORDINATOR.task_log_counts_delete_expired(batch=batch))
    for statement in costs.delete_statements(batch):
        tx.write(statement)
