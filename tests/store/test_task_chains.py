"""The cost of tasks with up to 10,000 dependencies, in a chain or in one join.

Each step costs what it touches: the number of statements is the same for every step, and no statement gets more
expensive. `make test` runs some hundreds, `make soak` 10,000. With 10,000, on either engine: 440 statements create a
chain, and 27 statements with 22 rows sent and 15 returned claim and complete each link. 12 statements create a join,
and 24 complete each 100 of its dependencies.
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
ROUND_SIZE = 100
"""How many dependencies of the join end at a time."""
BATCH = EngineSettings().batch_max
MAY_SCAN = {"k"}
"""The steps of a recursion: one for each task class."""


@dataclass(frozen=True)
class CountedTasks:
    url: str
    runtime: RuntimeHarness
    tasks: TaskHarness
    counting: CountingStore

    def take_counts(self) -> StatementCounts:
        return self.counting.take_counts()

    def measure(self, counts: StatementCounts) -> dict[str, int]:
        """The pages that each statement touches on PostgreSQL. On SQLite, assert that none scans a table."""
        if sqlite_path(self.url) is None:
            return pages_touched(self.url, counts)
        scans = [
            (name, scan)
            for name, scanned in table_scans(self.url, counts).items()
            for scan in scanned
            if scan.split()[1] not in MAY_SCAN
        ]
        assert scans == []
        return {}


@pytest.fixture
async def counted_tasks(engine_url: str) -> AsyncIterator[CountedTasks]:
    store, cross_zone_store = await open_stores(engine_url)
    counting = CountingStore(store)
    runtime = RuntimeHarness(engine_url, (counting, cross_zone_store), RuntimeOptions())
    try:
        await runtime.put_zone()
        tasks = TaskHarness(runtime)
        await tasks.register_agent("a", slots=100_000)
        counting.take_counts()
        yield CountedTasks(engine_url, runtime, tasks, counting)
        await runtime.lanes.drain()
    finally:
        for opened in {store, cross_zone_store}:
            await opened.close()


def assert_none_grew(early: dict[str, int], late: dict[str, int]) -> None:
    # An index of 10,000 rows is one level deeper, and some pages fill up before vacuum.
    grown = {name: (early[name], late[name]) for name in early if late.get(name, 0) > 2 * early[name] + 10}
    assert grown == {}


def describe(counts: StatementCounts) -> str:
    total = counts.statements_sent.total()
    return f"{total} statements, {counts.rows_sent} rows sent, {counts.rows_returned} returned"


async def test_each_link_of_a_chain_costs_the_same(counted_tasks: CountedTasks) -> None:
    tasks = counted_tasks.tasks
    names = [f"link-{number:05}" for number in range(MANY)]
    commands = [tasks.create_command(names[0])]
    commands += [tasks.create_command(name, depends_on=(previous,)) for previous, name in itertools.pairwise(names)]
    await tasks.create_many(commands)
    created = counted_tasks.take_counts()
    print(f"create {MANY}: {describe(created)}")
    assert created.statements_sent["tasks_insert"] <= MANY / BATCH + 2, "tasks are inserted in batches"
    assert created.rows_sent + created.rows_returned <= 12 * MANY

    steps: list[StatementCounts] = []
    pages: list[dict[str, int]] = []
    for number, name in enumerate(names):
        [leased] = await tasks.claim("a", 5)
        assert leased.task.id == name, "each link is ready only after the previous one"
        done = await tasks.complete(leased.task)
        assert done.status is State.COMPLETED
        steps.append(counted_tasks.take_counts())
        if number in (MANY // 20, MANY - 2):
            pages.append(counted_tasks.measure(steps[-1]))
    # Without the first, which has no dependency, and the last, which has no dependent.
    links = steps[1:-1]
    print(f"each link: {describe(links[0])}, {dict(links[0].statements_sent)}; pages {pages[-1]}")
    assert {step.statements_sent.total() for step in links} == {links[0].statements_sent.total()}
    assert {(step.rows_sent, step.rows_returned) for step in links} == {(links[0].rows_sent, links[0].rows_returned)}
    assert_none_grew(*pages)


async def test_cost_of_a_join_depends_on_the_dependencies_that_end(counted_tasks: CountedTasks) -> None:
    tasks = counted_tasks.tasks
    names = [f"leaf-{number:05}" for number in range(MANY)]
    await tasks.create_many([tasks.create_command(name) for name in names])
    counted_tasks.take_counts()
    await tasks.create("join", depends_on=tuple(names))
    created = counted_tasks.take_counts()
    print(f"create a join of {MANY}: {describe(created)}")
    assert created.statements_sent.total() <= 30, "one transaction for any number of dependencies"

    rounds: list[StatementCounts] = []
    pages: list[dict[str, int]] = []
    left = MANY
    while left:
        assert (await tasks.read("join")).task.unmet_dependencies == left
        counted_tasks.take_counts()
        leases = await tasks.claim("a", ROUND_SIZE)
        await asyncio.gather(*(tasks.complete(leased.task) for leased in leases))
        left -= len(leases)
        rounds.append(counted_tasks.take_counts())
        if len(rounds) == 1 or left == ROUND_SIZE:
            pages.append(counted_tasks.measure(rounds[-1]))
    print(
        f"each {ROUND_SIZE} dependencies: {sorted({counts.statements_sent.total() for counts in rounds})} statements,",
        f"{max(counts.rows_sent for counts in rounds)} rows sent,",
        f"{max(counts.rows_returned for counts in rounds)} returned",
    )
    assert max(counts.statements_sent.total() for counts in rounds) <= 60
    assert max(counts.rows_sent + counts.rows_returned for counts in rounds) <= ROUND_SIZE * 16
    assert_none_grew(pages[0], pages[-1])
    [joined] = await tasks.claim("a")
    assert (joined.task.id, joined.task.dependency_count) == ("join", MANY)
    assert (await tasks.complete(joined.task)).status is State.COMPLETED
