"""A sink to a real Redis: every entry once and in order, whoever is away, killed, frozen, wiped or restored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from quarterdeck.bus.redis.client import fence_key, marker_key
from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.bus.redis.stream_entries import AGENTS, REVOCATIONS, STREAMS, sign
from quarterdeck.bus.redis.streams_writer import delayed_key
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.settings import SinkSettings
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness
from tests.support.sink import HMAC_KEY, SINK_NAME, SinkHarness, emit, make_entries_due, no_op, raise_unavailable
from tests.support.structs import build_struct

Make = Callable[..., SinkHarness]
SPAWN, SUSPEND, RESUME, END = "session.spawn", "session.suspend", "session.resume", "session.terminate"


@pytest.fixture
async def new_sink(runtime: RuntimeHarness, redis: DirectRedis) -> AsyncIterator[Make]:
    """Runners of one sink, each as in a process of its own."""
    made: list[SinkHarness] = []

    def one(url: str = redis.url, **settings: object) -> SinkHarness:
        made.append(SinkHarness(runtime, url, build_struct(SinkSettings, **settings)))
        return made[-1]

    first = one()
    await first.sink.register()
    yield one
    for runner in made:
        await runner.close()


async def expected(keel: RuntimeHarness, after: int = 0) -> list[tuple[str, str]]:
    """(stream, event) of all there is to tell, by what the log says, a stream at a time."""
    names = {SPAWN: (AGENTS,), SUSPEND: (AGENTS,), RESUME: (AGENTS,), END: (AGENTS, REVOCATIONS)}
    told = [(stream, event.id) for event in await keel.read_log(after) for stream in names.get(event.type, ())]
    return sorted(told, key=lambda each: STREAMS.index(each[0]))


def arrived(redis: DirectRedis) -> list[tuple[str, str]]:
    return [(entry.stream, entry.dedupe_key.removeprefix(f"{entry.stream}:")) for entry in redis.entries()]


def position(keel: RuntimeHarness) -> int:
    return int(str(keel.database.scalar("select position from sinks where name = ?", SINK_NAME)))


def sink_id(keel: RuntimeHarness) -> str:
    return str(keel.database.scalar("select id from sinks where name = ?", SINK_NAME))


# -- as it should be


async def test_what_is_committed_arrives_in_order_once_and_signed(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    for _ in range(3):
        await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), ("zone.change", "z"), (END, "a"))
        await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime)
    for entry in redis.entries():
        assert entry.fields["_sig"] == sign(HMAC_KEY, entry.stream, entry.fields)
        assert entry.fields["outbox_id"] and entry.fields["zone_id"] == "z"
    await runner.stop()
    assert position(runtime) == len(await runtime.read_log())


async def test_two_suspends_and_resumes_are_four_entries(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    session = await runtime.spawn()
    for _ in range(2):
        await runtime.suspend(session)
        await runtime.resume(session)
    await new_sink().run_until_idle()
    told = [entry.fields for entry in redis.entries(AGENTS)]
    assert [fields["event"] for fields in told] == ["spawn", "suspend", "resume", "suspend", "resume"]
    assert {fields["agent_session_id"] for fields in told} == {session.id}
    assert len({fields["dedupe_key"] for fields in told}) == 5


async def test_a_log_of_many_batches_is_told_to_its_end(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    await emit(runtime, *((SPAWN, f"s{n}") for n in range(257)))
    runner = new_sink(outbox_batch_size=10)
    await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime)
    assert runner.sink.delivered == 257
    assert runner.sink.position == runner.sink.head


async def test_a_sink_tells_what_happens_from_its_beginning_on(runtime: RuntimeHarness, redis: DirectRedis) -> None:
    await emit(runtime, (SPAWN, "before"))
    runner = SinkHarness(runtime, redis.url)
    await runner.sink.register()
    await emit(runtime, (SPAWN, "after"))
    await runner.sink.register()  # a second server, or a second start
    await runner.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["after"]
    await runner.close()


async def test_a_revocation_is_told_unless_the_sid_is_in_use(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    for session in (first, second):
        await runtime.terminate(session, "enough")
    await new_sink().run_until_idle()
    [entry] = redis.entries(REVOCATIONS)
    said = {name: entry.fields[name] for name in ("zone_id", "session_id", "agent_session_id", "reason")}
    assert said == {"zone_id": "z", "session_id": "sid", "agent_session_id": second.id, "reason": "enough"}


async def test_with_nothing_to_tell_nothing_is_due_and_nothing_is_written(
    runtime: RuntimeHarness, new_sink: Make
) -> None:
    runner = new_sink()
    await runner.run_until_idle()
    await runner.stop()
    runtime.database.execute("delete from leases")
    assert not await runner.sink.is_due()
    assert runtime.database.count("leases") == 0
    await emit(runtime, (SPAWN, "a"))
    assert await runner.sink.is_due()


async def test_the_position_is_written_a_few_times_a_second_and_not_at_every_turn(
    runtime: RuntimeHarness, new_sink: Make
) -> None:
    runner = new_sink()
    await runner.run_until_idle()
    began = position(runtime)
    for _ in range(5):
        await emit(runtime, (SPAWN, "a"))
        await runner.run_until_idle()
    assert position(runtime) == began
    again = await runner.run_cycle()
    assert again is not None and 0 < again <= 0.25
    await runner.stop()
    assert position(runtime) == began + 5


# -- Redis is away


async def test_an_outage_stops_the_sink_where_it_is_and_costs_no_attempt(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    runner = new_sink(own_redis.url)
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    own_redis.stop()
    for _ in range(12):  # more often than an entry is tried
        await emit(runtime, (SUSPEND, "a"), (RESUME, "a"), (END, "b"))
        with pytest.raises(BusUnavailable):
            await runner.run_until_idle()
    assert runtime.database.count("sink_entries") == 0
    assert runner.sink.oldest_at is not None and runner.sink.head - runner.sink.position == 36
    own_redis.start()
    await runner.run_until_idle()
    assert arrived(own_redis.direct) == await expected(runtime)
    assert runner.sink.rejected == 0


async def test_a_redis_that_is_there_and_answers_nobody_is_away_within_seconds(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    runner = new_sink(own_redis.url)
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    own_redis.freeze()
    await emit(runtime, (SUSPEND, "a"))
    with pytest.raises(BusUnavailable):
        async with asyncio.timeout(10):
            await runner.run_until_idle()
    own_redis.thaw()
    await runner.run_until_idle()
    # What was sent before it froze, it may have read when it woke; once is once all the same.
    assert arrived(own_redis.direct) == await expected(runtime)


async def test_a_redis_that_is_out_of_memory_is_away_and_refuses_nothing(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    runner = new_sink(own_redis.url)
    own_redis.direct.client.config_set("maxmemory", "1")
    await emit(runtime, (SPAWN, "a"), (END, "a"))
    with pytest.raises(BusUnavailable, match=r"OOM|OutOfMemory"):
        await runner.run_until_idle()
    assert runtime.database.count("sink_entries") == 0
    own_redis.direct.client.config_set("maxmemory", "0")
    await runner.run_until_idle()
    assert arrived(own_redis.direct) == await expected(runtime)


async def test_a_redis_that_has_forgotten_the_scripts_is_told_them_again(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    for _ in range(2):
        await emit(runtime, (SPAWN, "a"))
        await runner.run_until_idle()
        redis.client.script_flush()
    assert arrived(redis) == await expected(runtime)


# -- killed, cut off, frozen


async def test_whoever_is_killed_between_stream_and_position_is_followed_without_a_double(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    killed = new_sink()
    await emit(runtime, (SPAWN, "a"), (END, "a"), (SPAWN, "b"))
    await killed.run_until_idle()
    assert position(runtime) < killed.sink.position
    await emit(runtime, (SUSPEND, "b"))
    follower = new_sink(outbox_batch_size=2)
    await follower.take_over()
    await follower.run_until_idle()
    assert arrived(redis) == await expected(runtime)


async def test_an_answer_that_is_lost_is_not_taken_for_a_failure(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink(outbox_batch_size=2)
    runner.gate.after = raise_unavailable
    await emit(runtime, (SPAWN, "a"), (END, "a"), (SPAWN, "b"), (END, "b"))
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            await runner.run_until_idle()
    runner.gate.after = no_op
    await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime)


async def test_whoever_was_frozen_while_another_took_over_writes_nothing_when_it_wakes(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    frozen, thaw = new_sink(), asyncio.Event()
    reading = asyncio.Event()

    async def freeze() -> None:
        reading.set()
        await thaw.wait()

    frozen.gate.before = freeze
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"))
    asleep = asyncio.create_task(frozen.run_cycle())
    await reading.wait()
    holder = new_sink()
    await holder.take_over()
    await emit(runtime, (RESUME, "a"))
    await holder.run_until_idle()
    thaw.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await asleep
    assert arrived(redis) == await expected(runtime)
    await emit(runtime, (END, "a"))
    await holder.run_until_idle()
    assert arrived(redis) == await expected(runtime)


async def test_whoever_was_frozen_does_not_send_what_another_has_put_aside(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    frozen, thaw, reading = new_sink(), asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        reading.set()
        await thaw.wait()

    frozen.gate.before = freeze
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"), (SPAWN, "b"))
    asleep = asyncio.create_task(frozen.run_cycle())
    await reading.wait()
    redis.client.set(AGENTS, "in the way")
    holder = new_sink()
    await holder.take_over()
    await holder.run_until_idle()
    redis.client.delete(AGENTS)
    thaw.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await asleep
    for _ in range(3):
        make_entries_due(runtime)
        await holder.run_until_idle()
    assert sorted(arrived(redis)) == sorted(await expected(runtime))


# -- wiped, restored, meddled with


async def test_a_wiped_redis_is_written_to_from_the_position_on(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    seen = len(await runtime.read_log())
    redis.wipe()
    await emit(runtime, (SUSPEND, "a"), (END, "a"))
    await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime, seen)


async def test_markers_of_another_history_keep_nothing_back(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    """As after a restore: Redis has seen positions, and a term, that the database is going to give out again."""
    own = sink_id(runtime)
    for stream in STREAMS:
        redis.client.set(marker_key(own, stream), "1000000 0190-some-event")
    redis.client.set(fence_key(own), "77 somebody")
    await emit(runtime, (SPAWN, "a"), (END, "a"))
    runner = new_sink()
    await runner.run_until_idle()
    await emit(runtime, (SPAWN, "b"))
    await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime)


@pytest.mark.parametrize(
    "nonsense", ["", "nonsense", "5", "99999999999999999999999999 x", "-1 x", "1e9 x", f"{'9' * 5000} x"]
)
async def test_a_marker_that_makes_no_sense_keeps_nothing_back(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, nonsense: str
) -> None:
    own = sink_id(runtime)
    for key in (marker_key(own, AGENTS), fence_key(own)):
        redis.client.set(key, nonsense)
    await emit(runtime, (SPAWN, "a"))
    await new_sink().run_until_idle()
    assert arrived(redis) == await expected(runtime)


async def test_keys_of_another_type_are_written_over(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    own = sink_id(runtime)
    for key in (marker_key(own, AGENTS), fence_key(own), delayed_key(own, AGENTS)):
        redis.client.rpush(key, "in the way")
    runner = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    redis.client.rename(AGENTS, "aside")
    redis.client.set(AGENTS, "in the way")
    await emit(runtime, (SUSPEND, "a"))
    await runner.run_until_idle()
    redis.client.delete(AGENTS)
    redis.client.rename("aside", AGENTS)
    make_entries_due(runtime)
    await runner.run_until_idle()
    assert arrived(redis) == await expected(runtime)


async def test_a_sink_whose_events_went_before_it_told_them_goes_on_and_says_so(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    head = len(await runtime.read_log())
    runtime.database.execute("delete from events where pos <= ?", head - 1)
    runtime.database.execute("update log_head set floor = ?", head - 1)
    runner = new_sink()
    await runner.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["c"]
    assert runner.sink.missed == 2


async def test_an_event_that_a_hand_has_spoilt_stops_nothing_that_comes_after_it(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    runtime.database.execute("update events set data = 'nonsense' where subject = 'b'")
    runner = new_sink()
    await runner.run_until_idle()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["a", "c"]
    assert runner.sink.missed == 1
