"""Tasks that depend on ten thousand others, one after the other or all at once, are made, run and unblocked at the
price of what each step touches: the statements of every step are the same, and none of them costs more in the end.

Some hundreds in `make test`, ten thousand in `make soak`. Of ten thousand, on either engine: a chain is made by 440
statements, and each link of it is claimed and completed by 27, with 22 rows sent and 15 found, the first as the last;
one task that waits for all is made by 12, and each hundred of those end by 24.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.store.migrate import sqlite_path
from tests.support.counting_store import CountingStore, StatementCounts, pages_touched, table_scans
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_stores
from tests.support.tasks import TaskHarness

MANY = min(10_000, 100 * ROUNDS)
SHARE = 100
"""Of those that are waited for, so many end at a time."""
BATCH = EngineSettings().batch_max
SMALL = {"k"}
"""What is walked although it is a table: the steps of a recursion, of which there is one for each class."""


@dataclass(frozen=True)
class Counted:
    url: str
    keel: RuntimeHarness
    work: TaskHarness
    counting: CountingStore

    def taken(self) -> StatementCounts:
        return self.counting.take_counts()

    def weighed(self, counts: StatementCounts) -> dict[str, int]:
        """What each statement costs PostgreSQL now; and on SQLite that none walks over a table."""
        if sqlite_path(self.url) is None:
            return pages_touched(self.url, counts)
        walks = [
            (name, walk)
            for name, of in table_scans(self.url, counts).items()
            for walk in of
            if walk.split()[1] not in SMALL
        ]
        assert walks == []
        return {}


@pytest.fixture
async def counted_tasks(engine_url: str) -> AsyncIterator[Counted]:
    own, everywhere = await open_stores(engine_url)
    counting = CountingStore(own)
    keel = RuntimeHarness(engine_url, (counting, everywhere), RuntimeOptions())
    try:
        await keel.put_zone()
        work = TaskHarness(keel)
        await work.register_agent("a", slots=100_000)
        counting.take_counts()
        yield Counted(engine_url, keel, work, counting)
        await keel.lanes.drain()
    finally:
        for store in {own, everywhere}:
            await store.close()


def assert_none_grew(early: dict[str, int], late: dict[str, int]) -> None:
    """An index of ten thousand is one page higher than that of some, and some pages fill up before they are cleaned."""
    grown = {name: (early[name], late[name]) for name in early if late.get(name, 0) > 2 * early[name] + 10}
    assert grown == {}


async def test_a_chain_costs_the_same_at_every_link(counted_tasks: Counted) -> None:
    work = counted_tasks.work
    names = [f"link-{number:05}" for number in range(MANY)]
    asks = [work.create_command(names[0])]
    asks += [work.create_command(name, depends_on=(before,)) for before, name in itertools.pairwise(names)]
    await work.create_many(asks)
    made = counted_tasks.taken()
    print(
        f"made {MANY}: {made.statements_sent.total()} statements, {made.rows_sent} rows given, {made.rows_returned} found"
    )
    assert made.statements_sent["tasks_insert"] <= MANY / BATCH + 2, "they are made by the batch"
    assert made.rows_sent + made.rows_returned <= 12 * MANY

    steps: list[StatementCounts] = []
    weights: list[dict[str, int]] = []
    for number, name in enumerate(names):
        [leased] = await work.claim("a", 5)
        assert leased.task.id == name, "one at a time, each after the one before it"
        done = await work.complete(leased.task)
        assert done.status is State.COMPLETED
        steps.append(counted_tasks.taken())
        if number in (MANY // 20, MANY - 2):
            weights.append(counted_tasks.weighed(steps[-1]))
    # The first waited for nothing, and nothing waits for the last.
    own = steps[1:-1]
    print(
        f"each link: {dict(own[0].statements_sent)}, {own[0].rows_sent} rows given, {own[0].rows_returned} found; pages {weights[-1]}"
    )
    assert {step.statements_sent.total() for step in own} == {own[0].statements_sent.total()}
    assert {(step.rows_sent, step.rows_returned) for step in own} == {(own[0].rows_sent, own[0].rows_returned)}
    assert_none_grew(*weights)


async def test_a_task_that_waits_for_ten_thousand_costs_what_ends(counted_tasks: Counted) -> None:
    work = counted_tasks.work
    names = [f"leaf-{number:05}" for number in range(MANY)]
    await work.create_many([work.create_command(name) for name in names])
    counted_tasks.taken()
    await work.create("join", depends_on=tuple(names))
    made = counted_tasks.taken()
    print(
        f"made one that waits for {MANY}: {made.statements_sent.total()} statements, {made.rows_sent} rows given, {made.rows_returned} found"
    )
    assert made.statements_sent.total() <= 30, "in one transaction, whatever it waits for"

    rounds: list[StatementCounts] = []
    weights: list[dict[str, int]] = []
    left = MANY
    while left:
        assert (await work.read("join")).task.unmet_dependencies == left
        counted_tasks.taken()
        leases = await work.claim("a", SHARE)
        await asyncio.gather(*(work.complete(leased.task) for leased in leases))
        left -= len(leases)
        rounds.append(counted_tasks.taken())
        if len(rounds) == 1 or left == SHARE:
            weights.append(counted_tasks.weighed(rounds[-1]))
    print(
        f"each {SHARE} of them: {sorted({each.statements_sent.total() for each in rounds})} statements,",
        f"{max(each.rows_sent for each in rounds)} rows given, {max(each.rows_returned for each in rounds)} found",
    )
    assert max(each.statements_sent.total() for each in rounds) <= 60
    assert max(each.rows_sent + each.rows_returned for each in rounds) <= SHARE * 16
    assert_none_grew(weights[0], weights[-1])
    [joined] = await work.claim("a")
    assert (joined.task.id, joined.task.dependency_count) == ("join", MANY)
    assert (await work.complete(joined.task)).status is State.COMPLETED
