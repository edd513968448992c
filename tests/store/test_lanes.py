"""Lanes on real databases: failing commands, full queues, and zones locked by another transaction."""

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
LOCKED = "locked-zone"


async def within_limit(awaited: Awaitable[T]) -> T:
    """Await with a time-out that is long for a spawn and short for a held lock."""
    async with asyncio.timeout(10):
        return await awaited


async def outcomes(runtime: RuntimeHarness, commands: list[Spawn]) -> list[str]:
    submitted = [runtime.spawn_lane.submit(command) for command in commands]
    return result_names(await within_limit(asyncio.gather(*submitted, return_exceptions=True)))


async def eventually_waiting(runtime: RuntimeHarness) -> None:
    async def is_waiting() -> bool:
        return runtime.database.waiting_for_locks() > 0

    await eventually(is_waiting, "a transaction waited for a lock")


# -- failing commands


@pytest.mark.parametrize("failing", [[77], [0, 199]], ids=["one", "two"])
async def test_command_that_the_database_refuses_fails_alone_in_a_batch_of_200(
    runtime: RuntimeHarness, failing: list[int]
) -> None:
    first = await runtime.spawn()
    commands = [spawn_command(id=first.id) if number in failing else spawn_command() for number in range(200)]
    results = await outcomes(runtime, commands)
    assert results == ["conflict" if number in failing else "Spawned" for number in range(200)]
    assert runtime.database.count("agent_sessions") == 201 - len(failing)
    assert len(await runtime.read_log()) == 2 + 200 - len(failing)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("failing", [[77], [13, 14]], ids=["one", "two"])
async def test_command_that_breaks_the_operation_fails_alone_in_a_batch_of_200(
    runtime: RuntimeHarness, failing: list[int]
) -> None:
    commands = [spawn_command(session_sid="\ud800") if number in failing else spawn_command() for number in range(200)]
    results = await outcomes(runtime, commands)
    assert results == ["internal_error" if number in failing else "Spawned" for number in range(200)]
    assert runtime.database.count("agent_sessions") == 200 - len(failing)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("field", ["metadata", "session_sid", "key", "trace", "parent_id"])
