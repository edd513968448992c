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
from tests.support.counting import Counting, Counts, pages, scans
from tests.support.keel import Keel, Rigging, open_stores
from tests.support.rounds import ROUNDS
from tests.support.working import Working

MANY = min(10_000, 100 * ROUNDS)
SHARE = 100
"""Of those that are waited for, so many end at a time."""
BATCH = EngineSettings().batch_max
SMALL = {"k"}
"""What is walked although it is a table: the steps of a recursion, of which there is one for each class."""


@dataclass(frozen=True)
class Counted:
    url: str
    keel: Keel
    work: Working
    counting: Counting

    def taken(self) -> Counts:
        return self.counting.taken()

    def weighed(self, counts: Counts) -> dict[str, int]:
        """What each statement costs PostgreSQL now; and on SQLite that none walks over a table."""
        if sqlite_path(self.url) is None:
            return pages(self.url, counts)
        walks = [
            (name, walk) for name, of in scans(self.url, counts).items() for walk in of if walk.split()[1] not in SMALL
        ]
        assert walks == []
        return {}


@pytest.fixture
async def counted(engine_url: str) -> AsyncIterator[Counted]:
    own, everywhere = await open_stores(engine_url)
    counting = Counting(own)
    keel = Keel(engine_url, (counting, everywhere), Rigging())
    try:
        await keel.zone()
        work = Working(keel)
        await work.agent("a", slots=100_000)
        counting.taken()
        yield Counted(engine_url, keel, work, counting)
        await keel.lanes.drain()
    finally:
        for store in {own, everywhere}:
            await store.close()


def assert_none_grew(early: dict[str, int], late: dict[str, int]) -> None:
    """An index of ten thousand is one page higher than that of some, and some pages fill up before they are cleaned."""
    grown = {name: (early[name], late[name]) for name in early if late.get(name, 0) > 2 * early[name] + 10}
    assert grown == {}


async def test_a_chain_costs_the_same_at_every_link(counted: Counted) -> None:
    work = counted.work
    names = [f"link-{number:05}" for number in range(MANY)]
    asks = [work.asking(names[0])]
    asks += [work.asking(name, depends_on=(before,)) for before, name in itertools.pairwise(names)]
    await work.make_many(asks)
    made = counted.taken()
    print(f"made {MANY}: {made.sent.total()} statements, {made.given} rows given, {made.found} found")
    assert made.sent["tasks_insert"] <= MANY / BATCH + 2, "they are made by the batch"
    assert made.given + made.found <= 12 * MANY

    steps: list[Counts] = []
    weights: list[dict[str, int]] = []
    for number, name in enumerate(names):
        [leased] = await work.claim("a", 5)
        assert leased.task.id == name, "one at a time, each after the one before it"
        done = await work.complete(leased.task)
        assert done.status is State.COMPLETED
        steps.append(counted.taken())
        if number in (MANY // 20, MANY - 2):
            weights.append(counted.weighed(steps[-1]))
    # The first waited for nothing, and nothing waits for the last.
    own = steps[1:-1]
    print(f"each link: {dict(own[0].sent)}, {own[0].given} rows given, {own[0].found} found; pages {weights[-1]}")
    assert {step.sent.total() for step in own} == {own[0].sent.total()}
    assert {(step.given, step.found) for step in own} == {(own[0].given, own[0].found)}
    assert_none_grew(*weights)


async def test_a_task_that_waits_for_ten_thousand_costs_what_ends(counted: Counted) -> None:
    work = counted.work
    names = [f"leaf-{number:05}" for number in range(MANY)]
    await work.make_many([work.asking(name) for name in names])
    counted.taken()
    await work.make("join", depends_on=tuple(names))
    made = counted.taken()
    print(
        f"made one that waits for {MANY}: {made.sent.total()} statements, {made.given} rows given, {made.found} found"
    )
    assert made.sent.total() <= 30, "in one transaction, whatever it waits for"

    rounds: list[Counts] = []
    weights: list[dict[str, int]] = []
    left = MANY
    while left:
        assert (await work.show("join")).task.unmet_dependencies == left
        counted.taken()
        leases = await work.claim("a", SHARE)
        await asyncio.gather(*(work.complete(leased.task) for leased in leases))
        left -= len(leases)
        rounds.append(counted.taken())
        if len(rounds) == 1 or left == SHARE:
            weights.append(counted.weighed(rounds[-1]))
    print(
        f"each {SHARE} of them: {sorted({each.sent.total() for each in rounds})} statements,",
        f"{max(each.given for each in rounds)} rows given, {max(each.found for each in rounds)} found",
    )
    assert max(each.sent.total() for each in rounds) <= 60
    assert max(each.given + each.found for each in rounds) <= SHARE * 16
    assert_none_grew(weights[0], weights[-1])
    [joined] = await work.claim("a")
    assert (joined.task.id, joined.task.dependency_count) == ("join", MANY)
    assert (await work.complete(joined.task)).status is State.COMPLETED
