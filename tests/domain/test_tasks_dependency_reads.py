"""What tasks depend on and what depends on them, shown of each: no task's are left out for another's."""

from __future__ import annotations

import pytest

from quarterdeck.domain.tasks.model.rows import FullTask
from quarterdeck.domain.tasks.operations import dependency_reads, reads
from quarterdeck.domain.tasks.operations.reads import TaskFilter, TaskLookup
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness


@pytest.mark.parametrize("gathered", [1_000, 10], ids=["at once", "one by one"])
async def test_each_shows_its_own_dependents_and_says_if_there_are_more(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch, gathered: int
) -> None:
    monkeypatch.setattr(dependency_reads, "DEPENDENTS_PER_READ_MAX", gathered)
    monkeypatch.setattr(dependency_reads, "LISTED_MAX", 4)
    work = TaskHarness(runtime)
    hubs = {"none": 0, "few": 3, "full": 4, "more": 9}
    await work.create_many([work.create_command(name) for name in hubs])
    behind = [work.create_command(depends_on=(name,)) for name, number in hubs.items() for _ in range(number)]
    await work.create_many(behind)
    wanted = TaskFilter(zone_id=ZONE, caller=work.caller, limit=100)
    page = await runtime.engine.read(lambda tx: reads.page(tx, wanted), zones=[ZONE])
    listed = {whole.task.id: whole for whole in page.items}
    assert {name: (len(listed[name].blocks), listed[name].has_more_blocks) for name in hubs} == {
        "none": (0, False),
        "few": (3, False),
        "full": (4, False),
        "more": (4, True),
    }
    shown = await work.read("more")
    assert (len(shown.blocks), shown.has_more_blocks) == (9, False)


async def test_of_what_a_task_depends_on_as_much_is_shown_as_was_asked_for(runtime: RuntimeHarness) -> None:
    work = TaskHarness(runtime)
    names = tuple(f"n{number}" for number in range(6))
    await work.create_many([work.create_command(name) for name in names])
    await work.create_many(
        [work.create_command("all", depends_on=names), work.create_command("two", depends_on=names[:2])]
    )
    refs = [
        TaskLookup(ZONE, "all", dependency_limit=3),
        TaskLookup(ZONE, "two", dependency_limit=3),
        TaskLookup(ZONE, "n0", dependency_limit=0),
    ]
    found = await runtime.engine.read(lambda tx: reads.read_tasks(tx, refs), zones=[ZONE])
    every, two, untied = (whole for whole in found if isinstance(whole, FullTask))
    assert (len(every.depends_on), every.task.dependency_count) == (3, 6)
    assert set(every.depends_on) < set(names)
    assert two.depends_on == ("n0", "n1")
    assert untied.blocks == ()
