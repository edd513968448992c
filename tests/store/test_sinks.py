"""A sink to a real Redis: each entry once and in order, despite outages, kills, freezes, wipes and restores."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.bus.redis.client import fence_key, marker_key
from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.bus.redis.stream_entries import AGENTS, REVOCATIONS, STREAMS, sign
from quarterdeck.bus.redis.streams_writer import delayed_key
from quarterdeck.engine.leases import LeaseLost
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness
from tests.support.sink import (
    HMAC_KEY,
    SINK_NAME,
    NewSink,
    SinkHarness,
    emit,
    make_entries_due,
    no_op,
    raise_unavailable,
)

SPAWN, SUSPEND, RESUME, TERMINATE = "session.spawn", "session.suspend", "session.resume", "session.terminate"


async def expected(runtime: RuntimeHarness, after: int = 0) -> list[tuple[str, str]]:
    """(stream, event id) of all entries that the log requires, ordered by stream."""
    streams = {SPAWN: (AGENTS,), SUSPEND: (AGENTS,), RESUME: (AGENTS,), TERMINATE: (AGENTS, REVOCATIONS)}
    entries = [(stream, event.id) for event in await runtime.read_log(after) for stream in streams.get(event.type, ())]
    return sorted(entries, key=lambda entry: STREAMS.index(entry[0]))


def published(redis: DirectRedis) -> list[tuple[str, str]]:
    return [(entry.stream, entry.dedupe_key.removeprefix(f"{entry.stream}:")) for entry in redis.entries()]


def position(runtime: RuntimeHarness) -> int:
    return int(str(runtime.database.scalar("select position from sinks where name = ?", SINK_NAME)))


def sink_id(runtime: RuntimeHarness) -> str:
    return str(runtime.database.scalar("select id from sinks where name = ?", SINK_NAME))


# -- delivery


async def test_committed_events_are_published_once_in_order_and_signed(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    for _ in range(3):
        await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), ("zone.change", "z"), (TERMINATE, "a"))
        await harness.run_until_idle()
    assert published(redis) == await expected(runtime)
    for entry in redis.entries():
        assert entry.fields["_sig"] == sign(HMAC_KEY, entry.stream, entry.fields)
        assert entry.fields["outbox_id"] and entry.fields["zone_id"] == "z"
    await harness.stop()
    assert position(runtime) == len(await runtime.read_log())


async def test_each_suspend_and_resume_is_its_own_entry(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    session = await runtime.spawn()
    for _ in range(2):
        await runtime.suspend(session)
        await runtime.resume(session)
    await new_sink().run_until_idle()
    entries = [entry.fields for entry in redis.entries(AGENTS)]
    assert [fields["event"] for fields in entries] == ["spawn", "suspend", "resume", "suspend", "resume"]
    assert {fields["agent_session_id"] for fields in entries} == {session.id}
    assert len({fields["dedupe_key"] for fields in entries}) == 5


async def test_log_of_many_batches_is_published_completely(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    await emit(runtime, *((SPAWN, f"s{n}") for n in range(257)))
    harness = new_sink(outbox_batch_size=10)
    await harness.run_until_idle()
    assert published(redis) == await expected(runtime)
    assert harness.sink.delivered_count == 257
    assert harness.sink.position == harness.sink.head


async def test_sink_publishes_only_events_after_its_registration(runtime: RuntimeHarness, redis: DirectRedis) -> None:
    await emit(runtime, (SPAWN, "before"))
    harness = SinkHarness(runtime, redis.url)
    await harness.sink.register()
    await emit(runtime, (SPAWN, "after"))
    await harness.sink.register()  # a second server, or a second start
    await harness.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["after"]
    await harness.close()


async def test_revocation_is_published_unless_the_sid_is_in_use(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    for session in (first, second):
        await runtime.terminate(session, "requested")
    await new_sink().run_until_idle()
    [entry] = redis.entries(REVOCATIONS)
    fields = {name: entry.fields[name] for name in ("zone_id", "session_id", "agent_session_id", "reason")}
    assert fields == {"zone_id": "z", "session_id": "sid", "agent_session_id": second.id, "reason": "requested"}


async def test_sink_without_new_events_is_not_due_and_takes_no_lease(
    runtime: RuntimeHarness, new_sink: NewSink
) -> None:
    harness = new_sink()
    await harness.run_until_idle()
    await harness.stop()
    runtime.database.execute("delete from leases")
    assert not await harness.sink.is_due()
    assert runtime.database.count("leases") == 0
    await emit(runtime, (SPAWN, "a"))
    assert await harness.sink.is_due()


async def test_position_is_written_a_few_times_per_second_not_every_cycle(
    runtime: RuntimeHarness, new_sink: NewSink
) -> None:
    harness = new_sink()
    await harness.run_until_idle()
    start = position(runtime)
    for _ in range(5):
        await emit(runtime, (SPAWN, "a"))
        await harness.run_until_idle()
    assert position(runtime) == start
    delay = await harness.run_cycle()
    assert delay is not None and 0 < delay <= 0.25
    await harness.stop()
    assert position(runtime) == start + 5


# -- Redis outages


async def test_outage_pauses_the_sink_and_counts_no_attempt(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    harness = new_sink(own_redis.url)
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    own_redis.stop()
    for _ in range(12):  # more than the attempts of an entry
        await emit(runtime, (SUSPEND, "a"), (RESUME, "a"), (TERMINATE, "b"))
        with pytest.raises(BusUnavailable):
            await harness.run_until_idle()
    assert runtime.database.count("sink_entries") == 0
    assert harness.sink.oldest_at is not None and harness.sink.head - harness.sink.position == 36
    own_redis.start()
    await harness.run_until_idle()
    assert published(own_redis.direct) == await expected(runtime)
    assert harness.sink.rejected_count == 0


async def test_frozen_redis_is_unavailable_within_seconds(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    harness = new_sink(own_redis.url)
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    own_redis.freeze()
    await emit(runtime, (SUSPEND, "a"))
    with pytest.raises(BusUnavailable):
        async with asyncio.timeout(10):
            await harness.run_until_idle()
    own_redis.thaw()
    await harness.run_until_idle()
    # Redis may have processed the first request after the freeze. The retry must not duplicate it.
    assert published(own_redis.direct) == await expected(runtime)


async def test_redis_out_of_memory_is_an_outage_and_not_a_rejection(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: NewSink
) -> None:
    harness = new_sink(own_redis.url)
    own_redis.direct.client.config_set("maxmemory", "1")
    await emit(runtime, (SPAWN, "a"), (TERMINATE, "a"))
    with pytest.raises(BusUnavailable, match=r"OOM|OutOfMemory"):
        await harness.run_until_idle()
    assert runtime.database.count("sink_entries") == 0
    own_redis.direct.client.config_set("maxmemory", "0")
    await harness.run_until_idle()
    assert published(own_redis.direct) == await expected(runtime)


async def test_lua_scripts_are_reloaded_after_script_flush(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    for _ in range(2):
        await emit(runtime, (SPAWN, "a"))
        await harness.run_until_idle()
        redis.client.script_flush()
    assert published(redis) == await expected(runtime)


# -- killed and frozen processes


async def test_successor_of_a_killed_sink_publishes_no_duplicates(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    killed = new_sink()
    await emit(runtime, (SPAWN, "a"), (TERMINATE, "a"), (SPAWN, "b"))
    await killed.run_until_idle()
    assert position(runtime) < killed.sink.position
    await emit(runtime, (SUSPEND, "b"))
    successor = new_sink(outbox_batch_size=2)
    await successor.take_over()
    await successor.run_until_idle()
    assert published(redis) == await expected(runtime)


async def test_lost_reply_causes_no_duplicates(runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink) -> None:
    harness = new_sink(outbox_batch_size=2)
    harness.gate.after = raise_unavailable
    await emit(runtime, (SPAWN, "a"), (TERMINATE, "a"), (SPAWN, "b"), (TERMINATE, "b"))
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            await harness.run_until_idle()
    harness.gate.after = no_op
    await harness.run_until_idle()
    assert published(redis) == await expected(runtime)


async def test_frozen_sink_is_fenced_after_a_takeover(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    frozen, resume = new_sink(), asyncio.Event()
    is_frozen = asyncio.Event()

    async def freeze() -> None:
        is_frozen.set()
        await resume.wait()

    frozen.gate.before = freeze
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"))
    frozen_cycle = asyncio.create_task(frozen.run_cycle())
    await is_frozen.wait()
    holder = new_sink()
    await holder.take_over()
    await emit(runtime, (RESUME, "a"))
    await holder.run_until_idle()
    resume.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await frozen_cycle
    assert published(redis) == await expected(runtime)
    await emit(runtime, (TERMINATE, "a"))
    await holder.run_until_idle()
    assert published(redis) == await expected(runtime)


async def test_frozen_sink_does_not_publish_entries_that_its_successor_set_aside(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    frozen, resume, is_frozen = new_sink(), asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        is_frozen.set()
        await resume.wait()

    frozen.gate.before = freeze
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"), (SPAWN, "b"))
    frozen_cycle = asyncio.create_task(frozen.run_cycle())
    await is_frozen.wait()
    redis.client.set(AGENTS, "wrong type")
    holder = new_sink()
    await holder.take_over()
    await holder.run_until_idle()
    redis.client.delete(AGENTS)
    resume.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await frozen_cycle
    for _ in range(3):
        make_entries_due(runtime)
        await holder.run_until_idle()
    assert sorted(published(redis)) == sorted(await expected(runtime))


# -- wiped, restored and modified data


async def test_publishing_continues_at_the_position_after_a_wipe(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    harness = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    position_before = len(await runtime.read_log())
    redis.wipe()
    await emit(runtime, (SUSPEND, "a"), (TERMINATE, "a"))
    await harness.run_until_idle()
    assert published(redis) == await expected(runtime, position_before)


async def test_markers_of_a_newer_history_do_not_block_entries(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    # As after a restore of the database: Redis has positions and a term that will be assigned again.
    own_id = sink_id(runtime)
    for stream in STREAMS:
        redis.client.set(marker_key(own_id, stream), "1000000 0190-some-event")
    redis.client.set(fence_key(own_id), "77 other-holder")
    await emit(runtime, (SPAWN, "a"), (TERMINATE, "a"))
    harness = new_sink()
    await harness.run_until_idle()
    await emit(runtime, (SPAWN, "b"))
    await harness.run_until_idle()
    assert published(redis) == await expected(runtime)


@pytest.mark.parametrize(
    "value", ["", "invalid", "5", "99999999999999999999999999 x", "-1 x", "1e9 x", f"{'9' * 5000} x"]
)
async def test_invalid_markers_do_not_block_entries(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink, value: str
) -> None:
    own_id = sink_id(runtime)
    for key in (marker_key(own_id, AGENTS), fence_key(own_id)):
        redis.client.set(key, value)
    await emit(runtime, (SPAWN, "a"))
    await new_sink().run_until_idle()
    assert published(redis) == await expected(runtime)


async def test_keys_of_another_type_are_overwritten(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    own_id = sink_id(runtime)
    for key in (marker_key(own_id, AGENTS), fence_key(own_id), delayed_key(own_id, AGENTS)):
        redis.client.rpush(key, "wrong type")
    harness = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await harness.run_until_idle()
    redis.client.rename(AGENTS, "aside")
    redis.client.set(AGENTS, "wrong type")
    await emit(runtime, (SUSPEND, "a"))
    await harness.run_until_idle()
    redis.client.delete(AGENTS)
    redis.client.rename("aside", AGENTS)
    make_entries_due(runtime)
    await harness.run_until_idle()
    assert published(redis) == await expected(runtime)


async def test_sink_skips_deleted_events_and_counts_them_as_missed(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    head = len(await runtime.read_log())
    runtime.database.execute("delete from events where pos <= ?", head - 1)
    runtime.database.execute("update log_head set floor = ?", head - 1)
    harness = new_sink()
    await harness.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["c"]
    assert harness.sink.missed_count == 2


async def test_malformed_event_is_skipped_and_counted_as_missed(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: NewSink
) -> None:
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    runtime.database.execute("update events set data = 'invalid' where subject = 'b'")
    harness = new_sink()
    await harness.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["a", "c"]
    assert harness.sink.missed_count == 1
