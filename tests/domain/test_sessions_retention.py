"""What ended long ago is removed, children before parents; what lives, or ended lately, stays."""

from __future__ import annotations

from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import lowest_id_at, new_id
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.sessions.sweeps import RETENTION
from quarterdeck.engine.idempotency import KeyRetention
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness

DAYS = 30


def age(keel: RuntimeHarness, session: Session, days: int) -> str:
    """Lets a session have been made and ended so long ago; its id then, because ids tell when they were made."""
    at = session.spawned_at - days * DAY
    aged = lowest_id_at(at) + session.id[15:]
    for column in ("id", "parent_id", "root_id"):
        keel.database.execute(f"update agent_sessions set {column} = ? where {column} = ?", aged, session.id)
    keel.database.execute("update agent_sessions set terminated_at = ?, spawned_at = ? where id = ?", at, at, aged)
    return aged


def rows(keel: RuntimeHarness) -> set[object]:
    return {row[0] for row in keel.database.execute("select id from agent_sessions")}


async def test_what_ended_long_ago_is_removed_whole_and_what_ended_lately_stays(runtime: RuntimeHarness) -> None:
    old, lately, living = [await runtime.spawn_tree(2, 1) for _ in range(3)]
    for made in (old, lately):
        await runtime.terminate(made[0])
    for session in old:
        age(runtime, session, DAYS + 1)
    for session in lately:
        age(runtime, session, DAYS - 1)
    assert await runtime.run_sweep(name=RETENTION) == len(old)
    assert len(rows(runtime)) == len(lately) + len(living)
    assert {session.id for session in living} <= rows(runtime)
    counted = runtime.database.scalar("select live from admission_counts where zone_id = ? and scope = 'zone'", ZONE)
    assert counted == len(living)


async def test_children_are_removed_before_their_parents_however_small_the_passes(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2)
    await runtime.terminate(made[0])
    aged = {age(runtime, session, DAYS + 1) for session in made}
    sweeper = runtime.sweep_runner(batch=1)
    while left := rows(runtime):
        orphans = runtime.database.execute(
            "select c.id from agent_sessions c where c.parent_id is not null and not exists "
            "(select 1 from agent_sessions p where p.id = c.parent_id)"
        )
        assert not orphans
        assert left <= aged
        await sweeper.run_now(RETENTION)


async def test_keys_older_than_anything_they_could_stand_for_are_removed(runtime: RuntimeHarness) -> None:
    for key in ("old", "young"):
        await runtime.spawn(key=key, digest=key)
    runtime.database.execute(
        "update idempotency_keys set created_at = created_at - ? where key = 'old'", (DAYS + 1) * DAY
    )
    walking = KeyRetention(runtime.cross_zone_engine, DAYS, 1_000)
    assert await walking.run_once(1) == 1
    assert await walking.run_once(1) == 0
    assert runtime.database.execute("select key from idempotency_keys") == [("young",)]


async def test_the_walk_over_keys_goes_on_where_it_stopped_and_comes_round_again(runtime: RuntimeHarness) -> None:
    runtime.database.execute(
        "insert into idempotency_keys (zone_id, application_id, operation, key, digest, subject_id, created_at) "
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < 12000) "
        "select ?, 'a', 'spawn', cast(i as text), 'd', 's', 0 from n",
        ZONE,
    )
    walking = KeyRetention(runtime.cross_zone_engine, DAYS, 1_000)
    assert await walking.run_once(1) == 12_000
    assert runtime.database.count("idempotency_keys") == 0
    await runtime.spawn(key="new", digest="new")
    assert await walking.run_once(1) == 0


def test_the_first_id_of_an_instant_is_below_all_ids_made_from_then_on() -> None:
    now = int(new_id().replace("-", "")[:12], 16)
    assert lowest_id_at(now - 1_000) < new_id() < lowest_id_at(now + 60_000)
