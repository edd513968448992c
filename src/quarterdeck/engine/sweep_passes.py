"""The three forms of a pass of a sweep.

| function              | one pass                                                                   | returns      |
|-----------------------|----------------------------------------------------------------------------|--------------|
| delete_past_retention | deletes a batch of rows that are older than the retention period           | rows deleted |
| find_and_submit       | finds a batch of rows in all zones, and submits a command for each         | rows found   |
| scan                  | reads the next slices of a table; at the end of the table, it starts again | rows changed |

The engine is a cross-zone engine. Several processes may run the same pass at the same time: a delete repeats its
condition, and a command is decided under the zone's lock.
"""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import NotFound, Problem
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.sql import BoundStatement

SLICE = 5_000
"""Maximum rows that one statement of a scan reads."""
SLICES_MAX = 100
"""Maximum slices per pass of a scan."""
ROWS_PER_SCAN = SLICE * SLICES_MAX
"""The batch of a sweep that scans. A pass that changes fewer rows is not full, so the next one waits its interval."""

Pass = Callable[[int], Awaitable[int]]
"""Takes the maximum number of rows, and returns how many it changed (`Sweep.run_once`)."""
CommandT = TypeVar("CommandT")
ResultT = TypeVar("ResultT")
PositionT = TypeVar("PositionT")


def delete_past_retention(
    engine: Engine,
    retention_ms: Millis,
    statements: Callable[[Millis, int], Sequence[BoundStatement]],
    count: Callable[[list[int]], int] = operator.itemgetter(0),
) -> Pass:
    """`statements` gets the cutoff and the limit; each statement returns the rows that it deletes. `count` gets the
    number of rows per statement. By default the rows of the first statement count."""

    async def delete(tx: Transaction, limit: int) -> int:
        # An empty read sets `tx.now`, so that the database's clock decides what is old enough.
        await tx.read()
        deleted = await tx.read(*statements(tx.now - retention_ms, limit))
        return count([len(rows) for rows in deleted])

    return lambda batch: engine.transact(lambda tx: delete(tx, batch))


def find_and_submit(
    engine: Engine,
    find: Callable[[Transaction, int], Awaitable[Sequence[CommandT]]],
    submit: Callable[[CommandT], Awaitable[object]],
    at_once: int = sys.maxsize,
) -> Pass:
    async def run_once(batch: int) -> int:
        found = await engine.read(lambda tx: find(tx, batch))
        await submit_all(submit, found, at_once)
        return len(found)

    return run_once


async def submit_all(
    submit: Callable[[CommandT], Awaitable[ResultT]],
    commands: Sequence[CommandT],
    at_once: int = sys.maxsize,
    ignored: tuple[type[Problem], ...] = (NotFound,),
) -> list[ResultT]:
    """Submit commands, `at_once` of them concurrently. Return the results of those that succeeded.

    The errors in `ignored` mean that the row was deleted or changed after it was found. The first other error is
    raised, after the commands submitted with it have ended.
    """
    results = []
    for start in range(0, len(commands), at_once):
        submissions = map(submit, commands[start : start + at_once])
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                results.append(outcome)
            elif not isinstance(outcome, ignored):
                raise outcome
    return results


class Position(Generic[PositionT]):
    """Where a scan continues. It is kept only in memory: a new process scans from the start."""

    def __init__(self, start: PositionT) -> None:
        self.start = self.value = start

    def advance(self, rows: Sequence[PositionT]) -> None:
        """Continue after the last of these rows, or from the start if they are the end of the table."""
        self.value = rows[-1] if len(rows) == SLICE else self.start


def scan(start: PositionT, process_slice: Callable[[Position[PositionT]], Awaitable[int]]) -> Pass:
    """`process_slice` reads a slice, sets the position, and returns how many rows it changed.

    It should set the position as soon as it has read the slice. Then a slice that cannot be processed fails one pass,
    and the next pass continues after it.
    """
    position = Position(start)

    async def run_once(batch: int) -> int:
        changed = 0
        for _ in range(SLICES_MAX):
            changed += await process_slice(position)
            if position.value == start:
                break
        return changed

    return run_once
