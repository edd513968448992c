"""What the other side refuses: tried again, in order, for a while; then dead, shown, requeued and forgotten."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.bus.redis.stream_entries import AGENTS, INVOCATIONS, REVOCATIONS
from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.engine import leader_loop
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import admin
from quarterdeck.engine.sinks.retention import SinkRetention, lowest_needed_position
from quarterdeck.engine.wakeups import Wakeups
from tests.support.audit_log import AuditLogHarness
from tests.support.eventually import eventually
from tests.support.redis import DirectRedis, RedisServer
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness
from tests.support.sink import SINK_NAME, SinkHarness, emit, make_entries_due, no_op, raise_unavailable
from tests.support.structs import build_struct

Make = Callable[..., SinkHarness]
SPAWN, SUSPEND, RESUME, END = "session.spawn", "session.suspend", "session.resume", "session.terminate"


@pytest.fixture
async def new_sink(runtime: RuntimeHarness, redis: DirectRedis) -> AsyncIterator[Make]:
    made: list[SinkHarness] = []

    def one(url: str = redis.url, **settings: object) -> SinkHarness:
        made.append(SinkHarness(runtime, url, build_struct(SinkSettings, **settings)))
        return made[-1]

    await one().sink.register()
    yield one
    for runner in made:
        await runner.close()


def block(redis: DirectRedis, stream: str) -> None:
    """Has Redis refuse every entry of a stream, for what stands in its place."""
    if redis.client.exists(stream):
        redis.client.rename(stream, f"{stream}:aside")
    redis.client.set(stream, "in the way")


def unblock(redis: DirectRedis, stream: str) -> None:
    redis.client.delete(stream)
    if redis.client.exists(f"{stream}:aside"):
        redis.client.rename(f"{stream}:aside", stream)


def told(redis: DirectRedis, stream: str = AGENTS) -> list[tuple[str, str]]:
    return [(entry.fields["event"], entry.fields["agent_session_id"]) for entry in redis.entries(stream)]


def rows(keel: RuntimeHarness) -> list[tuple[object, ...]]:
    """(stream, subject, attempts, whether it is dead) of all that is put aside."""
    found = keel.database.execute("select stream, subject, attempts, dead_at from sink_entries order by pos, entry")
    return [(*row, dead_at is not None) for *row, dead_at in found]


# -- tried again


async def test_a_refused_entry_waits_apart_and_the_position_goes_on(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (END, "b"), (SPAWN, "c"))
    await runner.run_until_idle()
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of b"]
    assert rows(runtime) == [(AGENTS, name, 1, False) for name in "abc"]
    assert "WRONGTYPE" in str(runtime.database.scalar("select min(error) from sink_entries"))
    assert runtime.database.scalar("select position from sinks") == len(await runtime.read_log())
    unblock(redis, AGENTS)
    make_entries_due(runtime)
    await runner.run_until_idle()
    assert sorted(told(redis)) == [("spawn", "a"), ("spawn", "c"), ("terminate", "b")]
    assert rows(runtime) == []
    assert (runner.sink.rejected, runner.sink.dead) == (3, 0)


async def test_later_entries_of_the_same_subject_wait_behind_a_refused_one_and_others_do_not(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SUSPEND, "a"))
    await runner.run_until_idle()
    unblock(redis, AGENTS)
    await emit(runtime, (RESUME, "a"), (SPAWN, "b"))
    await emit(runtime, (END, "a"), (SPAWN, "c"))
    await runner.run_until_idle()
    assert told(redis) == [("spawn", "b"), ("spawn", "c")]
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of a"]
    for _ in range(3):
        make_entries_due(runtime)
        await runner.run_until_idle()
    assert [verb for verb, subject in told(redis) if subject == "a"] == ["suspend", "resume", "terminate"]
    assert rows(runtime) == []


async def test_pauses_grow_and_whatever_waits_behind_waits_as_long(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SUSPEND, "a"))
    for attempt in range(1, 6):
        began = int(str(runtime.database.scalar("select at from events order by pos desc limit 1")))
        await emit(runtime, ("zone.change", "z"))
        await runner.run_until_idle()
        [[first, last]] = runtime.database.execute("select min(next_at), max(next_at) from sink_entries")
        assert first == last, "else what waits behind would be looked at over and over"
        assert int(str(first)) - began >= 500 * 2 ** (attempt - 1)
        await runner.run_until_idle()
        assert runtime.database.execute("select attempts from sink_entries order by pos") == [(attempt,), (0,)]
        make_entries_due(runtime)


async def test_after_so_many_attempts_an_entry_is_dead_and_those_behind_it_go_on(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, caplog: pytest.LogCaptureFixture
) -> None:
    runner = new_sink(outbox_max_attempts=3)
    block(redis, AGENTS)
    await emit(runtime, (SUSPEND, "a"))
    await runner.run_until_idle()
    await emit(runtime, (RESUME, "a"))
    await runner.run_until_idle()
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            make_entries_due(runtime)
            await runner.run_until_idle()
    assert f"1 entries of {AGENTS} are given up" in caplog.text
    assert rows(runtime)[0] == (AGENTS, "a", 3, True)
    assert runner.sink.dead == 1
    unblock(redis, AGENTS)
    make_entries_due(runtime)
    await runner.run_until_idle()
    assert told(redis) == [("resume", "a")]


async def test_a_revocation_is_never_given_up_and_alerts(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, caplog: pytest.LogCaptureFixture
) -> None:
    runner = new_sink(outbox_max_attempts=2)
    block(redis, REVOCATIONS)
    await emit(runtime, (END, "a"))
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            make_entries_due(runtime)
            await runner.run_until_idle()
    assert rows(runtime) == [(REVOCATIONS, "a", 6, False)]
    assert f"1 entries of {REVOCATIONS} are refused time and again, and never given up" in caplog.text
    assert (runner.sink.stuck, runner.sink.dead) == (1, 0)
    unblock(redis, REVOCATIONS)
    make_entries_due(runtime)
    await runner.run_until_idle()
    assert [entry.fields["session_id"] for entry in redis.entries(REVOCATIONS)] == ["sid of a"]
    assert runner.sink.stuck == 0


async def test_an_outage_in_the_middle_of_retries_counts_none(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    runner = new_sink(own_redis.url)
    block(own_redis.direct, AGENTS)
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    own_redis.stop()
    make_entries_due(runtime)
    for _ in range(5):
        with pytest.raises(BusUnavailable):
            await runner.run_until_idle()
    assert rows(runtime) == [(AGENTS, "a", 1, False)]
    own_redis.start()


async def test_an_entry_told_late_is_told_once_also_if_its_answer_was_lost(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    unblock(redis, AGENTS)
    runner.gate.after = raise_unavailable
    for _ in range(3):
        make_entries_due(runtime)
        with pytest.raises(BusUnavailable):
            await runner.run_until_idle()
    follower = new_sink()
    await follower.take_over()
    await follower.run_until_idle()
    assert told(redis) == [("spawn", "a")]
    assert rows(runtime) == []


# -- shown, and requeued


async def test_what_was_given_up_is_shown_and_goes_out_when_it_is_requeued(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink(outbox_max_attempts=1)
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"))
    await runner.run_until_idle()
    make_entries_due(runtime)
    await runner.run_until_idle()
    seen = await runtime.cross_zone_engine.read(lambda tx: admin.load_view(tx, SINK_NAME))
    assert (seen.waiting, seen.dead, seen.lag_events) == (0, 2, 0)
    shown = await runtime.cross_zone_engine.read(lambda tx: admin.load_entries(tx, SINK_NAME))
    assert [(entry.stream, entry.subject, entry.attempts) for entry in shown] == [(AGENTS, "b", 1), (AGENTS, "a", 1)]
    assert all(entry.dead_at and not entry.next_at and "WRONGTYPE" in entry.error for entry in shown)
    unblock(redis, AGENTS)
    await runner.run_until_idle()
    assert told(redis) == []
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, shown[1].pos)) == 1
    await runner.run_until_idle()
    assert told(redis) == [("spawn", "a")]
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, None)) == 1
    assert await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, None)) == 0
    await runner.run_until_idle()
    assert told(redis) == [("spawn", "a"), ("spawn", "b")]


async def test_a_sink_that_is_not_there_is_not_found(runtime: RuntimeHarness) -> None:
    with pytest.raises(NotFound):
        await runtime.cross_zone_engine.read(lambda tx: admin.load_view(tx, "nobody"))
    with pytest.raises(NotFound):
        await runtime.cross_zone_engine.transact(lambda tx: admin.requeue(tx, "nobody", None))
    assert await runtime.cross_zone_engine.read(admin.list_names) == []


# -- forgotten


async def test_events_that_a_sink_has_not_told_are_not_removed(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, tmp_path: Path
) -> None:
    runner, keeper = new_sink(), AuditLogHarness(runtime, tmp_path)
    begin = int(str(runtime.database.scalar("select position from sinks")))
    assert await runtime.cross_zone_engine.read(lowest_needed_position) == begin + 1
    await keeper.run_seal_and_retention()
    await keeper.run_seal_and_retention()
    assert runtime.database.scalar("select floor from log_head") == 0
    await runner.run_until_idle()
    await runner.stop()
    await keeper.run_seal_and_retention()
    assert int(str(runtime.database.scalar("select floor from log_head"))) > begin


async def test_dead_entries_are_kept_for_so_many_days_and_a_sink_that_nobody_runs_no_longer(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink(outbox_max_attempts=1)
    block(redis, AGENTS)
    await emit(runtime, (SPAWN, "a"), (SPAWN, "b"))
    await runner.run_until_idle()
    make_entries_due(runtime)
    await runner.run_until_idle()
    sweep = SinkRetention(runtime.cross_zone_engine, 7, 1)
    assert await sweep.run_once(500) == 0
    runtime.database.execute("update sink_entries set dead_at = dead_at - ? where subject = 'a'", 8 * DAY)
    assert await sweep.run_once(500) == 1
    assert [row[1] for row in rows(runtime)] == ["b"]
    assert await runtime.cross_zone_engine.read(admin.list_names) == [SINK_NAME]
    runtime.database.execute("update sinks set updated_at = updated_at - ?", 8 * DAY)
    await sweep.run_once(500)
    assert (runtime.database.count("sinks"), runtime.database.count("sink_entries")) == (0, 0)
    assert await runtime.cross_zone_engine.read(lowest_needed_position) is None


async def test_a_sink_that_is_run_says_so_although_it_has_nothing_to_tell_or_nobody_to_tell_it(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    runner = new_sink(own_redis.url)
    await runner.run_until_idle()
    runtime.database.execute("update sinks set updated_at = updated_at - ?", DAY)
    assert await runner.sink.is_due()
    await runner.run_until_idle()
    assert not await runner.sink.is_due()


async def test_a_sink_that_was_forgotten_begins_anew(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make
) -> None:
    runner = new_sink()
    await emit(runtime, (SPAWN, "a"))
    await runner.run_until_idle()
    runtime.database.execute("delete from sinks")
    await emit(runtime, (SPAWN, "b"))
    with pytest.raises(LeaseLost):
        await runner.stop()
    follower = new_sink()
    await follower.take_over()
    await follower.run_until_idle()
    await emit(runtime, (SPAWN, "c"))
    await follower.run_until_idle()
    assert told(redis) == [("spawn", "a"), ("spawn", "c")]


# -- as a duty


async def test_a_commit_wakes_the_sink_and_an_outage_ends_by_itself(
    runtime: RuntimeHarness, own_redis: RedisServer, new_sink: Make
) -> None:
    wakes = Wakeups()
    runner = new_sink(own_redis.url)
    duty = LeaderLoop(SINK_NAME, runtime.cross_zone_engine, wakes, 60_000, runner.sink)
    duty.start()

    async def tells(*subjects: str) -> None:
        await emit(runtime, *((SPAWN, subject) for subject in subjects))
        wakes.notify()

    async def arrived(count: int) -> None:
        async def all_there() -> bool:
            return len(own_redis.direct.entries(AGENTS)) == count

        await eventually(all_there, f"{count} entries had arrived")

    await tells("a")
    await arrived(1)
    own_redis.kill()
    await tells("b", "c")

    async def is_noticed() -> bool:
        return duty.error is not None

    async def is_over() -> bool:
        return duty.error is None

    await eventually(is_noticed, "the outage was noticed")
    own_redis.start()
    await arrived(3)
    await eventually(is_over, "the outage was over")
    await duty.stop()
    assert runtime.database.scalar("select position from sinks") == len(await runtime.read_log())


async def test_of_two_processes_one_runs_the_sink_and_the_other_when_the_first_is_gone(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_loop, "LEASE_MS", 500)
    monkeypatch.setattr(leader_loop, "LEASE_TAKEN_SECONDS", 0.05)
    wakes = Wakeups()
    pair = [LeaderLoop(SINK_NAME, runtime.cross_zone_engine, wakes, 50, new_sink().sink) for _ in range(2)]
    for duty in pair:
        duty.start()
    for number in range(20):
        await emit(runtime, (SPAWN, f"s{number}"))
        wakes.notify()
        if number == 10:
            await pair[0].stop()

    async def all_there() -> bool:
        return len(redis.entries(AGENTS)) >= 20

    await eventually(all_there, "all entries had arrived")
    await pair[1].stop()
    assert told(redis) == [("spawn", f"s{number}") for number in range(20)]


# -- everything at once


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_whatever_goes_wrong_every_entry_arrives_once_and_in_order_per_subject(
    runtime: RuntimeHarness, redis: DirectRedis, new_sink: Make, seed: int
) -> None:
    """Takings over, lost answers, cut connections, refusals and restarts in any order."""
    chance = random.Random(seed)
    kinds = [SPAWN, SUSPEND, RESUME, END, "invocation.created", "zone.change"]
    blocked: set[str] = set()
    runner = new_sink(outbox_batch_size=chance.choice([1, 3, 50]), outbox_max_attempts=1_000)
    for _ in range(60):
        deed = chance.choice(["happen"] * 4 + ["run"] * 4 + ["lose", "cut", "kill", "block", "unblock", "due"])
        if deed == "happen":
            await emit(runtime, *((chance.choice(kinds), chance.choice("abcde")) for _ in range(5)))
        elif deed in ("run", "lose", "cut"):
            runner.gate.after = raise_unavailable if deed == "lose" else no_op
            runner.gate.before = raise_unavailable if deed == "cut" else no_op
            with contextlib.suppress(BusUnavailable, WriterFenced):
                await runner.run_until_idle()
        elif deed == "kill":
            runner = new_sink(outbox_batch_size=chance.choice([1, 3, 50]), outbox_max_attempts=1_000)
            await runner.take_over()
        elif deed == "due":
            make_entries_due(runtime)
        elif deed == "block" and not blocked:
            blocked.add(chance.choice([AGENTS, REVOCATIONS, INVOCATIONS]))
            block(redis, *blocked)
        elif deed == "unblock" and blocked:
            unblock(redis, blocked.pop())
    for stream in blocked:
        unblock(redis, stream)
    runner.gate.before = runner.gate.after = no_op
    while await runner.run_cycle() == 0 or runtime.database.count("sink_entries"):
        make_entries_due(runtime)
    by_subject: dict[tuple[str, str], list[int]] = defaultdict(list)
    for entry in redis.entries():
        subject = entry.fields.get("agent_session_id") or entry.fields["invocation_id"]
        by_subject[entry.stream, subject].append(int(entry.fields["pos"]))
    wanted: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in await runtime.read_log():
        if event.type in (SPAWN, SUSPEND, RESUME, END):
            wanted[AGENTS, event.subject].append(event.pos)
        if event.type == END:
            wanted[REVOCATIONS, event.subject].append(event.pos)
        if event.type == "invocation.created":
            wanted[INVOCATIONS, event.subject].append(event.pos)
    assert by_subject == wanted
