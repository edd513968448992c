"""Live sessions whose parent has ended: only a manual change in the database creates one, and a sweep ends it."""

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
    async with open_runtime(engine_url, RuntimeOptions(chunk=3)) as runtime:
        await runtime.put_zone()
        yield runtime


def delete_row(database: DirectDatabase, parent: Session) -> None:
    database.execute("delete from agent_sessions where id = ?", parent.id)


def set_status_only(database: DirectDatabase, parent: Session) -> None:
    database.execute("update agent_sessions set status = 'terminated' where id = ?", parent.id)


def set_status_and_time(database: DirectDatabase, parent: Session) -> None:
    database.execute("update agent_sessions set status = 'terminated', terminated_at = 7 where id = ?", parent.id)


ENDS = pytest.mark.parametrize("end", [delete_row, set_status_only, set_status_and_time], ids=lambda end: end.__name__)


@ENDS
async def test_orphaned_session_is_terminated_with_its_subtree(
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
        session = await runtime.read_session(row)
        assert (session.status, session.termination_reason) == (State.TERMINATED, ORPHANED)
        assert runtime.database.scalar("select status from agent_sessions where id = ?", row.id) == "terminated"
    assert [await runtime.read_session(row) for row in healthy] == before
    ended = [event for event in await runtime.read_log() if event.type == "session.terminate"]
    assert {event.subject for event in ended} == {row.id for row in [*orphans, *below]}
    assert {(event.actor, msgspec.json.decode(event.data)["reason"]) for event in ended} == {("sweep", "orphaned")}
    assert await runtime.run_sweep(name=ORPHAN) == 0


async def test_sweep_without_orphans_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(2, 2)
    [ended, *_] = await runtime.spawn_tree(2)
    await runtime.terminate(ended)
    [suspended, *_] = await runtime.spawn_tree(1)
    await runtime.suspend(suspended)
    log = await runtime.read_log()
    assert await runtime.run_sweep(name=ORPHAN) == 0
    assert await runtime.read_log() == log


@pytest.mark.parametrize("finished_chunks", [0, 1])
async def test_marked_sessions_are_left_to_their_cascade(runtime: RuntimeHarness, finished_chunks: int) -> None:
    tree = await runtime.spawn_tree(2, 3)
    result = await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "enough", admin()))
    assert result.cascade_id
    for _ in range(finished_chunks):
        await runtime.finish_cascade_lane.submit(FinishCascade(ZONE, result.cascade_id))
    before = runtime.database.count("agent_sessions", "status = 'terminated'")
    assert await runtime.run_sweep(name=ORPHAN) == 0
    assert runtime.database.count("agent_sessions", "status = 'terminated'") == before
    await runtime.run_sweep(name=CASCADE)
    assert {(await runtime.read_session(row)).termination_reason for row in tree} == {"enough"}
    assert_counts_match_rows(runtime.database)


async def test_expired_orphan_keeps_ttl_expired_as_its_reason(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    delete_row(runtime.database, root)
    runtime.database.expire_sessions(child)
    assert await runtime.run_sweep(name=ORPHAN) == 1
    session = await runtime.read_session(child)
    assert (session.termination_reason, session.terminated_at) == ("ttl_expired", session.expires_at)


async def test_orphans_of_all_zones_are_terminated_over_several_passes(runtime: RuntimeHarness) -> None:
    for zone_id in ("a", "b", "c"):
        await runtime.put_zone(zone_id)
        root, *_ = await runtime.spawn_tree(5, zone_id=zone_id)
        await runtime.freeze_zone(zone_id)
        delete_row(runtime.database, root)
    assert await runtime.run_sweep(batch=4, name=ORPHAN) == 15
    assert runtime.database.count("agent_sessions", "status <> 'terminated'") == 0


async def test_orphan_suspended_by_its_deleted_parent_is_terminated(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.suspend(root)
    delete_row(runtime.database, root)
    assert await runtime.run_sweep(name=ORPHAN) == 1
    assert (await runtime.read_session(child)).status is State.TERMINATED