async def test_nul_fails_alone_in_a_batch_of_200_on_postgresql(postgres_url: str, field: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        results = await outcomes(runtime, [spawn_command(**({field: "x\0y"} if n == 77 else {})) for n in range(200)])
        assert results == ["invalid_value" if number == 77 else "Spawned" for number in range(200)]
        assert runtime.database.count("agent_sessions") == 199
        assert_counts_match_rows(runtime.database)


# -- queue


async def test_full_queue_returns_503_and_writes_nothing_for_refused_commands(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(settings=EngineSettings(queue_max=50, batch_max=10))) as runtime:
        await runtime.put_zone()
        await runtime.put_zone("other")
        submitted = [runtime.spawn_lane.submit(spawn_command()) for _ in range(200)]
        late = runtime.spawn_lane.submit(spawn_command("other"))
        results = await within_limit(asyncio.gather(*submitted, return_exceptions=True))
        refused = [result for result in results if isinstance(result, Unavailable)]
        assert {(result.code, result.retry_after) for result in refused} == {("queue_full", 1)}
        assert (await within_limit(late)).created, "a zone without queued commands is still accepted"
        assert runtime.database.count("agent_sessions", "zone_id = ?", ZONE) == 200 - len(refused) == 49
        assert (await runtime.spawn()).zone_id == ZONE, "the lane continues"


async def test_lane_with_gather_seconds_collects_commands_before_a_batch(runtime: RuntimeHarness) -> None:
    batches: list[int] = []

    async def count(tx: Transaction, commands: Sequence[Spawn]) -> list[int]:
        batches.append(len(commands))
        return [len(commands)] * len(commands)

    lane = runtime.lanes.add_write_lane("gather", count, 0.2)
    first = lane.submit(spawn_command())
    await asyncio.sleep(0)  # the lane has started and waits for more commands
    others = [lane.submit(spawn_command()) for _ in range(9)]
    assert await within_limit(asyncio.gather(first, *others)) == [10] * 10
    assert batches == [10]
    assert await within_limit(lane.submit(spawn_command())) == 1, "the lane continues"
    await within_limit(lane.drain())


# -- busy zones


@contextmanager
def zone_locked(url: str, zone_id: str = LOCKED) -> Iterator[psycopg.Connection]:
    """Lock the zone's row in another transaction."""
    with psycopg.connect(url) as connection:
        connection.execute("select id from zones where id = %s for update", (zone_id,))
        yield connection


async def test_locked_zone_does_not_delay_others_and_is_served_when_free(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        await runtime.put_zone(LOCKED)
        session = await runtime.spawn(LOCKED)
        with zone_locked(postgres_url):
            waiting: list[asyncio.Future[object]] = []
            for _ in range(20):
                waiting.append(asyncio.ensure_future(runtime.spawn_lane.submit(spawn_command(LOCKED))))
                await within_limit(runtime.spawn_lane.submit(spawn_command()))
            waiting.append(
                asyncio.ensure_future(runtime.terminate_lane.submit(Terminate(LOCKED, session.id, "x", admin(LOCKED))))
            )
            waiting.append(
                asyncio.ensure_future(runtime.put_zone_lane.submit(PutZone(LOCKED, "new name", None, "tester")))
            )
            await within_limit(runtime.terminate(await runtime.spawn()))
            await within_limit(runtime.put_zone_lane.submit(PutZone("third", None, None, "tester")))
            assert not any(future.done() for future in waiting)
        results = result_names(await within_limit(asyncio.gather(*waiting)))
        assert results == ["Spawned"] * 20 + ["TerminateResult", "PutZoneResult"]
        assert runtime.database.count("agent_sessions", "zone_id = ? and status = 'active'", LOCKED) == 20
        assert_counts_match_rows(runtime.database)


async def test_spawns_of_one_batch_skip_a_locked_zone(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        free = [f"free-{number}" for number in range(5)]
        for zone_id in (*free, LOCKED):
            await runtime.put_zone(zone_id)
        with zone_locked(postgres_url):
            waiting = runtime.spawn_lane.submit(spawn_command(LOCKED))
            spawns = [runtime.spawn_lane.submit(spawn_command(zone_id)) for zone_id in free * 10]
            assert result_names(await within_limit(asyncio.gather(*spawns))) == ["Spawned"] * 50
            assert not waiting.done()
        assert (await within_limit(waiting)).created


async def test_spawn_that_waited_for_a_zone_sees_what_the_lock_holder_wrote(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone(LOCKED)
        with zone_locked(postgres_url) as holder:
            waiting = runtime.spawn_lane.submit(spawn_command(LOCKED))
            await eventually_waiting(runtime)
            holder.execute("update zones set quotas = '{\"max_sessions\": 0}' where id = %s", (LOCKED,))
        with pytest.raises(LimitReached) as refused:
            await within_limit(waiting)
        assert refused.value.members["limit"] == 0


async def test_rows_are_read_after_the_lock_is_acquired(postgres_url: str) -> None:
    # The loads are sent in the same pipeline as the lock. They must still see what its holder wrote meanwhile.
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        await one.put_zone(max_sessions=10)
        entered, finish = asyncio.Event(), asyncio.Event()

        async def hold_lock(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, [ZONE]))
            entered.set()
            await finish.wait()
            await one.spawner.spawn(tx, [spawn_command() for _ in range(10)])

        holding = asyncio.ensure_future(one.engine.transact(hold_lock, zones=[ZONE], wait_for_locks=True))
        await entered.wait()
        waiting = two.engine.transact(
            lambda tx: two.spawner.spawn(tx, [spawn_command()]), zones=[ZONE], wait_for_locks=True
        )
        spawning = asyncio.ensure_future(waiting)
        await eventually_waiting(two)
        finish.set()
        await holding
        assert result_names(await within_limit(spawning)) == ["agent_zone_limit_exceeded"]
        assert_counts_match_rows(one.database)


async def test_zone_locked_for_too_long_returns_503_and_writes_nothing(postgres_url: str) -> None:
    limits = LaneLimits(retry=Policy(max_attempts=1, base_ms=1))
    async with open_runtime(postgres_url, RuntimeOptions(lane_limits=limits)) as runtime:
        await runtime.put_zone()
        await runtime.put_zone(LOCKED)
        with zone_locked(postgres_url):
            refused = [runtime.spawn_lane.submit(spawn_command(LOCKED)) for _ in range(3)]
            await within_limit(runtime.spawn_lane.submit(spawn_command()))
            results = await within_limit(asyncio.gather(*refused, return_exceptions=True))
            assert result_names(results) == ["database_unavailable"] * 3
            assert all(isinstance(result, Unavailable) and result.retry_after == 1 for result in results)
        assert runtime.database.count("agent_sessions", "zone_id = ?", LOCKED) == 0
        assert (await within_limit(runtime.spawn_lane.submit(spawn_command(LOCKED)))).created


async def test_replica_frozen_with_a_lock_is_aborted_and_blocks_no_other(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as frozen, open_runtime(postgres_url) as active:
        await frozen.put_zone()
        entered, resume = asyncio.Event(), asyncio.Event()

        async def freeze(tx: Transaction) -> None:
            await frozen.spawner.spawn(tx, [spawn_command()])
            entered.set()
            await resume.wait()

        freezing = asyncio.ensure_future(frozen.engine.transact(freeze, zones=[ZONE], wait_for_locks=True))
        await entered.wait()
        assert (await within_limit(active.spawn_lane.submit(spawn_command()))).created
        resume.set()
        with pytest.raises(TransientError):
            await within_limit(freezing)
        assert active.database.count("agent_sessions") == 1
        assert_counts_match_rows(active.database)


async def test_concurrent_lanes_and_zones_never_deadlock(postgres_url: str) -> None:
    # The two replicas lock the zones in opposite orders. A deadlock would cost a second and log a warning.
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        zone_ids = [f"zone-{number}" for number in range(12)]
        for zone_id in zone_ids:
            await one.put_zone(zone_id)

        def batch(runtime: RuntimeHarness, order: list[str]) -> list[Awaitable[object]]:
            spawns: list[Awaitable[object]] = [runtime.spawn_lane.submit(spawn_command(zone_id)) for zone_id in order]
            return spawns + [
                runtime.put_zone_lane.submit(PutZone(zone_id, None, Overrides(max_depth=3), "t")) for zone_id in order
            ]

        for _ in range(5):
            await within_limit(asyncio.gather(*batch(one, zone_ids), *batch(two, zone_ids[::-1])))
        assert_counts_match_rows(one.database)
    # Connections report their statistics when they close.
    deadlocks = DirectDatabase(postgres_url).scalar(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    assert deadlocks == 0
