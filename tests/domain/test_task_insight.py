"""Why tasks are as they are and what they hang together with, as the database has it, on both engines."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Pause
from quarterdeck.domain.tasks.model.explain_types import NODES_MAX
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.recording import Recording, edges
from tests.support.working import Working


@pytest.fixture
async def records(keel: Keel) -> Recording:
    return Recording(Working(keel))


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


# -- why


async def test_from_nobody_there_to_done_a_task_says_what_it_waits_for(records: Recording) -> None:
    work = records.work
    await work.make("t", required=("rust",))
    await work.make("u", required=("rust",))
    assert await code(records, "t") == "no_agent"
    await work.agent("plain")
    agents = (await records.explain("t")).agents
    assert agents is not None and agents.missing_capabilities == ["rust"]
    await work.agent("able", "rust", "go", slots=1)
    told = await records.explain("u")
    assert (told.code, told.before) == ("turn", 1)
    [leased] = await work.claim("able")
    assert await code(records, "u") == "agents_busy"
    running = await records.explain("t")
    assert running.holder is not None
    assert (running.code, running.holder.agent_id) == ("running", "able")
    assert running.holder.lease_expires_at is not None
    await work.fail(leased.task)
    assert (await records.explain("t")).code == "backoff"
    await work.due("t")
    await work.moved(Pause(zone_id=ZONE, caller=work.caller, id="t"))
    assert await code(records, "t") == "paused"
    [leased] = await work.claim("able")
    await work.complete(leased.task)
    assert await code(records, "u") == "completed"


async def code(records: Recording, task_id: str) -> str:
    return (await records.explain(task_id)).code


async def test_a_task_that_depends_on_others_names_those_it_still_waits_for(records: Recording) -> None:
    work = records.work
    await work.agent()
    await work.make("a")
    await work.make("b")
    await work.make("c", depends_on=("a", "b"))
    [leased] = await work.claim()
    await work.complete(leased.task)
    told = await records.explain("c")
    assert (told.code, told.unmet) == ("dependencies", 1)
    assert [each.id for each in told.waits_for] == ["b" if leased.task.id == "a" else "a"]
    [leased] = await work.claim()
    await work.fail(leased.task, retryable=False)
    await work.spread(leased.task.id)
    failed = await records.explain("c")
    assert failed.code == "failed"
    assert "depends on" in failed.why[0]


async def test_a_task_that_is_to_begin_later_says_when(records: Recording) -> None:
    await records.work.make("t", run_at=4_000_000_000_000)
    told = await records.explain("t")
    assert (told.code, told.until) == ("moment", "2096-10-02T07:06:40.000Z")


async def test_what_is_not_there_is_not_explained(records: Recording) -> None:
    assert await refused(records.explain("nobody")) == "task_not_found"
    assert await refused(records.tree("nobody")) == "task_not_found"


# -- with what


async def test_a_tree_shows_what_a_task_waits_for_and_what_waits_for_it(records: Recording) -> None:
    work = records.work
    await work.make("a")
    await work.make("b", depends_on=("a",))
    await work.make("c", depends_on=("a",))
    await work.make("d", depends_on=("b", "c"))
    await work.make("e", depends_on=("d",))
    await work.make("aside", depends_on=("a",))
    tree = await records.tree("d")
    assert edges(tree) == {"d": ["b", "c"], "b": ["a"], "c": ["a"], "e": ["d"], "a": []}
    assert {node.id: node.depth for node in tree.items} == {"d": 0, "b": -1, "c": -1, "e": 1, "a": -2}
    assert not tree.truncated
    near = await records.tree("d", 1)
    assert {node.id for node in near.items} == {"b", "c", "d", "e"}
    assert near.truncated
    whole = await records.tree("a")
    assert {node.id for node in whole.items} == {"a", "b", "c", "d", "e", "aside"}


async def test_a_tree_of_a_thousand_is_cut_and_says_so(records: Recording) -> None:
    work = records.work
    await work.make("root")
    await work.make_many([work.asking(f"n{n}", depends_on=("root",)) for n in range(NODES_MAX + 5)])
    tree = await records.tree("root")
    assert (len(tree.items), tree.truncated) == (NODES_MAX, True)
    assert tree.items[0].id == "root"
