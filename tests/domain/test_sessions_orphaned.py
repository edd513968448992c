"""Sessions that live though their parent does not: only a hand in the database makes one, and a sweep ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from quarterdeck.domain.sessions.model import FinishCascade, Session, State, Terminate
from quarterdeck.domain.sessions.sweeps import CASCADE, ORPHAN, ORPHANED
from tests.support.builders import ZONE, admin
from tests.support.runtime import DirectDatabase, RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=3)) as laid:
        await laid.put_zone()
        yield laid


def gone(side: DirectDatabase, parent: Session) -> None:
    side.execute("delete from agent_sessions where id = ?", parent.id)


def only_its_state(side: DirectDatabase, parent: Session) -> None:
    side.execute("update agent_sessions set status = 'terminated' where id = ?", parent.id)


def its_state_and_its_instant(side: DirectDatabase, parent: Session) -> None:
    side.execute("update agent_sessions set status = 'terminated', terminated_at = 7 where id = ?", parent.id)


ENDS = pytest.mark.parametrize("end", [gone, only_its_state, its_state_and_its_instant], ids=lambda end: end.__name__)


@ENDS
async def test_whoever_has_lost_its_parent_is_ended_with_all_under_it(
    runtime: RuntimeHarness, end: Callable[[DirectDatabase, Session], None]
) -> None:
    root, child, other, *grandchildren = await runtime.spawn_tree(2, 2)
    end(runtime.database, child)
    orphans = [row for row in grandchildren if row.parent_id == child.id]
    below = [await runtime.spawn(parent_id=orphans[0].id) for _ in range(4)]
    healthy = [root, other, *(row for row in grandchildren if row not in orphans)]
    before = [await runtime.read_session(row) for row in healthy]
    assert await runtime.run_sweep(name=ORPHAN) == 2
    for row in [*orphans, *below]:
        shown = await runtime.read_session(row)
        assert (shown.status, shown.termination_reason) == (State.TERMINATED, ORPHANED)
        assert runtime.database.scalar("select status from agent_sessions where id = ?", row.id) == "terminated"
    assert [await runtime.read_session(row) for row in healthy] == before
    ended = [event for event in await runtime.read_log() if event.type == "session.terminate"]
    assert {event.subject for event in ended} == {row.id for row in [*orphans, *below]}
    assert {(event.actor, msgspec.json.decode(event.data)["reason"]) for event in ended} == {("sweep", "orphaned")}
    assert await runtime.run_sweep(name=ORPHAN) == 0


async def test_where_nobody_has_lost_a_parent_nothing_moves(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(2, 2)
    [ended, *_] = await runtime.spawn_tree(2)
    await runtime.terminate(ended)
    [asleep, *_] = await runtime.spawn_tree(1)
    await runtime.suspend(asleep)
    log = await runtime.read_log()
    assert await runtime.run_sweep(name=ORPHAN) == 0
    assert await runtime.read_log() == log


@pytest.mark.parametrize("settles", [0, 1])
async def test_what_is_stamped_is_left_to_its_cascade(runtime: RuntimeHarness, settles: int) -> None:
    made = await runtime.spawn_tree(2, 3)
    ended = await runtime.terminate_lane.submit(Terminate(ZONE, made[0].id, "enough", admin()))
    assert ended.cascade_id
    for _ in range(settles):
        await runtime.finish_cascade_lane.submit(FinishCascade(ZONE, ended.cascade_id))
    before = runtime.database.count("agent_sessions", "status = 'terminated'")
    assert await runtime.run_sweep(name=ORPHAN) == 0
    assert runtime.database.count("agent_sessions", "status = 'terminated'") == before
    await runtime.run_sweep(name=CASCADE)
    assert {(await runtime.read_session(row)).termination_reason for row in made} == {"enough"}
    assert_counts_match_rows(runtime.database)


async def test_an_orphan_that_had_expired_ended_by_its_time(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    gone(runtime.database, root)
    runtime.database.expire_sessions(child)
    assert await runtime.run_sweep(name=ORPHAN) == 1
    shown = await runtime.read_session(child)
    assert (shown.termination_reason, shown.terminated_at) == ("ttl_expired", shown.expires_at)


async def test_orphans_of_every_zone_are_found_pass_after_pass(runtime: RuntimeHarness) -> None:
    for zone_id in ("a", "b", "c"):
        await runtime.put_zone(zone_id)
        root, *_ = await runtime.spawn_tree(5, zone_id=zone_id)
        await runtime.freeze_zone(zone_id)
        gone(runtime.database, root)
    assert await runtime.run_sweep(batch=4, name=ORPHAN) == 15
    assert runtime.database.count("agent_sessions", "status <> 'terminated'") == 0


async def test_an_orphan_asleep_under_a_flag_that_is_gone_with_its_parent_is_ended_too(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.suspend(root)
    gone(runtime.database, root)
    assert await runtime.run_sweep(name=ORPHAN) == 1
    assert (await runtime.read_session(child)).status is State.TERMINATED
