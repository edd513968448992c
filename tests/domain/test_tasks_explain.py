"""Why tasks are as they are and what they hang together with, as the database has it, on both engines."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Pause
from quarterdeck.domain.tasks.model.explain_types import NODES_MAX
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.task_details import TaskDetailHarness, dependencies_by_task
from tests.support.tasks import TaskHarness


@pytest.fixture
async def detail_harness(runtime: RuntimeHarness) -> TaskDetailHarness:
    return TaskDetailHarness(TaskHarness(runtime))


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


# -- why


async def test_from_nobody_there_to_done_a_task_says_what_it_waits_for(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create("t", required=("rust",))
    await work.create("u", required=("rust",))
    assert await code(detail_harness, "t") == "no_agent"
    await work.register_agent("plain")
    agents = (await detail_harness.explain("t")).agents
    assert agents is not None and agents.missing_capabilities == ["rust"]
    await work.register_agent("able", "rust", "go", slots=1)
    told = await detail_harness.explain("u")
    assert (told.code, told.before) == ("turn", 1)
    [leased] = await work.claim("able")
    assert await code(detail_harness, "u") == "agents_busy"
    running = await detail_harness.explain("t")
    assert running.holder is not None
    assert (running.code, running.holder.agent_id) == ("running", "able")
    assert running.holder.lease_expires_at is not None
    await work.fail(leased.task)
    assert (await detail_harness.explain("t")).code == "backoff"
    await work.make_available("t")
    await work.submit(Pause(zone_id=ZONE, caller=work.caller, id="t"))
    assert await code(detail_harness, "t") == "paused"
    [leased] = await work.claim("able")
    await work.complete(leased.task)
    assert await code(detail_harness, "u") == "completed"


async def code(records: TaskDetailHarness, task_id: str) -> str:
    return (await records.explain(task_id)).code


async def test_a_task_that_depends_on_others_names_those_it_still_waits_for(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.register_agent()
    await work.create("a")
    await work.create("b")
    await work.create("c", depends_on=("a", "b"))
    [leased] = await work.claim()
    await work.complete(leased.task)
    told = await detail_harness.explain("c")
    assert (told.code, told.unmet) == ("dependencies", 1)
    assert [each.id for each in told.waits_for] == ["b" if leased.task.id == "a" else "a"]
    [leased] = await work.claim()
    await work.fail(leased.task, retryable=False)
    await work.unblock_dependents(leased.task.id)
    failed = await detail_harness.explain("c")
    assert failed.code == "failed"
    assert "depends on" in failed.why[0]


async def test_a_task_that_is_to_begin_later_says_when(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t", run_at=4_000_000_000_000)
    told = await detail_harness.explain("t")
    assert (told.code, told.until) == ("moment", "2096-10-02T07:06:40.000Z")


async def test_what_is_not_there_is_not_explained(detail_harness: TaskDetailHarness) -> None:
    assert await refused(detail_harness.explain("nobody")) == "task_not_found"
    assert await refused(detail_harness.read_tree("nobody")) == "task_not_found"


# -- with what


async def test_a_tree_shows_what_a_task_waits_for_and_what_waits_for_it(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create("a")
    await work.create("b", depends_on=("a",))
    await work.create("c", depends_on=("a",))
    await work.create("d", depends_on=("b", "c"))
    await work.create("e", depends_on=("d",))
    await work.create("aside", depends_on=("a",))
    tree = await detail_harness.read_tree("d")
    assert dependencies_by_task(tree) == {"d": ["b", "c"], "b": ["a"], "c": ["a"], "e": ["d"], "a": []}
    assert {node.id: node.depth for node in tree.items} == {"d": 0, "b": -1, "c": -1, "e": 1, "a": -2}
    assert not tree.truncated
    near = await detail_harness.read_tree("d", 1)
    assert {node.id for node in near.items} == {"b", "c", "d", "e"}
    assert near.truncated
    whole = await detail_harness.read_tree("a")
    assert {node.id for node in whole.items} == {"a", "b", "c", "d", "e", "aside"}


async def test_a_tree_of_a_thousand_is_cut_and_says_so(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create("root")
    await work.create_many([work.create_command(f"n{n}", depends_on=("root",)) for n in range(NODES_MAX + 5)])
    tree = await detail_harness.read_tree("root")
    assert (len(tree.items), tree.truncated) == (NODES_MAX, True)
    assert tree.items[0].id == "root"
