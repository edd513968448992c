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
from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import Ref
from quarterdeck.domain.invocations.model import (
    BacklogResult,
    CheckOverdue,
    Invocation,
    InvocationSettings,
    ProcessBacklog,
)
from quarterdeck.domain.invocations.operations import on_session_ended, reads
from quarterdeck.domain.invocations.operations.reads import ScanPosition
from quarterdeck.engine.sweep_passes import (
    ROWS_PER_SCAN,
    SLICE,
    Pass,
    Position,
    delete_past_retention,
    find_and_submit,
    scan,
    submit_all,
)
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

DEADLINE = "deadline"
SETTLE = "invocation-settle"
ORPHAN = "invocation-orphan"
RETENTION = "invocation-retention"
BATCH = 500
"""Rows per pass, and commands submitted concurrently."""


def sweeps(
    cross_zone_engine: Engine,
    submit_overdue: Callable[[CheckOverdue], Awaitable[Invocation]],
    submit_backlog: Callable[[ProcessBacklog], Awaitable[BacklogResult]],
    settings: InvocationSettings,
    retention_sweep_interval_ms: int = 900_000,
) -> list[Sweep]:
    """`cross_zone_engine` sees all zones; a lane sees only the zones of its batch."""

    def submit_ref(ref: Ref) -> Awaitable[Invocation]:
        return submit_overdue(CheckOverdue(zone_id=ref[0], id=ref[1]))

    async def process_backlogs(batch: int) -> int:
        commands = await cross_zone_engine.read(lambda tx: on_session_ended.load_oldest_backlogs(tx, batch))
        unfinished = commands
        while unfinished:
            results = await asyncio.gather(*(submit_backlog(command) for command in unfinished))
            unfinished = [
                command for command, result in zip(unfinished, results, strict=True) if not result.is_finished
            ]
        return len(commands)

    check_overdue = find_and_submit(cross_zone_engine, reads.find_overdue, submit_ref, BATCH)
    check_orphaned = _orphan_scan(cross_zone_engine, submit_ref)
    retention_ms = round(settings.invocation_retention_days * DAY)
    delete_ended = delete_past_retention(cross_zone_engine, retention_ms, reads.retention_statements)
    return [
        Sweep(DEADLINE, settings.deadline_sweep_interval_ms, BATCH, check_overdue),
        Sweep(SETTLE, settings.invocation_settle_interval_ms, BATCH, process_backlogs),
        Sweep(ORPHAN, settings.invocation_orphan_interval_ms, ROWS_PER_SCAN, check_orphaned),
        Sweep(RETENTION, retention_sweep_interval_ms, BATCH, delete_ended),
    ]


def _orphan_scan(cross_zone_engine: Engine, submit_ref: Callable[[Ref], Awaitable[Invocation]]) -> Pass:
    """Scans all pending and running invocations that name a session.

    A scan is necessary, because no index finds invocations whose session was deleted by hand.
    """

    async def process_slice(position: Position[ScanPosition]) -> int:
        refs, position.value = await cross_zone_engine.read(lambda tx: reads.find_orphaned(tx, position.value, SLICE))
        await submit_all(submit_ref, refs, BATCH)
        return len(refs)

    return scan(reads.SCAN_START, process_slice)
