"""Counts that a hand has made wrong are found and set right, and nothing else is touched."""

from __future__ import annotations

import pytest

from quarterdeck.core.errors import LimitReached
from quarterdeck.domain.sessions.sweeps import CountReconciler
from tests.support.asking import ZONE
from tests.support.keel import Keel


async def reconcile(keel: Keel) -> int:
    return await CountReconciler(keel.everywhere, keel.recounts.submit).run_once(1_000)


def counts(keel: Keel) -> list[tuple[object, ...]]:
    return [*keel.side.run("select scope, key, live, ever from admission_counts order by scope, key")]


async def recounts(keel: Keel) -> list[str]:
    return [event.data for event in await keel.log() if event.type == "zone.recount"]


async def test_counts_that_are_right_are_left_alone(keel: Keel) -> None:
    root = (await keel.tree(2))[0]
    await keel.end((await keel.subtree(root))[-1])
    await keel.suspend(root)
    before = counts(keel)
    await reconcile(keel)
    assert counts(keel) == before
    assert await recounts(keel) == []


async def test_a_count_that_is_too_high_too_low_or_gone_is_what_is_there_again(keel: Keel) -> None:
    await keel.tree(2, 2)
    before = counts(keel)
    keel.side.run("update admission_counts set live = live + 5 where scope = 'zone'")
    keel.side.run("update admission_counts set live = 0 where scope = 'application'")
    keel.side.run("delete from admission_counts where scope = 'concurrent'")
    await reconcile(keel)
    # How many there ever were in the zone is counted for trees alone; of what is gone it is what is there.
    assert [row[:3] for row in counts(keel)] == [row[:3] for row in before]
    [told] = await recounts(keel)
    assert '"mended":3' in told
    await reconcile(keel)
    assert len(await recounts(keel)) == 1


async def test_what_a_tree_has_ever_had_is_not_forgotten(keel: Keel) -> None:
    root = (await keel.tree(3))[0]
    for child in (await keel.subtree(root))[1:]:
        await keel.end(child)
    keel.side.run("update admission_counts set live = 3 where scope = 'tree'")
    await reconcile(keel)
    assert keel.side.one("select ever from admission_counts where scope = 'tree'") == 4


async def test_a_zone_whose_count_was_too_high_admits_again(keel: Keel) -> None:
    await keel.zone(ZONE, max_sessions=2)
    await keel.spawn()
    keel.side.run("update admission_counts set live = 2 where scope = 'zone'")
    with pytest.raises(LimitReached):
        await keel.spawn()
    await reconcile(keel)
    await keel.spawn()
    with pytest.raises(LimitReached):
        await keel.spawn()


async def test_it_looks_at_every_zone_however_many_there_are(keel: Keel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterdeck.domain.sessions.sweeps.ZONES_PER_PAGE", 2)
    for number in range(5):
        await keel.zone(f"walk-{number}")
        await keel.spawn(f"walk-{number}")
    keel.side.run("update admission_counts set live = 7 where scope = 'zone'")
    assert await reconcile(keel) == 5
    assert keel.side.count("admission_counts", "scope = 'zone' and live = 7") == 0
    assert await reconcile(keel) == 0
