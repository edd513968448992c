"""Sessions that ended before the retention period are deleted, children before parents. All others are kept."""

from __future__ import annotations

from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import lowest_id_at, new_id
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.sessions.sweeps import RETENTION
from quarterdeck.engine.idempotency import KeyRetention
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness

DAYS = 30


def age_session(runtime: RuntimeHarness, session: Session, days: int) -> str:
    """Date the start and end of a session back and return its new id: ids contain their creation time."""
    at = session.spawned_at - days * DAY
    aged = lowest_id_at(at) + session.id[15:]
    for column in ("id", "parent_id", "root_id"):
        runtime.database.execute(f"update agent_sessions set {column} = ? where {column} = ?", aged, session.id)
    runtime.database.execute("update agent_sessions set terminated_at = ?, spawned_at = ? where id = ?", at, at, aged)
    return aged


def stored_ids(runtime: RuntimeHarness) -> set[object]:
    return {row[0] for row in runtime.database.execute("select id from agent_sessions")}


async def test_only_trees_that_ended_before_the_retention_period_are_deleted(runtime: RuntimeHarness) -> None:
    old, recent, live = [await runtime.spawn_tree(2, 1) for _ in range(3)]
    for tree in (old, recent):
        await runtime.terminate(tree[0])
    for session in old:
        age_session(runtime, session, DAYS + 1)
    for session in recent:
        age_session(runtime, session, DAYS - 1)
    assert await runtime.run_sweep(name=RETENTION) == len(old)
    assert len(stored_ids(runtime)) == len(recent) + len(live)
    assert {session.id for session in live} <= stored_ids(runtime)
    counted = runtime.database.scalar("select live from admission_counts where zone_id = ? and scope = 'zone'", ZONE)
    assert counted == len(live)


async def test_children_are_deleted_before_their_parents_in_passes_of_any_size(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2)
    await runtime.terminate(tree[0])
    aged = {age_session(runtime, session, DAYS + 1) for session in tree}
    sweep_runner = runtime.sweep_runner(batch=1)
    while remaining := stored_ids(runtime):
        orphans = runtime.database.execute(
            "select c.id from agent_sessions c where c.parent_id is not null and not exists "
            "(select 1 from agent_sessions p where p.id = c.parent_id)"
        )
        assert not orphans
        assert remaining <= aged
        await sweep_runner.run_now(RETENTION)


async def test_idempotency_keys_older_than_the_retention_period_are_deleted(runtime: RuntimeHarness) -> None:
    for key in ("old", "young"):
        await runtime.spawn(key=key, digest=key)
    runtime.database.execute(
        "update idempotency_keys set created_at = created_at - ? where key = 'old'", (DAYS + 1) * DAY
    )
    retention = KeyRetention(runtime.cross_zone_engine, DAYS, 1_000)
    assert await retention.run_once(1) == 1
    assert await retention.run_once(1) == 0
    assert runtime.database.execute("select key from idempotency_keys") == [("young",)]


async def test_key_retention_deletes_over_many_batches_and_then_starts_over(runtime: RuntimeHarness) -> None:
    runtime.database.execute(
        "insert into idempotency_keys (zone_id, application_id, operation, key, digest, subject_id, created_at) "
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < 12000) "
        "select ?, 'a', 'spawn', cast(i as text), 'd', 's', 0 from n",
        ZONE,
    )
    retention = KeyRetention(runtime.cross_zone_engine, DAYS, 1_000)
    assert await retention.run_once(1) == 12_000
    assert runtime.database.count("idempotency_keys") == 0
    await runtime.spawn(key="new", digest="new")
    assert await retention.run_once(1) == 0


def test_lowest_id_at_a_time_is_below_all_later_ids() -> None:
    now = int(new_id().replace("-", "")[:12], 16)
    assert lowest_id_at(now - 1_000) < new_id() < lowest_id_at(now + 60_000)
