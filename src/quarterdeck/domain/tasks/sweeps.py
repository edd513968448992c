"""The sweep of tasks that are over: put away after a while, and removed a long while after that.

It walks round and round the table in slices, since no index tells how long ago a task ended: one more index would cost
every completion more than a walk an hour does. The place it has come to is kept in this process only: losing it costs a
walk from the beginning, and several walkers at once move nothing that one of them would not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.tasks.model.commands import Archive, Outcome
from quarterdeck.domain.tasks.model.rows import Ref, State, TaskSettings
from quarterdeck.domain.tasks.queries import COORDINATING, LINES, MONEY, Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import decode

RETENTION = "task-retention"
BATCH = 500
SLICE = 5_000
"""Tasks that one statement looks at."""
SLICES_MAX = 100
"""Slices that one pass looks at: half a million tasks."""


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    status: str
    id: str
    final: int
    updated_at: Millis


_tags = msgspec.json.Decoder(list[str]).decode
BEGINNING = _Seen("", "", "", 0, 0)


class TaskRetention:
    def __init__(self, everywhere: Engine, submit: Callable[[Archive], Awaitable[Outcome]], told: TaskSettings) -> None:
        self._everywhere = everywhere
        self._submit = submit
        self._archive_ms = round(told.task_archive_days * DAY)
        self._keep_ms = round(told.task_retention_days * DAY)
        self._place = BEGINNING

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(RETENTION, every_ms, SLICE * SLICES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        moved = 0
        for _ in range(SLICES_MAX):
            old, oldest = await self._everywhere.read(self._slice)
            await self._put_away(old)
            for begin in range(0, len(oldest), BATCH):
                part = oldest[begin : begin + BATCH]
                await self._everywhere.transact(partial(forget, refs=part))
            moved += len(old) + len(oldest)
            if self._place == BEGINNING:
                break
        return moved

    async def _slice(self, tx: Tx) -> tuple[list[Ref], list[Ref]]:
        """Those to be put away, and those to be removed."""
        at = self._place
        [rows] = await tx.read(COORDINATING.tasks_slice(zone_id=at.zone_id, status=at.status, id=at.id, limit=SLICE))
        seen = decode(rows, _Seen)
        self._place = seen[-1] if len(seen) == SLICE else BEGINNING
        old = [
            (each.zone_id, each.id)
            for each in seen
            if each.updated_at < tx.now - self._archive_ms and (each.final or each.status == State.COMPLETED)
            if each.status != State.ARCHIVED
        ]
        oldest = [
            (each.zone_id, each.id)
            for each in seen
            if each.status == State.ARCHIVED and each.updated_at < tx.now - self._keep_ms
        ]
        return old, oldest

    async def _put_away(self, refs: Sequence[Ref]) -> None:
        for begin in range(0, len(refs), BATCH):
            asked = [self._submit(Archive(zone_id=zone, id=name)) for zone, name in refs[begin : begin + BATCH]]
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                # Begun anew or gone between finding and moving is nobody's loss; anything else is worth a failed pass.
                if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound | Conflict):
                    raise outcome


async def forget(tx: Tx, refs: Sequence[Ref]) -> None:
    """Removes tasks that are put away, with everything that is kept of them."""
    [gone] = await tx.read(COORDINATING.tasks_forget(batch=[*sorted(refs)]))
    batch: list[tuple[object, ...]] = [*sorted((str(zone_id), str(name)) for zone_id, name, _ in gone)]
    if not batch:
        return
    tags: list[tuple[object, ...]] = [
        (str(zone_id), tag, str(name)) for zone_id, name, of in gone for tag in _tags(str(of))
    ]
    if tags:
        tx.write(Q.task_tags_remove(batch=sorted(tags)))
    for statement in (
        Q.task_dependencies_remove,
        LINES.task_lines_forget,
        LINES.task_log_counts_forget,
        MONEY.task_costs_forget,
        MONEY.task_budgets_forget,
    ):
        tx.write(statement(batch=batch))
