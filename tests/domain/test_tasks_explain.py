"""Explanations and dependency trees of tasks, on both engines."""

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


async def error_code(request: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await request
    return refusal.value.code


# -- explanations


async def test_explanation_follows_the_task_from_no_agent_to_completed(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("t", required=("rust",))
    await task_harness.create("u", required=("rust",))
    assert await explanation_code(detail_harness, "t") == "no_agent"
    await task_harness.register_agent("plain")
    agents = (await detail_harness.explain("t")).agents
    assert agents is not None and agents.missing_capabilities == ["rust"]
    await task_harness.register_agent("able", "rust", "go", slots=1)
    explanation = await detail_harness.explain("u")
    assert (explanation.code, explanation.before) == ("turn", 1)
    [leased] = await task_harness.claim("able")
    assert await explanation_code(detail_harness, "u") == "agents_busy"
    running = await detail_harness.explain("t")
    assert running.holder is not None
    assert (running.code, running.holder.agent_id) == ("running", "able")
    assert running.holder.lease_expires_at is not None
    await task_harness.fail(leased.task)
    assert (await detail_harness.explain("t")).code == "backoff"
    await task_harness.make_available("t")
    await task_harness.submit(Pause(zone_id=ZONE, caller=task_harness.caller, id="t"))
    assert await explanation_code(detail_harness, "t") == "paused"
    [leased] = await task_harness.claim("able")
    await task_harness.complete(leased.task)
    assert await explanation_code(detail_harness, "u") == "completed"


async def explanation_code(detail_harness: TaskDetailHarness, task_id: str) -> str:
    return (await detail_harness.explain(task_id)).code


async def test_explanation_names_the_unmet_dependencies(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.register_agent()
    await task_harness.create("a")
    await task_harness.create("b")
    await task_harness.create("c", depends_on=("a", "b"))
    [leased] = await task_harness.claim()
    await task_harness.complete(leased.task)
    explanation = await detail_harness.explain("c")
    assert (explanation.code, explanation.unmet) == ("dependencies", 1)
    assert [dependency.id for dependency in explanation.waits_for] == ["b" if leased.task.id == "a" else "a"]
    [leased] = await task_harness.claim()
    await task_harness.fail(leased.task, retryable=False)
    await task_harness.unblock_dependents(leased.task.id)
    failed = await detail_harness.explain("c")
    assert failed.code == "failed"
    assert "depends on" in failed.why[0]


async def test_explanation_of_a_scheduled_task_has_its_start_time(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t", run_at=4_000_000_000_000)
    explanation = await detail_harness.explain("t")
    assert (explanation.code, explanation.until) == ("moment", "2096-10-02T07:06:40.000Z")


async def test_unknown_task_is_not_explained(detail_harness: TaskDetailHarness) -> None:
    assert await error_code(detail_harness.explain("unknown-task")) == "task_not_found"
    assert await error_code(detail_harness.read_tree("unknown-task")) == "task_not_found"


# -- dependency trees


async def test_tree_contains_dependencies_and_dependents(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("a")
    await task_harness.create("b", depends_on=("a",))
    await task_harness.create("c", depends_on=("a",))
    await task_harness.create("d", depends_on=("b", "c"))
    await task_harness.create("e", depends_on=("d",))
    await task_harness.create("aside", depends_on=("a",))
    tree = await detail_harness.read_tree("d")
    assert dependencies_by_task(tree) == {"d": ["b", "c"], "b": ["a"], "c": ["a"], "e": ["d"], "a": []}
    assert {node.id: node.depth for node in tree.items} == {"d": 0, "b": -1, "c": -1, "e": 1, "a": -2}
    assert not tree.truncated
    near = await detail_harness.read_tree("d", 1)
    assert {node.id for node in near.items} == {"b", "c", "d", "e"}
    assert near.truncated
    full = await detail_harness.read_tree("a")
    assert {node.id for node in full.items} == {"a", "b", "c", "d", "e", "aside"}


async def test_tree_above_the_node_limit_is_truncated(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("root")
    await task_harness.create_many(
        [task_harness.create_command(f"n{n}", depends_on=("root",)) for n in range(NODES_MAX + 5)]
    )
    tree = await detail_harness.read_tree("root")
    assert (len(tree.items), tree.truncated) == (NODES_MAX, True)
    assert tree.items[0].id == "root"
