"""Sessions that live though their parent does not: only a hand in the database makes one, and a sweep ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from quarterdeck.domain.sessions.model import FinishCascade, Session, State, Terminate
from quarterdeck.domain.sessions.sweeps import CASCADE, ORPHAN, ORPHANED
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel, Rigging, Side, assert_counts_are_what_the_rows_say, keel_on


@pytest.fixture
async def keel(engine_url: str) -> AsyncIterator[Keel]:
    async with keel_on(engine_url, Rigging(chunk=3)) as laid:
        await laid.zone()
        yield laid


def gone(side: Side, parent: Session) -> None:
    side.run("delete from agent_sessions where id = ?", parent.id)


def only_its_state(side: Side, parent: Session) -> None:
    side.run("update agent_sessions set status = 'terminated' where id = ?", parent.id)


def its_state_and_its_instant(side: Side, parent: Session) -> None:
    side.run("update agent_sessions set status = 'terminated', terminated_at = 7 where id = ?", parent.id)


ENDS = pytest.mark.parametrize("end", [gone, only_its_state, its_state_and_its_instant], ids=lambda end: end.__name__)


@ENDS
async def test_whoever_has_lost_its_parent_is_ended_with_all_under_it(
    keel: Keel, end: Callable[[Side, Session], None]
) -> None:
    root, child, other, *grandchildren = await keel.tree(2, 2)
    end(keel.side, child)
    orphans = [row for row in grandchildren if row.parent_id == child.id]
    below = [await keel.spawn(parent_id=orphans[0].id) for _ in range(4)]
    healthy = [root, other, *(row for row in grandchildren if row not in orphans)]
    before = [await keel.show(row) for row in healthy]
    assert await keel.sweep(name=ORPHAN) == 2
    for row in [*orphans, *below]:
        shown = await keel.show(row)
        assert (shown.status, shown.termination_reason) == (State.TERMINATED, ORPHANED)
        assert keel.side.one("select status from agent_sessions where id = ?", row.id) == "terminated"
    assert [await keel.show(row) for row in healthy] == before
    ended = [event for event in await keel.log() if event.type == "session.terminate"]
    assert {event.subject for event in ended} == {row.id for row in [*orphans, *below]}
    assert {(event.actor, msgspec.json.decode(event.data)["reason"]) for event in ended} == {("sweep", "orphaned")}
    assert await keel.sweep(name=ORPHAN) == 0


async def test_where_nobody_has_lost_a_parent_nothing_moves(keel: Keel) -> None:
    await keel.tree(2, 2)
    [ended, *_] = await keel.tree(2)
    await keel.end(ended)
    [asleep, *_] = await keel.tree(1)
    await keel.suspend(asleep)
    log = await keel.log()
    assert await keel.sweep(name=ORPHAN) == 0
    assert await keel.log() == log


@pytest.mark.parametrize("settles", [0, 1])
async def test_what_is_stamped_is_left_to_its_cascade(keel: Keel, settles: int) -> None:
    made = await keel.tree(2, 3)
    ended = await keel.endings.submit(Terminate(ZONE, made[0].id, "enough", admin()))
    assert ended.cascade_id
    for _ in range(settles):
        await keel.settles.submit(FinishCascade(ZONE, ended.cascade_id))
    before = keel.side.count("agent_sessions", "status = 'terminated'")
    assert await keel.sweep(name=ORPHAN) == 0
    assert keel.side.count("agent_sessions", "status = 'terminated'") == before
    await keel.sweep(name=CASCADE)
    assert {(await keel.show(row)).termination_reason for row in made} == {"enough"}
    assert_counts_are_what_the_rows_say(keel.side)


async def test_an_orphan_that_had_expired_ended_by_its_time(keel: Keel) -> None:
    root, child = await keel.tree(1)
    gone(keel.side, root)
    keel.side.expire(child)
    assert await keel.sweep(name=ORPHAN) == 1
    shown = await keel.show(child)
    assert (shown.termination_reason, shown.terminated_at) == ("ttl_expired", shown.expires_at)


async def test_orphans_of_every_zone_are_found_pass_after_pass(keel: Keel) -> None:
    for zone_id in ("a", "b", "c"):
        await keel.zone(zone_id)
        root, *_ = await keel.tree(5, zone_id=zone_id)
        await keel.freeze(zone_id)
        gone(keel.side, root)
    assert await keel.sweep(batch=4, name=ORPHAN) == 15
    assert keel.side.count("agent_sessions", "status <> 'terminated'") == 0


async def test_an_orphan_asleep_under_a_flag_that_is_gone_with_its_parent_is_ended_too(keel: Keel) -> None:
    root, child = await keel.tree(1)
    await keel.suspend(root)
    gone(keel.side, root)
    assert await keel.sweep(name=ORPHAN) == 1
    assert (await keel.show(child)).status is State.TERMINATED
