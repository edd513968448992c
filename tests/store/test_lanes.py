"""Lanes on real databases: poison, full queues, and zones that somebody else holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
import pytest

from quarterdeck.core.errors import LimitReached, Unavailable
from quarterdeck.core.retry import Policy
from quarterdeck.domain.sessions.model import Spawn, Terminate
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import Overrides, PutZone
from quarterdeck.engine.lanes import LaneLimits
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import TransientError
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.eventually import eventually
from tests.support.runtime import (
    DirectDatabase,
    RuntimeHarness,
    RuntimeOptions,
    assert_counts_match_rows,
    open_runtime,
    result_names,
)

T = TypeVar("T")
HELD = "held"


async def soon(awaited: Awaitable[T]) -> T:
    """Within a time that is long for a spawn and short for a lock somebody sits on."""
    async with asyncio.timeout(10):
        return await awaited


async def outcomes(keel: RuntimeHarness, asks: list[Spawn]) -> list[str]:
    submitted = [keel.spawn_lane.submit(asked) for asked in asks]
    return result_names(await soon(asyncio.gather(*submitted, return_exceptions=True)))


async def somebody_waits(keel: RuntimeHarness) -> None:
    async def waiting() -> bool:
        return keel.database.waiting_for_locks() > 0

    await eventually(waiting, "somebody waited for a lock")


# -- poison


@pytest.mark.parametrize("guilty", [[77], [0, 199]], ids=["one", "two"])
async def test_in_a_batch_of_200_what_the_database_refuses_fails_alone(
    runtime: RuntimeHarness, guilty: list[int]
) -> None:
    first = await runtime.spawn()
    asks = [spawn_command(id=first.id) if number in guilty else spawn_command() for number in range(200)]
    answers = await outcomes(runtime, asks)
    assert answers == ["conflict" if number in guilty else "Spawned" for number in range(200)]
    assert runtime.database.count("agent_sessions") == 201 - len(guilty)
    assert len(await runtime.read_log()) == 2 + 200 - len(guilty)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("guilty", [[77], [13, 14]], ids=["one", "two"])
async def test_in_a_batch_of_200_a_command_that_breaks_the_operation_fails_alone(
    runtime: RuntimeHarness, guilty: list[int]
) -> None:
    asks = [spawn_command(session_sid="\ud800") if number in guilty else spawn_command() for number in range(200)]
    answers = await outcomes(runtime, asks)
    assert answers == ["internal_error" if number in guilty else "Spawned" for number in range(200)]
    assert runtime.database.count("agent_sessions") == 200 - len(guilty)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("field", ["metadata", "session_sid", "key", "trace", "parent_id"])
async def test_in_a_batch_of_200_a_nul_fails_alone_on_postgresql(postgres_url: str, field: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        answers = await outcomes(keel, [spawn_command(**({field: "x\0y"} if n == 77 else {})) for n in range(200)])
        assert answers == ["invalid_value" if number == 77 else "Spawned" for number in range(200)]
        assert keel.database.count("agent_sessions") == 199
        assert_counts_match_rows(keel.database)


# -- the queue


async def test_a_full_queue_answers_503_and_writes_nothing_for_those_it_turned_away(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(settings=EngineSettings(queue_max=50, batch_max=10))) as keel:
        await keel.put_zone()
        await keel.put_zone("other")
        submitted = [keel.spawn_lane.submit(spawn_command()) for _ in range(200)]
        late = keel.spawn_lane.submit(spawn_command("other"))
        answers = await soon(asyncio.gather(*submitted, return_exceptions=True))
        refused = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert {(answer.code, answer.retry_after) for answer in refused} == {("queue_full", 1)}
        assert (await soon(late)).created, "a zone with nothing waiting still gets in"
        assert keel.database.count("agent_sessions", "zone_id = ?", ZONE) == 200 - len(refused) == 49
        assert (await keel.spawn()).zone_id == ZONE, "and the lane goes on"


async def test_what_nobody_is_in_a_hurry_for_gathers_before_it_is_written(runtime: RuntimeHarness) -> None:
    batches: list[int] = []

    async def count(tx: Transaction, asks: Sequence[Spawn]) -> list[int]:
        batches.append(len(asks))
        return [len(asks)] * len(asks)

    lane = runtime.lanes.add_write_lane("gathering", count, 0.2)
    first = lane.submit(spawn_command())
    await asyncio.sleep(0)  # the lane has begun, and waits for others
    others = [lane.submit(spawn_command()) for _ in range(9)]
    assert await soon(asyncio.gather(first, *others)) == [10] * 10
    assert batches == [10]
    assert await soon(lane.submit(spawn_command())) == 1, "and the lane goes on"
    await soon(lane.drain())


# -- busy zones


@contextmanager
def held_elsewhere(url: str, zone_id: str = HELD) -> Iterator[psycopg.Connection]:
    """Another program's transaction holds the zone's row."""
    with psycopg.connect(url) as connection:
        connection.execute("select id from zones where id = %s for update", (zone_id,))
        yield connection


async def test_a_zone_held_elsewhere_does_not_delay_another_and_is_served_when_it_is_free(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        await keel.put_zone(HELD)
        ended = await keel.spawn(HELD)
        with held_elsewhere(postgres_url):
            waiting: list[asyncio.Future[object]] = []
            for _ in range(20):
                waiting.append(asyncio.ensure_future(keel.spawn_lane.submit(spawn_command(HELD))))
                await soon(keel.spawn_lane.submit(spawn_command()))
            waiting.append(
                asyncio.ensure_future(keel.terminate_lane.submit(Terminate(HELD, ended.id, "x", admin(HELD))))
            )
            waiting.append(asyncio.ensure_future(keel.put_zone_lane.submit(PutZone(HELD, "new name", None, "tester"))))
            await soon(keel.terminate(await keel.spawn()))
            await soon(keel.put_zone_lane.submit(PutZone("third", None, None, "tester")))
            assert not any(future.done() for future in waiting)
        assert result_names(await soon(asyncio.gather(*waiting))) == ["Spawned"] * 20 + ["Ended", "ZonePut"]
        assert keel.database.count("agent_sessions", "zone_id = ? and status = 'active'", HELD) == 20
        assert_counts_match_rows(keel.database)


async def test_spawns_of_one_batch_go_on_past_a_zone_held_elsewhere(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        free = [f"free-{number}" for number in range(5)]
        for zone_id in (*free, HELD):
            await keel.put_zone(zone_id)
        with held_elsewhere(postgres_url):
            waiting = keel.spawn_lane.submit(spawn_command(HELD))
            together = [keel.spawn_lane.submit(spawn_command(zone_id)) for zone_id in free * 10]
            assert result_names(await soon(asyncio.gather(*together))) == ["Spawned"] * 50
            assert not waiting.done()
        assert (await soon(waiting)).created


async def test_whoever_waited_for_a_zone_is_judged_by_what_its_holder_left_there(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone(HELD)
        with held_elsewhere(postgres_url) as holder:
            waiting = keel.spawn_lane.submit(spawn_command(HELD))
            await somebody_waits(keel)
            holder.execute("update zones set quotas = '{\"max_sessions\": 0}' where id = %s", (HELD,))
        with pytest.raises(LimitReached) as refused:
            await soon(waiting)
        assert refused.value.members["limit"] == 0


async def test_locks_come_first_and_what_decides_is_read_after_them(postgres_url: str) -> None:
    # The loads travel in the same pipeline as the lock; they must still see what its holder wrote meanwhile.
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        await one.put_zone(max_sessions=10)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def slow(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, [ZONE]))
            entered.set()
            await leave.wait()
            await one.spawner.spawn(tx, [spawn_command() for _ in range(10)])

        holding = asyncio.ensure_future(one.engine.transact(slow, zones=[ZONE], wait_for_locks=True))
        await entered.wait()
        waiting = two.engine.transact(
            lambda tx: two.spawner.spawn(tx, [spawn_command()]), zones=[ZONE], wait_for_locks=True
        )
        judged = asyncio.ensure_future(waiting)
        await somebody_waits(two)
        leave.set()
        await holding
        assert result_names(await soon(judged)) == ["agent_zone_limit_exceeded"]
        assert_counts_match_rows(one.database)


async def test_a_zone_held_for_too_long_is_answered_503_and_nothing_is_written(postgres_url: str) -> None:
    patience = LaneLimits(retry=Policy(max_attempts=1, base_ms=1))
    async with open_runtime(postgres_url, RuntimeOptions(lane_limits=patience)) as keel:
        await keel.put_zone()
        await keel.put_zone(HELD)
        with held_elsewhere(postgres_url):
            refused = [keel.spawn_lane.submit(spawn_command(HELD)) for _ in range(3)]
            await soon(keel.spawn_lane.submit(spawn_command()))
            answers = await soon(asyncio.gather(*refused, return_exceptions=True))
            assert result_names(answers) == ["database_unavailable"] * 3
            assert all(isinstance(answer, Unavailable) and answer.retry_after == 1 for answer in answers)
        assert keel.database.count("agent_sessions", "zone_id = ?", HELD) == 0
        assert (await soon(keel.spawn_lane.submit(spawn_command(HELD)))).created


async def test_a_replica_that_freezes_under_a_lock_is_cut_off_and_holds_nobody_up(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as frozen, open_runtime(postgres_url) as lively:
        await frozen.put_zone()
        entered, thaw = asyncio.Event(), asyncio.Event()

        async def freeze(tx: Transaction) -> None:
            await frozen.spawner.spawn(tx, [spawn_command()])
            entered.set()
            await thaw.wait()

        freezing = asyncio.ensure_future(frozen.engine.transact(freeze, zones=[ZONE], wait_for_locks=True))
        await entered.wait()
        assert (await soon(lively.spawn_lane.submit(spawn_command()))).created
        thaw.set()
        with pytest.raises(TransientError):
            await soon(freezing)
        assert lively.database.count("agent_sessions") == 1
        assert_counts_match_rows(lively.database)


async def test_many_lanes_and_zones_at_once_never_wait_for_each_other_in_a_circle(postgres_url: str) -> None:
    # Opposite orders of zones in every batch; a deadlock would show as a second lost, and as a warning in the log.
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        names = [f"zone-{number}" for number in range(12)]
        for name in names:
            await one.put_zone(name)

        def batch(keel: RuntimeHarness, order: list[str]) -> list[Awaitable[object]]:
            made: list[Awaitable[object]] = [keel.spawn_lane.submit(spawn_command(name)) for name in order]
            return made + [
                keel.put_zone_lane.submit(PutZone(name, None, Overrides(max_depth=3), "t")) for name in order
            ]

        for _ in range(5):
            await soon(asyncio.gather(*batch(one, names), *batch(two, names[::-1])))
        assert_counts_match_rows(one.database)
    # Told by connections as they end.
    deadlocks = DirectDatabase(postgres_url).scalar(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    assert deadlocks == 0
