"""Recovering by hand, in one zone beside others; and the walks on which cycles are looked for."""

from __future__ import annotations

import pytest

from quarterdeck.domain.coordination import coordinator as coordinators, dependency_cycles
from quarterdeck.domain.coordination.dependency_cycles import START, load_waiting, load_waiting_in_zone
from quarterdeck.domain.tasks.model.rows import State
from tests.support.builders import ZONE
from tests.support.coordinator import CoordinatorHarness
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness

ELSEWHERE = "elsewhere"


@pytest.fixture
async def coordinator_harness(runtime: RuntimeHarness) -> CoordinatorHarness:
    await runtime.put_zone(ELSEWHERE)
    return CoordinatorHarness(runtime)


async def wait_for_each_other(work: TaskHarness, *names: str) -> None:
    """Written by hand, since no request can."""
    side = work.runtime.database
    for name in names:
        await work.create(name)
    for name, ahead in zip(names, (*names[1:], names[0]), strict=True):
        side.execute("insert into task_dependencies values (?, ?, ?, 0)", work.zone_id, name, ahead)
        side.execute("update agent_tasks set waits = 2, unmet = 1, depends = 1 where id = ?", name)


async def test_recovering_one_zone_puts_off_no_check_of_the_others(coordinator_harness: CoordinatorHarness) -> None:
    await coordinator_harness.run_until_idle()
    await wait_for_each_other(coordinator_harness.task_harness, "a", "b")
    assert await coordinator_harness.coordinator.is_due() is True
    _, _, in_cycles = await coordinator_harness.coordinator.recover(ELSEWHERE)
    assert in_cycles == 0
    assert await coordinator_harness.coordinator.is_due() is True, "cycles are still to be looked for"
    _, _, in_cycles = await coordinator_harness.coordinator.recover(ZONE)
    assert in_cycles == 2
    assert (await coordinator_harness.read_task("a")).reason == "dependency_cycle"


async def test_recovering_one_zone_finds_what_is_due_in_it_however_much_is_due_elsewhere(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "LIMIT", 3)
    monkeypatch.setattr(coordinators, "AGENT_LIMIT", 2)
    beside = TaskHarness(coordinator_harness.runtime, ELSEWHERE)
    for work in (beside, coordinator_harness.task_harness):
        for number in range(4 if work is beside else 1):
            name = f"{work.zone_id}-{number}"
            await work.register_agent(name, slots=1)
            await work.create(f"late {name}", run_at=9_000_000_000_000)
            await work.create(f"slow {name}", timeout_seconds=60)
            await work.claim(name)
    keel = coordinator_harness.runtime
    keel.database.execute("update agent_tasks set available_at = 1 where waits = 1")
    keel.database.execute("update agent_tasks set timeout_at = 1 where timeout_at is not null")
    keel.database.execute("update agent_pulses set last_seen_at = 1")
    keel.database.execute("update agents set look_at = 1")
    keel.database.execute("update agents set look_at = 2 where zone_id = ?", ZONE)
    seen, looked_at, _ = await coordinator_harness.coordinator.recover(ZONE)
    assert looked_at == 1
    assert [zone_id for zone_id, _ in seen.due] == [ZONE]
    assert [each.zone_id for each in seen.timed_out] == [ZONE]
    assert keel.database.count("agents", "status = 'ERROR'") == 1
    assert keel.database.count("agent_tasks", f"zone_id = '{ELSEWHERE}' and status = 'RUNNING'") == 4
    late = await coordinator_harness.read_task(f"late {ZONE}-0")
    assert (late.status, late.waits_for) == (State.PENDING, 0)


async def test_walks_go_on_where_the_last_one_stopped_and_begin_anew_after_the_end(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_cycles, "SLICE", 2)
    monkeypatch.setattr(dependency_cycles, "WAITING_MAX", 4)
    beside, everywhere = (
        TaskHarness(coordinator_harness.runtime, ELSEWHERE),
        coordinator_harness.runtime.cross_zone_engine,
    )
    await beside.create("root")
    await coordinator_harness.task_harness.create("root")
    for number in range(3):
        await beside.create(f"e{number}", depends_on=("root",))
    for number in range(7):
        await coordinator_harness.task_harness.create(f"t{number}", depends_on=("root",))
    first = await load_waiting(everywhere, START)
    assert {zone: [*of] for zone, of in first.depends_on.items()} == {ELSEWHERE: ["e0", "e1", "e2"]}
    second = await load_waiting(everywhere, first.stopped_at)
    assert {zone: [*of] for zone, of in second.depends_on.items()} == {ZONE: ["t0", "t1", "t2", "t3"]}, (
        "a zone that was begun is taken whole, as far as a walk goes"
    )
    third = await load_waiting(everywhere, second.stopped_at)
    assert [*third.depends_on[ZONE]] == ["t4", "t5", "t6"]
    assert third.stopped_at == START
    of_zone = await load_waiting_in_zone(everywhere, ELSEWHERE)
    assert {zone: [*of] for zone, of in of_zone.depends_on.items()} == {ELSEWHERE: ["e0", "e1", "e2"]}


async def test_a_cycle_beyond_the_first_walk_is_found_by_a_later_one(
    coordinator_harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_cycles, "SLICE", 2)
    monkeypatch.setattr(dependency_cycles, "WAITING_MAX", 4)
    await coordinator_harness.task_harness.create("root")
    for number in range(4):
        await coordinator_harness.task_harness.create(f"t{number}", depends_on=("root",))
    await wait_for_each_other(coordinator_harness.task_harness, "u", "v")
    found = [(await coordinator_harness.coordinator.recover(None))[2] for _ in range(3)]
    assert found == [0, 2, 0]
