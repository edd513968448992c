"""Retention: archives ended tasks after `task_archive_days` and deletes archived tasks after `task_retention_days`.

The sweep scans the whole table in slices, because there is no index on the time at which tasks end: updating one on
every completion would cost more than the scans. Each process keeps its position only in memory, so a restarted process
scans from the beginning. Several processes may scan at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.tasks.model.commands import Archive, TaskResult
from quarterdeck.domain.tasks.model.rows import State, TaskRef, TaskSettings
from quarterdeck.domain.tasks.queries import COORDINATOR, COSTS, LOGS, Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode

RETENTION = "task-retention"
BATCH = 500
"""Number of tasks that are archived concurrently, or deleted per transaction."""
SLICE = 5_000
"""Number of tasks that one statement scans."""
SLICES_MAX = 100
"""Maximum number of slices per pass: 500,000 tasks."""


class _TaskRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    status: str
    id: str
    final: int
    updated_at: Millis


_decode_tags = msgspec.json.Decoder(list[str]).decode
START = _TaskRow("", "", "", 0, 0)


class TaskRetention:
    def __init__(
        self, cross_zone_engine: Engine, submit: Callable[[Archive], Awaitable[TaskResult]], settings: TaskSettings
    ) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._submit = submit
        self._archive_ms = round(settings.task_archive_days * DAY)
        self._retention_ms = round(settings.task_retention_days * DAY)
        self._position = START

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(RETENTION, every_ms, SLICE * SLICES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        count = 0
        for _ in range(SLICES_MAX):
            to_archive, to_delete = await self._cross_zone_engine.read(self._scan_slice)
            await self._archive(to_archive)
            for start in range(0, len(to_delete), BATCH):
                chunk = to_delete[start : start + BATCH]
                await self._cross_zone_engine.transact(partial(delete_past_retention, refs=chunk))
            count += len(to_archive) + len(to_delete)
            if self._position == START:
                break
        return count

    async def _scan_slice(self, tx: Transaction) -> tuple[list[TaskRef], list[TaskRef]]:
        """Scan one slice. Returns (tasks to archive, tasks to delete)."""
        position = self._position
        [rows] = await tx.read(
            COORDINATOR.tasks_slice(zone_id=position.zone_id, status=position.status, id=position.id, limit=SLICE)
        )
        scanned = decode(rows, _TaskRow)
        self._position = scanned[-1] if len(scanned) == SLICE else START
        to_archive = [
            (row.zone_id, row.id)
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

    async def _archive(self, refs: Sequence[TaskRef]) -> None:
        for start in range(0, len(refs), BATCH):
            submissions = [
                self._submit(Archive(zone_id=zone_id, id=task_id)) for zone_id, task_id in refs[start : start + BATCH]
            ]
            for outcome in await asyncio.gather(*submissions, return_exceptions=True):
                # A task that was retried or deleted after the scan is skipped. Any other kind of error fails the pass.
                if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound | Conflict):
                    raise outcome


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
    for statement in (
        Q.task_dependencies_remove,
        LOGS.task_log_lines_delete_expired,
        LOGS.task_log_counts_delete_expired,
        COSTS.task_costs_delete_expired,
        COSTS.task_budgets_delete_expired,
    ):
        tx.write(statement(batch=batch))
