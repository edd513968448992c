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
from tests.support.keel import Keel
from tests.support.making import struct_of
from tests.support.redis import RedisServer, RedisSide
from tests.support.sinking import KEY, NAME, Runner, away, due, happen, nothing

Make = Callable[..., Runner]
SPAWN, SUSPEND, RESUME, END = "session.spawn", "session.suspend", "session.resume", "session.terminate"


@pytest.fixture
async def make(keel: Keel, redis: RedisSide) -> AsyncIterator[Make]:
    """Runners of one sink, each as in a process of its own."""
    made: list[Runner] = []

    def one(url: str = redis.url, **settings: object) -> Runner:
        made.append(Runner(keel, url, struct_of(SinkSettings, **settings)))
        return made[-1]

    first = one()
    await first.sink.register()
    yield one
    for runner in made:
        await runner.drop()


async def expected(keel: Keel, after: int = 0) -> list[tuple[str, str]]:
    """(stream, event) of all there is to tell, by what the log says, a stream at a time."""
    names = {SPAWN: (AGENTS,), SUSPEND: (AGENTS,), RESUME: (AGENTS,), END: (AGENTS, REVOCATIONS)}
    told = [(stream, event.id) for event in await keel.log(after) for stream in names.get(event.type, ())]
    return sorted(told, key=lambda each: STREAMS.index(each[0]))


def arrived(redis: RedisSide) -> list[tuple[str, str]]:
    return [(entry.stream, entry.key.removeprefix(f"{entry.stream}:")) for entry in redis.entries()]


def position(keel: Keel) -> int:
    return int(str(keel.side.one("select position from sinks where name = ?", NAME)))


def sink_id(keel: Keel) -> str:
    return str(keel.side.one("select id from sinks where name = ?", NAME))


# -- as it should be


async def test_what_is_committed_arrives_in_order_once_and_signed(keel: Keel, redis: RedisSide, make: Make) -> None:
    runner = make()
    for _ in range(3):
        await happen(keel, (SPAWN, "a"), (SPAWN, "b"), ("zone.change", "z"), (END, "a"))
        await runner.run()
    assert arrived(redis) == await expected(keel)
    for entry in redis.entries():
        assert entry.fields["_sig"] == sign(KEY, entry.stream, entry.fields)
        assert entry.fields["outbox_id"] and entry.fields["zone_id"] == "z"
    await runner.stop()
    assert position(keel) == len(await keel.log())


async def test_two_suspends_and_resumes_are_four_entries(keel: Keel, redis: RedisSide, make: Make) -> None:
    session = await keel.spawn()
    for _ in range(2):
        await keel.suspend(session)
        await keel.resume(session)
    await make().run()
    told = [entry.fields for entry in redis.entries(AGENTS)]
    assert [fields["event"] for fields in told] == ["spawn", "suspend", "resume", "suspend", "resume"]
    assert {fields["agent_session_id"] for fields in told} == {session.id}
    assert len({fields["dedupe_key"] for fields in told}) == 5


async def test_a_log_of_many_batches_is_told_to_its_end(keel: Keel, redis: RedisSide, make: Make) -> None:
    await happen(keel, *((SPAWN, f"s{n}") for n in range(257)))
    runner = make(outbox_batch_size=10)
    await runner.run()
    assert arrived(redis) == await expected(keel)
    assert runner.sink.delivered == 257
    assert runner.sink.position == runner.sink.head


async def test_a_sink_tells_what_happens_from_its_beginning_on(keel: Keel, redis: RedisSide) -> None:
    await happen(keel, (SPAWN, "before"))
    runner = Runner(keel, redis.url)
    await runner.sink.register()
    await happen(keel, (SPAWN, "after"))
    await runner.sink.register()  # a second server, or a second start
    await runner.run()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["after"]
    await runner.drop()


async def test_a_revocation_is_told_unless_the_sid_is_in_use(keel: Keel, redis: RedisSide, make: Make) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    for session in (first, second):
        await keel.end(session, "enough")
    await make().run()
    [entry] = redis.entries(REVOCATIONS)
    said = {name: entry.fields[name] for name in ("zone_id", "session_id", "agent_session_id", "reason")}
    assert said == {"zone_id": "z", "session_id": "sid", "agent_session_id": second.id, "reason": "enough"}


