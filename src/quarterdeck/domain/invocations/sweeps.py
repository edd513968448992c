"""Sweeps for invocations. The retention sweep deletes rows itself. The other sweeps find rows and submit commands to
lanes, which change the rows under the zone's lock.

| sweep                | finds                                                        | does                      |
|----------------------|--------------------------------------------------------------|---------------------------|
| deadline             | attempts past their deadline, or with an expired lease       | fails or retries them     |
| invocation-settle    | sessions and services with a backlog of open invocations     | cancels, parks, unparks   |
| invocation-orphan    | pending and running invocations of ended or deleted sessions | cancels them              |
| invocation-retention | invocations that ended long ago                              | deletes the rows          |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.invocations import operations
from quarterdeck.domain.invocations.model import (
    BacklogResult,
    CheckOverdue,
    InvocationResult,
    InvocationSettings,
    ProcessBacklog,
    Ref,
)
from quarterdeck.domain.invocations.operations.reads import ScanPosition
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

DEADLINE = "deadline"
SETTLE = "invocation-settle"
ORPHAN = "invocation-orphan"
RETENTION = "invocation-retention"
BATCH = 500
"""Rows per pass."""
SLICE = 5_000
"""Invocations that one statement of the orphan sweep reads."""
SLICES_MAX = 100
"""Maximum slices per pass: 500,000 invocations."""
SubmitOverdue = Callable[[CheckOverdue], Awaitable[InvocationResult]]


def sweeps(
    cross_zone_engine: Engine,
    submit_overdue: SubmitOverdue,
    submit_backlog: Callable[[ProcessBacklog], Awaitable[BacklogResult]],
    settings: InvocationSettings,
    retention_sweep_interval_ms: int = 900_000,
) -> list[Sweep]:
    """`cross_zone_engine` sees all zones; a lane sees only the zones of its batch."""

    async def check_overdue(batch: int) -> int:
        refs = await cross_zone_engine.read(lambda tx: operations.find_overdue(tx, batch))
        await _submit_overdue(submit_overdue, refs)
        return len(refs)

    async def process_backlogs(batch: int) -> int:
        commands = await cross_zone_engine.read(lambda tx: operations.load_oldest_backlogs(tx, batch))
        unfinished = commands
        while unfinished:
            results = await asyncio.gather(*(submit_backlog(command) for command in unfinished))
            unfinished = [
                command for command, result in zip(unfinished, results, strict=True) if not result.is_finished
            ]
        return len(commands)

    async def delete_past_retention(batch: int) -> int:
        retention_ms = round(settings.invocation_retention_days * DAY)
        return await cross_zone_engine.transact(lambda tx: operations.delete_past_retention(tx, retention_ms, batch))

    orphan_sweep = OrphanSweep(cross_zone_engine, submit_overdue)
    return [
        Sweep(DEADLINE, settings.deadline_sweep_interval_ms, BATCH, check_overdue),
        Sweep(SETTLE, settings.invocation_settle_interval_ms, BATCH, process_backlogs),
        Sweep(ORPHAN, settings.invocation_orphan_interval_ms, SLICE * SLICES_MAX, orphan_sweep.run_once),
        Sweep(RETENTION, retention_sweep_interval_ms, BATCH, delete_past_retention),
    ]


class OrphanSweep:
    """Repeatedly scans all pending and running invocations that name a session.

    A scan is necessary, because no index finds invocations whose session was deleted by hand. The scan position is kept
    in memory, so a new process starts from the beginning. Several processes can scan at the same time without harm.
    """

    def __init__(self, cross_zone_engine: Engine, submit: SubmitOverdue) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._submit = submit
        self._position = operations.SCAN_START

    async def run_once(self, batch: int) -> int:
        count = 0
        for _ in range(SLICES_MAX):
            refs, self._position = await self._cross_zone_engine.read(self._find_next)
            await _submit_overdue(self._submit, refs)
            count += len(refs)
            if self._position == operations.SCAN_START:
                break
        return count

    async def _find_next(self, tx: Transaction) -> tuple[list[Ref], ScanPosition]:
        return await operations.find_orphaned(tx, self._position, SLICE)


async def _submit_overdue(submit: SubmitOverdue, refs: Sequence[Ref]) -> None:
    for start in range(0, len(refs), BATCH):
        submissions = [
            submit(CheckOverdue(zone_id=zone_id, id=invocation_id))
            for zone_id, invocation_id in refs[start : start + BATCH]
        ]
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            # NotFound: the invocation was deleted after the search. All other errors fail the pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
