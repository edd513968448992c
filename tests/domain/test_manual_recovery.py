"""Manual recovery of one zone among others, and the scans for dependency cycles."""

from __future__ import annotations

import pytest

from quarterdeck.domain.coordination.background import coordinator as coordinators, dependency_cycles
from quarterdeck.domain.coordination.background.dependency_cycles import START, load_waiting, load_waiting_in_zone
from quarterdeck.domain.tasks.model.rows import State
from tests.support.builders import ZONE
from tests.support.coordinator import CoordinatorHarness
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness

OTHER_ZONE = "other-zone"


@pytest.fixture
async def coordinator_harness(runtime: RuntimeHarness) -> CoordinatorHarness:
    await runtime.put_zone(OTHER_ZONE)
    return CoordinatorHarness(runtime)


async def create_cycle(harness: TaskHarness, *names: str) -> None:
    """Create tasks in a dependency cycle. Written directly, because no request can create one."""
    database = harness.runtime.database
    for name in names:
        await harness.create(name)
    for name, dependency in zip(names, (*names[1:], names[0]), strict=True):
        database.execute("insert into task_dependencies values (?, ?, ?, 0)", harness.zone_id, name, dependency)
        database.execute("update agent_tasks set waits = 2, unmet = 1, depends = 1 where id = ?", name)


async def test_recovery_of_one_zone_does_not_postpone_checks_of_others(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.run_until_idle()
    await create_cycle(coordinator_harness.task_harness, "a", "b")
    assert await coordinator_harness.coordinator.is_due() is True
    _, _, cycle_count = await coordinator_harness.coordinator.recover(OTHER_ZONE)
    assert cycle_count == 0
    assert await coordinator_harness.coordinator.is_due() is True, "the search for cycles is still due"
    _, _, cycle_count = await coordinator_harness.coordinator.recover(ZONE)
    assert cycle_count == 2
    assert (await coordinator_harness.read_task("a")).reason == "dependency_cycle"


async def test_recovery_of_one_zone_is_not_limited_by_due_work_in_other_zones(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "LIMIT", 3)
    monkeypatch.setattr(coordinators, "AGENT_LIMIT", 2)
    other_tasks = TaskHarness(coordinator_harness.runtime, OTHER_ZONE)
    for harness in (other_tasks, coordinator_harness.task_harness):
        for number in range(4 if harness is other_tasks else 1):
            name = f"{harness.zone_id}-{number}"
            await harness.register_agent(name, slots=1)
            await harness.create(f"late {name}", run_at=9_000_000_000_000)
            await harness.create(f"slow {name}", timeout_seconds=60)
            await harness.claim(name)
    runtime = coordinator_harness.runtime
    runtime.database.execute("update agent_tasks set available_at = 1 where waits = 1")
    runtime.database.execute("update agent_tasks set timeout_at = 1 where timeout_at is not null")
    runtime.database.execute("update agent_pulses set last_seen_at = 1")
    runtime.database.execute("update agents set look_at = 1")
    runtime.database.execute("update agents set look_at = 2 where zone_id = ?", ZONE)
    recovered, checked_agents, _ = await coordinator_harness.coordinator.recover(ZONE)
    assert checked_agents == 1
    assert [zone_id for zone_id, _ in recovered.due] == [ZONE]
    assert [task.zone_id for task in recovered.timed_out] == [ZONE]
    assert runtime.database.count("agents", "status = 'ERROR'") == 1
    assert runtime.database.count("agent_tasks", f"zone_id = '{OTHER_ZONE}' and status = 'RUNNING'") == 4
    late = await coordinator_harness.read_task(f"late {ZONE}-0")
    assert (late.status, late.waits_for) == (State.PENDING, 0)


async def test_cycle_scan_continues_where_the_last_one_stopped_and_then_restarts(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_cycles, "SLICE", 2)
    monkeypatch.setattr(dependency_cycles, "WAITING_MAX", 4)
    other_tasks, engine = (
        TaskHarness(coordinator_harness.runtime, OTHER_ZONE),
        coordinator_harness.runtime.cross_zone_engine,
    )
    await other_tasks.create("root")
    await coordinator_harness.task_harness.create("root")
    for number in range(3):
        await other_tasks.create(f"e{number}", depends_on=("root",))
    for number in range(7):
        await coordinator_harness.task_harness.create(f"t{number}", depends_on=("root",))
    first = await load_waiting(engine, START)
    assert {zone: [*tasks] for zone, tasks in first.depends_on.items()} == {OTHER_ZONE: ["e0", "e1", "e2"]}
    second = await load_waiting(engine, first.stopped_at)
    assert {zone: [*tasks] for zone, tasks in second.depends_on.items()} == {ZONE: ["t0", "t1", "t2", "t3"]}, (
        "a zone that the scan before did not finish is scanned from its start"
    )
    third = await load_waiting(engine, second.stopped_at)
    assert [*third.depends_on[ZONE]] == ["t4", "t5", "t6"]
    assert third.stopped_at == START
    in_zone = await load_waiting_in_zone(engine, OTHER_ZONE)
    assert {zone: [*tasks] for zone, tasks in in_zone.depends_on.items()} == {OTHER_ZONE: ["e0", "e1", "e2"]}


async def test_cycle_beyond_the_first_scan_is_found_by_a_later_one(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_cycles, "SLICE", 2)
    monkeypatch.setattr(dependency_cycles, "WAITING_MAX", 4)
    await coordinator_harness.task_harness.create("root")
    for number in range(4):
        await coordinator_harness.task_harness.create(f"t{number}", depends_on=("root",))
    await create_cycle(coordinator_harness.task_harness, "u", "v")
    cycle_counts = [(await coordinator_harness.coordinator.recover(None))[2] for _ in range(3)]
    assert cycle_counts == [0, 2, 0]
