"""Session counts that a manual change made incorrect are repaired. Correct counts are not touched."""

from __future__ import annotations

import pytest

from quarterdeck.core.errors import LimitReached
from quarterdeck.domain.sessions.sweeps import CountReconciler
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness


async def reconcile(runtime: RuntimeHarness) -> int:
    return await CountReconciler(runtime.cross_zone_engine, runtime.repair_counts_lane.submit).run_once(1_000)


def counts(runtime: RuntimeHarness) -> list[tuple[object, ...]]:
    return [*runtime.database.execute("select scope, key, live, ever from admission_counts order by scope, key")]


async def recounts(runtime: RuntimeHarness) -> list[str]:
    return [event.data for event in await runtime.read_log() if event.type == "zone.recount"]


async def test_correct_counts_are_not_changed(runtime: RuntimeHarness) -> None:
    root = (await runtime.spawn_tree(2))[0]
    await runtime.terminate((await runtime.read_subtree(root))[-1])
    await runtime.suspend(root)
    before = counts(runtime)
    await reconcile(runtime)
    assert counts(runtime) == before
    assert await recounts(runtime) == []


async def test_counts_too_high_too_low_or_deleted_are_repaired_from_the_rows(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(2, 2)
    before = counts(runtime)
    runtime.database.execute("update admission_counts set live = live + 5 where scope = 'zone'")
    runtime.database.execute("update admission_counts set live = 0 where scope = 'application'")
    runtime.database.execute("delete from admission_counts where scope = 'concurrent'")
    await reconcile(runtime)
    # Compare without `ever`: only trees use it, and a deleted count restarts it from the existing rows.
    assert [row[:3] for row in counts(runtime)] == [row[:3] for row in before]
    [data] = await recounts(runtime)
    assert '"mended":3' in data
    await reconcile(runtime)
    assert len(await recounts(runtime)) == 1


async def test_repair_keeps_the_count_of_sessions_a_tree_ever_had(runtime: RuntimeHarness) -> None:
    root = (await runtime.spawn_tree(3))[0]
    for child in (await runtime.read_subtree(root))[1:]:
        await runtime.terminate(child)
    runtime.database.execute("update admission_counts set live = 3 where scope = 'tree'")
    await reconcile(runtime)
    assert runtime.database.scalar("select ever from admission_counts where scope = 'tree'") == 4


async def test_zone_whose_count_was_too_high_admits_after_the_repair(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(ZONE, max_sessions=2)
    await runtime.spawn()
    runtime.database.execute("update admission_counts set live = 2 where scope = 'zone'")
    with pytest.raises(LimitReached):
        await runtime.spawn()
    await reconcile(runtime)
    await runtime.spawn()
    with pytest.raises(LimitReached):
        await runtime.spawn()


async def test_repair_checks_every_zone_over_several_pages(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.domain.sessions.sweeps.ZONES_PER_PAGE", 2)
    for number in range(5):
        await runtime.put_zone(f"walk-{number}")
        await runtime.spawn(f"walk-{number}")
    runtime.database.execute("update admission_counts set live = 7 where scope = 'zone'")
    assert await reconcile(runtime) == 5
    assert runtime.database.count("admission_counts", "scope = 'zone' and live = 7") == 0
    assert await reconcile(runtime) == 0
