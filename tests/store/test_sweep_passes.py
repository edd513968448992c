"""The forms of a pass: what is deleted, submitted and scanned, what counts, and which errors fail the pass."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.engine import sweep_passes
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweep_passes import Position, delete_past_retention, find_and_submit, scan, submit_all
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import BoundStatement
from tests.support.runtime import RuntimeHarness


class FakeLane:
    """Raises the error for a command, or returns the command times ten."""

    def __init__(self, errors: dict[int, BaseException] | None = None) -> None:
        self.errors = errors or {}
        self.submitted: list[int] = []
        self.running = 0
        self.most_running = 0

    async def submit(self, command: int) -> int:
        self.submitted.append(command)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if command in self.errors:
            raise self.errors[command]
        return command * 10


async def test_results_are_returned_in_order_without_the_ignored_errors() -> None:
    lane = FakeLane({2: NotFound("not_found", "gone")})
    assert await submit_all(lane.submit, [1, 2, 3]) == [10, 30]
    assert await submit_all(lane.submit, []) == []


async def test_conflict_fails_the_pass_unless_it_is_ignored() -> None:
    lane = FakeLane({2: Conflict("conflict", "changed")})
    with pytest.raises(Conflict):
        await submit_all(lane.submit, [1, 2, 3])
    assert await submit_all(lane.submit, [1, 2, 3], ignored=(NotFound, Conflict)) == [10, 30]


async def test_error_is_raised_after_the_commands_submitted_with_it_and_before_the_next() -> None:
    lane = FakeLane({1: ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        await submit_all(lane.submit, [1, 2, 3, 4], at_once=2)
    assert (lane.submitted, lane.running) == ([1, 2], 0)


async def test_at_most_at_once_commands_run_concurrently() -> None:
    lane = FakeLane()
    assert await submit_all(lane.submit, range(7), at_once=3) == [0, 10, 20, 30, 40, 50, 60]
    assert lane.most_running == 3
    await submit_all(lane.submit, range(7))
    assert lane.most_running == 7


async def test_pass_counts_the_rows_it_found_even_if_one_was_deleted(runtime: RuntimeHarness) -> None:
    async def find(tx: Transaction, limit: int) -> list[int]:
        await tx.read()
        return [*range(limit)]

    lane = FakeLane({1: NotFound("not_found", "gone")})
    assert await find_and_submit(runtime.cross_zone_engine, find, lane.submit)(4) == 4
    assert lane.submitted == [0, 1, 2, 3]


async def test_cutoff_is_the_retention_before_the_time_of_the_database(runtime: RuntimeHarness) -> None:
    calls: list[tuple[Millis, int]] = []

    def statements(before: Millis, limit: int) -> list[BoundStatement]:
        calls.append((before, limit))
        return [Q.clock()]

    async def now(tx: Transaction) -> Millis:
        await tx.read()
        return tx.now

    earliest = await runtime.cross_zone_engine.read(now)
    await delete_past_retention(runtime.cross_zone_engine, DAY, statements)(7)
    [(before, limit)] = calls
    assert limit == 7
    assert earliest <= before + DAY <= await runtime.cross_zone_engine.read(now)


async def test_rows_of_the_first_statement_count_unless_a_count_is_given(runtime: RuntimeHarness) -> None:
    def none_then_one(before: Millis, limit: int) -> list[BoundStatement]:
        return [Q.sinks_abandoned(before=0), Q.clock()]

    assert await delete_past_retention(runtime.cross_zone_engine, DAY, none_then_one)(10) == 0
    assert await delete_past_retention(runtime.cross_zone_engine, DAY, none_then_one, count=max)(10) == 1


class FakeTable:
    """Numbers from 1, read in slices of `sweep_passes.SLICE`. Every row counts as changed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slices: list[list[int]] = []
        self.failing: set[int] = set()

    async def process_slice(self, position: Position[int]) -> int:
        rows = [*range(1, self.size + 1)][position.value :][: sweep_passes.SLICE]
        position.advance(rows)
        self.slices.append(rows)
        if self.failing.intersection(rows):
            raise ZeroDivisionError
        return len(rows)


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_passes, "SLICE", 2)
    monkeypatch.setattr(sweep_passes, "SLICES_MAX", 3)


@pytest.mark.usefixtures("small_slices")
async def test_scan_ends_a_pass_at_the_end_of_the_table_and_starts_again() -> None:
    table = FakeTable(3)
    run_once = scan(0, table.process_slice)
    assert [await run_once(1), await run_once(1)] == [3, 3]
    assert table.slices == [[1, 2], [3], [1, 2], [3]]


@pytest.mark.usefixtures("small_slices")
async def test_scan_reads_a_bounded_number_of_slices_per_pass_and_continues_there() -> None:
    table = FakeTable(8)
    run_once = scan(0, table.process_slice)
    assert [await run_once(1), await run_once(1)] == [6, 2]
    assert table.slices == [[1, 2], [3, 4], [5, 6], [7, 8], []]


@pytest.mark.usefixtures("small_slices")
async def test_scan_continues_after_a_slice_that_failed() -> None:
    table = FakeTable(4)
    table.failing = {1}
    run_once = scan(0, table.process_slice)
    with pytest.raises(ZeroDivisionError):
        await run_once(1)
    assert await run_once(1) == 2
    assert table.slices == [[1, 2], [3, 4], []]


async def test_every_scan_has_its_own_position() -> None:
    table = FakeTable(10)
    table.failing = {1}
    for run_once in (scan(0, table.process_slice), scan(0, table.process_slice)):
        with pytest.raises(ZeroDivisionError):
            await run_once(1)
    assert [rows[0] for rows in table.slices] == [1, 1]
