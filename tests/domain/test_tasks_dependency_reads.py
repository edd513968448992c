"""Reads of dependencies and dependents: each task has its own limit."""

from __future__ import annotations

import pytest

from quarterdeck.domain.tasks.model.rows import FullTask
from quarterdeck.domain.tasks.operations import dependency_reads, reads
from quarterdeck.domain.tasks.operations.reads import TaskFilter, TaskLookup
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness


@pytest.mark.parametrize("read_limit", [1_000, 10], ids=["one read", "several reads"])
async def test_each_listed_task_has_its_dependents_and_a_flag_for_more(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch, read_limit: int
) -> None:
    monkeypatch.setattr(dependency_reads, "DEPENDENTS_PER_READ_MAX", read_limit)
    monkeypatch.setattr(dependency_reads, "LISTED_DEPENDENCIES_MAX", 4)
    task_harness = TaskHarness(runtime)
    dependent_counts = {"none": 0, "few": 3, "full": 4, "more": 9}
    await task_harness.create_many([task_harness.create_command(name) for name in dependent_counts])
    dependents = [
        task_harness.create_command(depends_on=(name,))
        for name, number in dependent_counts.items()
        for _ in range(number)
    ]
    await task_harness.create_many(dependents)
    filters = TaskFilter(zone_id=ZONE, caller=task_harness.caller, limit=100)
    page = await runtime.engine.read(lambda tx: reads.list_tasks(tx, filters), zones=[ZONE])
    listed = {item.task.id: item for item in page.items}
    assert {name: (len(listed[name].blocks), listed[name].has_more_blocks) for name in dependent_counts} == {
        "none": (0, False),
        "few": (3, False),
        "full": (4, False),
        "more": (4, True),
    }
    full_task = await task_harness.read("more")
    assert (len(full_task.blocks), full_task.has_more_blocks) == (9, False)


async def test_dependencies_are_returned_up_to_the_requested_limit(runtime: RuntimeHarness) -> None:
    task_harness = TaskHarness(runtime)
    names = tuple(f"n{number}" for number in range(6))
    await task_harness.create_many([task_harness.create_command(name) for name in names])
    await task_harness.create_many(
        [task_harness.create_command("all", depends_on=names), task_harness.create_command("two", depends_on=names[:2])]
    )
    refs = [
        TaskLookup(ZONE, "all", dependency_limit=3),
        TaskLookup(ZONE, "two", dependency_limit=3),
        TaskLookup(ZONE, "n0", dependency_limit=0),
    ]
    found = await runtime.engine.read(lambda tx: reads.read_tasks(tx, refs), zones=[ZONE])
    all_tasks, two, without = (item for item in found if isinstance(item, FullTask))
    assert (len(all_tasks.depends_on), all_tasks.task.dependency_count) == (3, 6)
    assert set(all_tasks.depends_on) < set(names)
    assert two.depends_on == ("n0", "n1")
    assert without.blocks == ()
