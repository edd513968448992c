"""Entries that Redis rejects: retried in order, then dead, listed, requeued and deleted."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import defaultdict
from pathlib import Path

import pytest

from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.bus.redis.stream_entries import AGENTS, INVOCATIONS, REVOCATIONS
from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.engine import leader_loop
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.sinks import admin
from quarterdeck.engine.sinks.retention import SinkRetention, lowest_needed_position
from quarterdeck.engine.wakeups import Wakeups
from tests.support.audit_log import AuditLogHarness
from tests.support.eventually import eventually
from tests.support.redis import DirectRedis, RedisServer
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness
from tests.support.sink import SINK_NAME, NewSink, emit, make_entries_due, no_op, raise_unavailable

SPAWN, SUSPEND, RESUME, TERMINATE = "session.spawn", "session.suspend", "session.resume", "session.terminate"


def block(redis: DirectRedis, stream: str) -> None:
    """Make Redis reject every entry of a stream, by a key of another type under its name."""
    if redis.client.exists(stream):
        redis.client.rename(stream, f"{stream}:aside")
    redis.client.set(stream, "not a stream")


def unblock(redis: DirectRedis, stream: str) -> None:
    redis.client.delete(stream)
    if redis.client.exists(f"{stream}:aside"):
        redis.client.rename(f"{stream}:aside", stream)


def published(redis: DirectRedis, stream: str = AGENTS) -> list[tuple[str, str]]:
    return [(entry.fields["event"], entry.fields["agent_session_id"]) for entry in redis.entries(stream)]


def rejected_entries(runtime: RuntimeHarness) -> list[tuple[object, ...]]:
    """(stream, subject, attempts, is dead) of all rejected entries."""
    entries = runtime.database.execute(
        "select stream, subject, attempts, dead_at from sink_entries order by pos, entry"
    )
    return [(*row, dead_at is not None) for *row, dead_at in entries]


# -- retry


async def test_rejected_entry_is_set_aside_and_the_position_advances(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (TERMINATE, "b"), (SPAWN, "c"))
    await harness.run_until_idle()
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of b"]
    assert rejected_entries(runtime) == [(AGENTS, name, 1, False) for name in "abc"]
    assert "WRONGTYPE" in str(runtime.database.scalar("select min(error) from sink_entries"))
    assert runtime.database.scalar("select position from sinks") == len(await runtime.read_log())
    unblock(redis, AGENTS)
    make_entries_due(runtime)
    await harness.run_until_idle()
    assert sorted(published(redis)) == [("spawn", "a"), ("spawn", "c"), ("terminate", "b")]
    assert rejected_entries(runtime) == []
    assert (harness.sink.rejected_count, harness.sink.dead_count) == (3, 0)


async def test_rejected_entry_blocks_only_later_entries_of_its_subject(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SUSPEND, "a"))
    await harness.run_until_idle()
    unblock(redis, AGENTS)
    await emit(runtime, (RESUME, "a"), (SPAWN, "b"))
    await emit(runtime, (TERMINATE, "a"), (SPAWN, "c"))
    await harness.run_until_idle()
    assert published(redis) == [("spawn", "b"), ("spawn", "c")]
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of a"]
    for _ in range(3):
        make_entries_due(runtime)
        await harness.run_until_idle()
    assert [verb for verb, subject in published(redis) if subject == "a"] == ["suspend", "resume", "terminate"]
    assert rejected_entries(runtime) == []


async def test_retries_back_off_and_blocked_entries_wait_as_long(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"))
    for attempt in range(1, 6):
        started = int(str(runtime.database.scalar("select at from events order by pos desc limit 1")))
        await emit(runtime, ("zone.change", "z"))
        await harness.run_until_idle()
        [[first, last]] = runtime.database.execute("select min(next_at), max(next_at) from sink_entries")
        assert first == last, "otherwise blocked entries would be read again and again"
        assert int(str(first)) - started >= 500 * 2 ** (attempt - 1)
        await harness.run_until_idle()
        assert runtime.database.execute("select attempts from sink_entries order by pos") == [(attempt,), (0,)]
        make_entries_due(runtime)


async def test_entry_is_dead_after_max_attempts_and_unblocks_later_entries(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, caplog: pytest.LogCaptureFixture
) -> None:
    harness = new_sink(outbox_max_attempts=3)
    block(redis, AGENTS)
    await emit(runtime, (SUSPEND, "a"))
    await harness.run_until_idle()
    await emit(runtime, (RESUME, "a"))
    await harness.run_until_idle()
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            make_entries_due(runtime)
            await harness.run_until_idle()
    assert f"1 entries of {AGENTS} are dead" in caplog.text
    assert rejected_entries(runtime)[0] == (AGENTS, "a", 3, True)
    assert harness.sink.dead_count == 1
    unblock(redis, AGENTS)
    make_entries_due(runtime)
    await harness.run_until_idle()
    assert published(redis) == [("resume", "a")]


async def test_rejected_revocation_is_retried_for_ever_and_logged(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, caplog: pytest.LogCaptureFixture
) -> None:
    harness = new_sink(outbox_max_attempts=2)
    block(redis, REVOCATIONS)
    await emit(runtime, (TERMINATE, "a"))
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            make_entries_due(runtime)
            await harness.run_until_idle()
    assert rejected_entries(runtime) == [(REVOCATIONS, "a", 6, False)]
    assert f"1 entries of {REVOCATIONS} are rejected repeatedly and retried forever" in caplog.text
    assert (harness.sink.stuck_count, harness.sink.dead_count) == (1, 0)
    unblock(redis, REVOCATIONS)
    make_entries_due(runtime)
    await harness.run_until_idle()
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of a"]
    assert harness.sink.stuck_count == 0


async def test_outage_during_retries_counts_no_attempt(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    harness = new_sink(own_redis.url)
    block(own_redis.direct, AGENTS)
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    own_redis.stop()
    make_entries_due(runtime)
    for _ in range(5):
        with pytest.raises(BusUnavailable):
            await harness.run_until_idle()
    assert rejected_entries(runtime) == [(AGENTS, "a", 1, False)]
    own_redis.start()


async def test_retried_entry_is_published_once_after_a_lost_reply(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    unblock(redis, AGENTS)
    harness.gate.after = raise_unavailable
    for _ in range(3):
        make_entries_due(runtime)
        with pytest.raises(BusUnavailable):
            await harness.run_until_idle()
    successor = new_sink()
    await successor.take_over()
    await successor.run_until_idle()
    assert published(redis) == [("spawn", "a")]
    assert rejected_entries(runtime) == []


# -- admin


async def test_dead_entries_are_listed_and_published_after_a_requeue(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink(outbox_max_attempts=1)
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"))
    await harness.run_until_idle()
    make_entries_due(runtime)
    await harness.run_until_idle()
    view = await runtime.cross_zone_engine.read(lambda tx: admin.load_view(tx, SINK_NAME))
    assert (view.waiting, view.dead, view.lag_events) == (0, 2, 0)
    entries = await runtime.cross_zone_engine.read(lambda tx: admin.load_entries(tx, SINK_NAME))
    assert [(entry.stream, entry.subject, entry.attempts) for entry in entries] == [(AGENTS, "b", 1), (AGENTS, "a", 1)]
    assert all(entry.dead_at and not entry.next_at and "WRONGTYPE" in entry.error for entry in entries)
    unblock(redis, AGENTS)
    await harness.run_until_idle()
    assert published(redis) == []
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, entries[1].pos)) == 1
    await harness.run_until_idle()
    assert published(redis) == [("spawn", "a")]
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, None)) == 1
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, None)) == 0
    await harness.run_until_idle()
    assert published(redis) == [("spawn", "a"), ("spawn", "b")]


async def test_unknown_sink_is_not_found(runtime: RuntimeHarness) -> None:
    with pytest.raises(NotFound):
        await runtime.cross_zone_engine.read(lambda tx: admin.load_view(tx, "unknown"))
    with pytest.raises(NotFound):
        await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, "unknown", None))
    assert await runtime.cross_zone_engine.read(admin.list_names) == []


# -- retention


async def test_events_that_a_sink_still_needs_are_not_deleted(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, tmp_path: Path
) -> None:
    harness, audit_log = new_sink(), AuditLogHarness(runtime, tmp_path)
    start = int(str(runtime.database.scalar("select position from sinks")))
    assert await runtime.cross_zone_engine.read(lowest_needed_position) == start + 1
    await audit_log.run_seal_and_retention()
    await audit_log.run_seal_and_retention()
    assert runtime.database.scalar("select floor from log_head") == 0
    await harness.run_until_idle()
    await harness.stop()
    await audit_log.run_seal_and_retention()
    assert int(str(runtime.database.scalar("select floor from log_head"))) > start


async def test_dead_entries_and_abandoned_sinks_are_deleted_after_the_retention(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink(outbox_max_attempts=1)
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"))
    await harness.run_until_idle()
    make_entries_due(runtime)
    await harness.run_until_idle()
    sweep = SinkRetention(runtime.cross_zone_engine, 7, 1)
    assert await sweep.run_once(500) == 0
    runtime.database.execute("update sink_entries set dead_at = dead_at - ? where subject = 'a'", 8 * DAY)
    assert await sweep.run_once(500) == 1
    assert [row[1] for row in rejected_entries(runtime)] == ["b"]
    assert await runtime.cross_zone_engine.read(admin.list_names) == [SINK_NAME]
    runtime.database.execute("update sinks set updated_at = updated_at - ?", 8 * DAY)
    await sweep.run_once(500)
    assert (runtime.database.count("sinks"), runtime.database.count("sink_entries")) == (0, 0)
    assert await runtime.cross_zone_engine.read(lowest_needed_position) is None


async def test_running_sink_refreshes_its_row_without_events(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    harness = new_sink(own_redis.url)
    await harness.run_until_idle()
    runtime.database.execute("update sinks set updated_at = updated_at - ?", DAY)
    assert await harness.sink.is_due()
    await harness.run_until_idle()
    assert not await harness.sink.is_due()


async def test_deleted_sink_starts_again_at_the_head(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    runtime.database.execute("delete from sinks")
    await emit(runtime, (SPAWN, "b"))
    with pytest.raises(LeaseLost):
        await harness.stop()
    successor = new_sink()
    await successor.take_over()
    await successor.run_until_idle()
    await emit(runtime, (SPAWN, "c"))
    await successor.run_until_idle()
    assert published(redis) == [("spawn", "a"), ("spawn", "c")]


# -- leader loop


async def test_sink_is_woken_by_commits_and_recovers_from_an_outage(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    wakeups = Wakeups()
    harness = new_sink(own_redis.url)
    loop = LeaderLoop(SINK_NAME, runtime.cross_zone_engine, wakeups, 60_000, harness.sink)
    loop.start()

    async def emit_spawns(*subjects: str) -> None:
        await emit(runtime, *((SPAWN, subject) for subject in subjects))
        wakeups.notify()

    async def eventually_arrived(count: int) -> None:
        async def have_arrived() -> bool:
            return len(own_redis.direct.entries(AGENTS)) == count

        await eventually(have_arrived, f"{count} entries arrived")

    await emit_spawns("a")
    await eventually_arrived(1)
    own_redis.kill()
    await emit_spawns("b", "c")

    async def is_failing() -> bool:
        return loop.error is not None

    async def has_recovered() -> bool:
        return loop.error is None

    await eventually(is_failing, "the outage was noticed")
    own_redis.start()
    await eventually_arrived(3)
    await eventually(has_recovered, "the outage ended")
    await loop.stop()
    assert runtime.database.scalar("select position from sinks") == len(await runtime.read_log())


async def test_second_process_takes_over_the_sink_when_the_first_stops(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_loop, "LEASE_MS", 500)
    monkeypatch.setattr(leader_loop, "LEASE_TAKEN_SECONDS", 0.05)
    wakeups = Wakeups()
    loops = [LeaderLoop(SINK_NAME, runtime.cross_zone_engine, wakeups, 50, new_sink().sink) for _ in range(2)]
    for loop in loops:
        loop.start()
    for number in range(20):
        await emit(runtime, (SPAWN, f"s{number}"))
        wakeups.notify()
        if number == 10:
            await loops[0].stop()

    async def have_arrived() -> bool:
        return len(redis.entries(AGENTS)) >= 20

    await eventually(have_arrived, "all entries arrived")
    await loops[1].stop()
    assert published(redis) == [("spawn", f"s{number}") for number in range(20)]


# -- random faults


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_random_faults_keep_entries_exactly_once_and_in_order_per_subject(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, seed: int
) -> None:
    # Takeovers, lost replies, failed requests, rejections and restarts in random order.
    rng = random.Random(seed)
    event_types = [SPAWN, SUSPEND, RESUME, TERMINATE, "invocation.created", "zone.change"]
    blocked: set[str] = set()
    harness = new_sink(outbox_batch_size=rng.choice([1, 3, 50]), outbox_max_attempts=1_000)
    for _ in range(60):
        action = rng.choice(["emit"] * 4 + ["run"] * 4 + ["lose_reply", "fail", "take_over", "block", "unblock", "due"])
        if action == "emit":
            await emit(runtime, *((rng.choice(event_types), rng.choice("abcde")) for _ in range(5)))
        elif action in ("run", "lose_reply", "fail"):
            harness.gate.after = raise_unavailable if action == "lose_reply" else no_op
            harness.gate.before = raise_unavailable if action == "fail" else no_op
            with contextlib.suppress(BusUnavailable, WriterFenced):
                await harness.run_until_idle()
        elif action == "take_over":
            harness = new_sink(outbox_batch_size=rng.choice([1, 3, 50]), outbox_max_attempts=1_000)
            await harness.take_over()
        elif action == "due":
            make_entries_due(runtime)
        elif action == "block" and not blocked:
            blocked.add(rng.choice([AGENTS, REVOCATIONS, INVOCATIONS]))
            block(redis, *blocked)
        elif action == "unblock" and blocked:
            unblock(redis, blocked.pop())
    for stream in blocked:
        unblock(redis, stream)
    harness.gate.before = harness.gate.after = no_op
    while await harness.run_cycle() == 0 or runtime.database.count("sink_entries"):
        make_entries_due(runtime)
    by_subject: dict[tuple[str, str], list[int]] = defaultdict(list)
    for entry in redis.entries():
        subject = entry.fields.get("agent_session_id") or entry.fields["invocation_id"]
        by_subject[entry.stream, subject].append(int(entry.fields["pos"]))
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in await runtime.read_log():
        if event.type in (SPAWN, SUSPEND, RESUME, TERMINATE):
            expected[AGENTS, event.subject].append(event.pos)
        if event.type == TERMINATE:
            expected[REVOCATIONS, event.subject].append(event.pos)
        if event.type == "invocation.created":
            expected[INVOCATIONS, event.subject].append(event.pos)
    assert by_subject == expected