async def test_with_nothing_to_tell_nothing_is_due_and_nothing_is_written(keel: Keel, make: Make) -> None:
    runner = make()
    await runner.run()
    await runner.stop()
    keel.side.run("delete from leases")
    assert not await runner.sink.is_due()
    assert keel.side.count("leases") == 0
    await happen(keel, (SPAWN, "a"))
    assert await runner.sink.is_due()


async def test_the_position_is_written_a_few_times_a_second_and_not_at_every_turn(keel: Keel, make: Make) -> None:
    runner = make()
    await runner.run()
    began = position(keel)
    for _ in range(5):
        await happen(keel, (SPAWN, "a"))
        await runner.run()
    assert position(keel) == began
    again = await runner.turn()
    assert again is not None and 0 < again <= 0.25
    await runner.stop()
    assert position(keel) == began + 5


# -- Redis is away


async def test_an_outage_stops_the_sink_where_it_is_and_costs_no_attempt(
    keel: Keel, own_redis: RedisServer, make: Make
) -> None:
    runner = make(own_redis.url)
    await happen(keel, (SPAWN, "a"))
    await runner.run()
    own_redis.stop()
    for _ in range(12):  # more often than an entry is tried
        await happen(keel, (SUSPEND, "a"), (RESUME, "a"), (END, "b"))
        with pytest.raises(BusUnavailable):
            await runner.run()
    assert keel.side.count("sink_entries") == 0
    assert runner.sink.oldest_at is not None and runner.sink.head - runner.sink.position == 36
    own_redis.start()
    await runner.run()
    assert arrived(own_redis.side) == await expected(keel)
    assert runner.sink.rejected == 0


async def test_a_redis_that_is_there_and_answers_nobody_is_away_within_seconds(
    keel: Keel, own_redis: RedisServer, make: Make
) -> None:
    runner = make(own_redis.url)
    await happen(keel, (SPAWN, "a"))
    await runner.run()
    own_redis.freeze()
    await happen(keel, (SUSPEND, "a"))
    with pytest.raises(BusUnavailable):
        async with asyncio.timeout(10):
            await runner.run()
    own_redis.thaw()
    await runner.run()
    # What was sent before it froze, it may have read when it woke; once is once all the same.
    assert arrived(own_redis.side) == await expected(keel)


async def test_a_redis_that_is_out_of_memory_is_away_and_refuses_nothing(
    keel: Keel, own_redis: RedisServer, make: Make
) -> None:
    runner = make(own_redis.url)
    own_redis.side.client.config_set("maxmemory", "1")
    await happen(keel, (SPAWN, "a"), (END, "a"))
    with pytest.raises(BusUnavailable, match=r"OOM|OutOfMemory"):
        await runner.run()
    assert keel.side.count("sink_entries") == 0
    own_redis.side.client.config_set("maxmemory", "0")
    await runner.run()
    assert arrived(own_redis.side) == await expected(keel)


async def test_a_redis_that_has_forgotten_the_scripts_is_told_them_again(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    runner = make()
    for _ in range(2):
        await happen(keel, (SPAWN, "a"))
        await runner.run()
        redis.client.script_flush()
    assert arrived(redis) == await expected(keel)


# -- killed, cut off, frozen


async def test_whoever_is_killed_between_stream_and_position_is_followed_without_a_double(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    killed = make()
    await happen(keel, (SPAWN, "a"), (END, "a"), (SPAWN, "b"))
    await killed.run()
    assert position(keel) < killed.sink.position
    await happen(keel, (SUSPEND, "b"))
    follower = make(outbox_batch_size=2)
    await follower.take_over()
    await follower.run()
    assert arrived(redis) == await expected(keel)


async def test_an_answer_that_is_lost_is_not_taken_for_a_failure(keel: Keel, redis: RedisSide, make: Make) -> None:
    runner = make(outbox_batch_size=2)
    runner.gate.after = away
    await happen(keel, (SPAWN, "a"), (END, "a"), (SPAWN, "b"), (END, "b"))
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            await runner.run()
    runner.gate.after = nothing
    await runner.run()
    assert arrived(redis) == await expected(keel)


async def test_whoever_was_frozen_while_another_took_over_writes_nothing_when_it_wakes(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    frozen, thaw = make(), asyncio.Event()
    reading = asyncio.Event()

    async def freeze() -> None:
        reading.set()
        await thaw.wait()

    frozen.gate.before = freeze
    await happen(keel, (SPAWN, "a"), (SUSPEND, "a"))
    asleep = asyncio.create_task(frozen.turn())
    await reading.wait()
    holder = make()
    await holder.take_over()
    await happen(keel, (RESUME, "a"))
    await holder.run()
    thaw.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await asleep
    assert arrived(redis) == await expected(keel)
    await happen(keel, (END, "a"))
    await holder.run()
    assert arrived(redis) == await expected(keel)


async def test_whoever_was_frozen_does_not_send_what_another_has_put_aside(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    frozen, thaw, reading = make(), asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        reading.set()
        await thaw.wait()

    frozen.gate.before = freeze
    await happen(keel, (SPAWN, "a"), (SUSPEND, "a"), (SPAWN, "b"))
    asleep = asyncio.create_task(frozen.turn())
    await reading.wait()
    redis.client.set(AGENTS, "in the way")
    holder = make()
    await holder.take_over()
    await holder.run()
    redis.client.delete(AGENTS)
    thaw.set()
    with pytest.raises((WriterFenced, LeaseLost)):
        await asleep
    for _ in range(3):
        due(keel)
        await holder.run()
    assert sorted(arrived(redis)) == sorted(await expected(keel))


# -- wiped, restored, meddled with


async def test_a_wiped_redis_is_written_to_from_the_position_on(keel: Keel, redis: RedisSide, make: Make) -> None:
    runner = make()
    await happen(keel, (SPAWN, "a"))
    await runner.run()
    seen = len(await keel.log())
    redis.wipe()
    await happen(keel, (SUSPEND, "a"), (END, "a"))
    await runner.run()
    assert arrived(redis) == await expected(keel, seen)


async def test_markers_of_another_history_keep_nothing_back(keel: Keel, redis: RedisSide, make: Make) -> None:
    """As after a restore: Redis has seen positions, and a term, that the database is going to give out again."""
    own = sink_id(keel)
    for stream in STREAMS:
        redis.client.set(marker_key(own, stream), "1000000 0190-some-event")
    redis.client.set(fence_key(own), "77 somebody")
    await happen(keel, (SPAWN, "a"), (END, "a"))
    runner = make()
    await runner.run()
    await happen(keel, (SPAWN, "b"))
    await runner.run()
    assert arrived(redis) == await expected(keel)


@pytest.mark.parametrize(
    "nonsense", ["", "nonsense", "5", "99999999999999999999999999 x", "-1 x", "1e9 x", f"{'9' * 5000} x"]
)
async def test_a_marker_that_makes_no_sense_keeps_nothing_back(
    keel: Keel, redis: RedisSide, make: Make, nonsense: str
) -> None:
    own = sink_id(keel)
    for key in (marker_key(own, AGENTS), fence_key(own)):
        redis.client.set(key, nonsense)
    await happen(keel, (SPAWN, "a"))
    await make().run()
    assert arrived(redis) == await expected(keel)


async def test_keys_of_another_type_are_written_over(keel: Keel, redis: RedisSide, make: Make) -> None:
    own = sink_id(keel)
    for key in (marker_key(own, AGENTS), fence_key(own), delayed_key(own, AGENTS)):
        redis.client.rpush(key, "in the way")
    runner = make()
    await happen(keel, (SPAWN, "a"))
    await runner.run()
    redis.client.rename(AGENTS, "aside")
    redis.client.set(AGENTS, "in the way")
    await happen(keel, (SUSPEND, "a"))
    await runner.run()
    redis.client.delete(AGENTS)
    redis.client.rename("aside", AGENTS)
    due(keel)
    await runner.run()
    assert arrived(redis) == await expected(keel)


async def test_a_sink_whose_events_went_before_it_told_them_goes_on_and_says_so(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    await happen(keel, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    head = len(await keel.log())
    keel.side.run("delete from events where pos <= ?", head - 1)
    keel.side.run("update log_head set floor = ?", head - 1)
    runner = make()
    await runner.run()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["c"]
    assert runner.sink.missed == 2


async def test_an_event_that_a_hand_has_spoilt_stops_nothing_that_comes_after_it(
    keel: Keel, redis: RedisSide, make: Make
) -> None:
    await happen(keel, (SPAWN, "a"), (SPAWN, "b"), (SPAWN, "c"))
    keel.side.run("update events set data = 'nonsense' where subject = 'b'")
    runner = make()
    await runner.run()
    assert [entry.fields["agent_session_id"] for entry in redis.entries()] == ["a", "c"]
    assert runner.sink.missed == 1
