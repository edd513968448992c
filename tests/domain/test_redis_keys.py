"""What Redis shows of tasks and agents: as the rows say, whatever was there before, and put right when it is not so."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.client import PubSub

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.client import ErrorCounter
from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.core.caller import Caller
from quarterdeck.domain.tasks.model.commands import Patch
from quarterdeck.domain.tasks.operations.redis_rows import to_pulse
from quarterdeck.engine.mirrors import heartbeats
from quarterdeck.engine.mirrors.heartbeats import HeartbeatMirror
from tests.support.agents import AgentHarness
from tests.support.builders import ZONE, admin
from tests.support.key_mirror import KeyMirrorHarness, age_rows, open_key_writer, read_keys, status_key
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness

PENDING, ACTIVE, RECOVERY = (f"tasks:pending:{ZONE}", f"tasks:active:{ZONE}", f"coordinator:recovery_queue:{ZONE}")
OF_AGENT, STATUS = f"agent:tasks:{ZONE}/a", status_key("a", ZONE)


@pytest.fixture
async def mirror_harness(runtime: RuntimeHarness, redis: DirectRedis) -> AsyncIterator[KeyMirrorHarness]:
    made = KeyMirrorHarness(runtime, redis.url)
    await made.mirror.sink.register()
    await made.run_until_idle()
    yield made
    await made.key_writer.close()


@pytest.fixture
def task_harness(runtime: RuntimeHarness) -> TaskHarness:
    return TaskHarness(runtime)


def told(redis: DirectRedis) -> PubSub:
    """Whoever subscribes, from here on."""
    listening: PubSub = redis.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py says no types here
    listening.psubscribe("*:events:*")
    listening.get_message(timeout=5)
    return listening


def heard(listening: PubSub) -> list[tuple[str, dict[str, str]]]:
    found = []
    while (message := listening.get_message(timeout=0.2)) is not None:
        found.append((message["channel"], json.loads(message["data"])))
    return found


# -- each key


async def test_a_task_is_pending_by_priority_and_age_until_somebody_takes_it(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await task_harness.register_agent()
    low, high = await task_harness.create(priority=3), await task_harness.create(priority=8)
    await task_harness.create(depends_on=(low.id,))
    await task_harness.create(run_at=9_000_000_000_000)
    await mirror_harness.run_until_idle()
    assert redis.client.zrange(PENDING, 0, -1, withscores=True) == [
        (high.id, key_layout.pending_score(8, high.created_at)),
        (low.id, key_layout.pending_score(3, low.created_at)),
    ]
    [leased] = await task_harness.claim()
    assert leased.task.id == high.id
    await task_harness.submit(Patch(zone_id=ZONE, caller=task_harness.caller, id=low.id, priority=10))
    await mirror_harness.run_until_idle()
    assert redis.client.zrange(PENDING, 0, -1, withscores=True) == [
        (low.id, key_layout.pending_score(10, low.created_at))
    ]


async def test_what_an_agent_holds_is_seen_with_its_session_and_gone_when_it_is_given_back(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await task_harness.register_agent()
    session = await task_harness.runtime.spawn()
    bearer = Caller("someone", "app", ZONE, admin().scopes, session_id=session.id)
    for _ in range(2):
        await task_harness.create()
    first, second = await task_harness.claim(limit=2, caller=bearer)
    await mirror_harness.run_until_idle()
    held = {each.task.id: str(each.task.assigned_at) for each in (first, second)}
    assert redis.client.hgetall(OF_AGENT) == held
    assert redis.client.smembers(ACTIVE) == {f"{task}:{session.id}" for task in held}
    assert redis.client.zcard(PENDING) == 0
    context = f"session:context:{session.id}"
    assert redis.client.hgetall(context) == {
        "workspace_id": ZONE,
        "agent_id": "a",
        "task_id": first.task.id,
        "started_at": str(first.task.started_at),
    }
    assert 3_500 < redis.client.ttl(context) <= 3_600
    assert redis.client.hget(STATUS, "status") == "running"
    assert redis.client.hget(STATUS, "current_task") == second.task.id
    await task_harness.complete(first.task)
    await task_harness.release(second.task)
    await mirror_harness.run_until_idle()
    assert not redis.client.exists(OF_AGENT, ACTIVE)
    assert redis.client.zrange(PENDING, 0, -1) == [second.task.id]
    assert redis.client.hgetall(STATUS)["status"] == "idle"
    assert redis.client.hgetall(STATUS)["current_task"] == ""
    assert await mirror_harness.run_comparison() == 0


async def test_a_task_that_waits_for_its_backoff_stands_in_the_recovery_queue_until_it_is_due(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await task_harness.register_agent()
    made = await task_harness.create(max_retries=1, retry_backoff_seconds=1_000)
    [leased] = await task_harness.claim()
    await task_harness.fail(leased.task)
    await mirror_harness.run_until_idle()
    assert redis.client.lrange(RECOVERY, 0, -1) == [made.id]
    assert not redis.client.exists(PENDING, ACTIVE, OF_AGENT)
    task_harness.runtime.database.execute("update agent_tasks set available_at = 1")
    await task_harness.make_available(made.id)
    await mirror_harness.run_until_idle()
    assert not redis.client.exists(RECOVERY)
    assert redis.client.zrange(PENDING, 0, -1) == [made.id]
    [leased] = await task_harness.claim()
    await task_harness.fail(leased.task)
    await mirror_harness.run_until_idle()
    assert not redis.client.exists(RECOVERY, PENDING, ACTIVE)


async def test_an_agent_that_is_lost_is_among_the_stale_and_one_that_has_ended_is_nowhere(
    mirror_harness: KeyMirrorHarness, runtime: RuntimeHarness, redis: DirectRedis
) -> None:
    agency = AgentHarness(runtime)
    await agency.register("a")
    await agency.register("b")
    await mirror_harness.run_until_idle()
    assert redis.client.hget(STATUS, "status") == "idle"
    runtime.database.execute("update agent_pulses set last_seen_at = 5000 where agent_id = 'a'")
    await agency.refresh_status("a")
    await mirror_harness.run_until_idle()
    assert redis.client.hgetall(STATUS) == {"status": "error", "current_task": "", "last_heartbeat": "5000"}
    assert redis.client.zrange(key_layout.STALE_AGENTS, 0, -1, withscores=True) == [(f"{ZONE}/a", 5_000.0)]
    await agency.heartbeat("a")
    await mirror_harness.run_until_idle()
    assert redis.client.hget(STATUS, "status") == "idle"
    assert not redis.client.exists(key_layout.STALE_AGENTS)
    await agency.terminate("a")
    await mirror_harness.run_until_idle()
    assert [*read_keys(redis)] == [status_key("b", ZONE)]


async def test_agents_of_the_same_id_in_two_zones_do_not_share_a_key(
    mirror_harness: KeyMirrorHarness, runtime: RuntimeHarness, redis: DirectRedis
) -> None:
    await runtime.put_zone(key_layout.DEFAULT_ZONE)
    for zone_id in (ZONE, key_layout.DEFAULT_ZONE):
        await TaskHarness(runtime, zone_id).register_agent()
    await mirror_harness.run_until_idle()
    assert [*read_keys(redis)] == ["agent:status:a", f"agent:status:{ZONE}/a"]
    await TaskHarness(runtime).terminate_agent()
    await mirror_harness.run_until_idle()
    assert [*read_keys(redis)] == ["agent:status:a"]


async def test_what_has_happened_is_published_once_in_order_though_the_holder_is_killed_after_telling(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    listening = told(redis)
    await task_harness.register_agent()
    made = await task_harness.create()
    await mirror_harness.run_until_idle()
    [leased] = await task_harness.claim()
    await task_harness.complete(leased.task)
    await mirror_harness.run_until_idle()
    # As if the position had never been written down.
    task_harness.runtime.database.execute("update sinks set position = 0 where name = 'redis-keys'")
    second = KeyMirrorHarness(task_harness.runtime, redis.url)
    await second.take_over()
    await second.run_until_idle()
    await second.key_writer.close()
    assert heard(listening) == [
        (f"agents:events:{ZONE}", {"event": "agent_registered", "agent_id": "a"}),
        (f"tasks:events:{ZONE}", {"event": "task_created", "task_id": made.id}),
        (f"tasks:events:{ZONE}", {"event": "task_started", "task_id": made.id}),
        (f"tasks:events:{ZONE}", {"event": "task_completed", "task_id": made.id}),
    ]
    listening.close()


async def test_heartbeats_are_seen_for_a_minute_and_make_nothing_of_an_agent_that_has_ended(
    mirror_harness: KeyMirrorHarness, runtime: RuntimeHarness, redis: DirectRedis
) -> None:
    agency, writer = AgentHarness(runtime), HeartbeatMirror(mirror_harness.key_writer)
    agency.heartbeat_recorder.listeners.append(lambda agents: writer.record(map(to_pulse, agents)))
    await agency.register("a")
    await mirror_harness.run_until_idle()
    beaten = await agency.heartbeat("a")
    await writer.write()
    seen_at = beaten.agent.last_seen_at
    heartbeat = f"agent:heartbeat:{ZONE}/a"
    assert json.loads(str(redis.client.get(heartbeat))) == {"status": "idle", "task_id": "", "timestamp": seen_at}
    assert 50 < redis.client.ttl(heartbeat) <= 60
    assert redis.client.hget(STATUS, "last_heartbeat") == str(seen_at)
    redis.wipe()
    writer.record([to_pulse(beaten.agent)])
    await writer.write()
    assert [*read_keys(redis)] == [heartbeat]


async def test_heartbeats_are_lost_and_counted_where_there_is_no_room_for_them(
    mirror_harness: KeyMirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "AGENTS_MAX", 2)
    writer = HeartbeatMirror(mirror_harness.key_writer)
    writer.record([key_layout.Heartbeat(ZONE, name, "idle", "", at) for at in (1, 2) for name in ("a", "b", "c")])
    assert (writer.lost, {pulse.at for pulse in writer._newest.values()}) == (2, {2})


# -- whatever happens to it


async def busy(work: TaskHarness) -> None:
    """Something of every kind."""
    for name in ("a", "b"):
        await work.register_agent(name)
    for _ in range(6):
        await work.create(retry_backoff_seconds=1_000)
    first, *_ = await work.claim("a", limit=3)
    await work.claim("b", limit=1)
    await work.fail(first.task)
    await AgentHarness(work.runtime).register("lost")
    work.runtime.database.execute("update agent_pulses set last_seen_at = 5000 where agent_id = 'lost'")
    await AgentHarness(work.runtime).refresh_status("lost")


async def test_a_wiped_redis_is_written_anew_and_says_so_when_it_is_whole(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await busy(task_harness)
    await mirror_harness.run_until_idle()
    age_rows(task_harness.runtime)
    await mirror_harness.run_comparison()
    before = read_keys(redis)
    assert {key.rpartition(":")[0] for key in before} == {
        "agent:status", "agent:tasks", "coordinator", "coordinator:recovery_queue", "tasks:active", "tasks:pending",
    }  # fmt: skip
    assert await mirror_harness.run_comparison() == 0
    redis.wipe()
    mirror_harness.make_comparison_due()
    assert await mirror_harness.mirror.is_due()
    await mirror_harness.run_until_idle()
    assert read_keys(redis) == before
    assert (await mirror_harness.key_writer.read_state()).startswith("whole ")


async def test_lies_are_found_by_whoever_looks_and_put_right_and_counted(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await busy(task_harness)
    await mirror_harness.run_until_idle()
    age_rows(task_harness.runtime)
    await mirror_harness.run_comparison()
    mirror_harness.save_position()
    before, client = read_keys(redis), redis.client
    client.zadd(PENDING, {"ghost": 1, "no id": 3})
    client.zadd(PENDING, {b"\xff\x00": 2})
    client.zadd("tasks:pending:nowhere", {"ghost": 1})
    client.sadd(ACTIVE, "ghost:s", "nothing")
    client.hset(OF_AGENT, "ghost", "1")
    client.delete(f"agent:tasks:{ZONE}/b")
    client.hset(STATUS, mapping={"status": "idle", "last_heartbeat": "9999999999999"})
    client.hset("agent:status:ghost", "status", "running")
    client.set("agent:status:no one", "of another type")
    client.zadd(key_layout.STALE_AGENTS, {f"{ZONE}/a": 1})
    client.delete(RECOVERY)
    client.set(RECOVERY, "of another type")
    mirror_harness.make_comparison_due()
    assert await mirror_harness.mirror.is_due()
    assert await mirror_harness.run_comparison() >= 13
    assert read_keys(redis) == before
    assert await mirror_harness.run_comparison() == 0


async def test_what_has_changed_a_moment_ago_is_written_and_is_no_repair(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await mirror_harness.run_until_idle()
    await busy(task_harness)
    # As if the round came by before the sink has told of it.
    mirror_harness.save_position()
    other = KeyMirrorHarness(mirror_harness.runtime, redis.url)
    await other.take_over()
    assert await other.run_comparison() == 0
    assert redis.client.zcard(PENDING) == 2
    await other.key_writer.close()


async def test_whoever_was_frozen_while_another_took_over_writes_nothing(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    other = KeyMirrorHarness(task_harness.runtime, redis.url)
    await other.take_over()
    await other.run_until_idle()
    made = await task_harness.create()
    await other.run_until_idle()
    hold = mirror_harness.mirror._mirror_writer.identity
    assert hold is not None
    with pytest.raises(WriterFenced):
        await mirror_harness.key_writer.write(hold, [key_layout.MirroredTask(ZONE, made.id)])
    assert redis.client.zrange(PENDING, 0, -1) == [made.id]
    await other.key_writer.close()


async def test_a_redis_that_is_wiped_in_the_middle_of_a_rebuild_is_not_taken_for_whole(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await busy(task_harness)
    await mirror_harness.run_until_idle()
    before = read_keys(redis)
    monkeypatch.setattr("quarterdeck.engine.mirrors.keys.STEPS_MAX", 1)
    await mirror_harness.key_writer.delete_state()
    fence = await mirror_harness.get_fence()
    mirror_harness.make_comparison_due()
    for _ in range(6):
        assert await mirror_harness.mirror.run_cycle(fence) == 0
    assert (await mirror_harness.key_writer.read_state()).startswith("building ")
    redis.wipe()
    await mirror_harness.run_until_idle()
    assert read_keys(redis) == before
    assert (await mirror_harness.key_writer.read_state()).startswith("whole ")


async def test_with_redis_away_nothing_is_forgotten_and_no_half_is_called_whole(
    runtime: RuntimeHarness, own_redis: RedisServer
) -> None:
    mirroring, work = KeyMirrorHarness(runtime, own_redis.url), TaskHarness(runtime)
    await mirroring.mirror.sink.register()
    await mirroring.run_until_idle()
    own_redis.kill()
    await busy(work)
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            await mirroring.run_until_idle()
    own_redis.start()
    await mirroring.run_until_idle()
    assert own_redis.direct.client.zcard(PENDING) == 2
    own_redis.kill()
    mirroring.make_comparison_due()
    with pytest.raises(BusUnavailable):
        await mirroring.run_until_idle()
    own_redis.start()
    own_redis.direct.wipe()
    await mirroring.run_until_idle()
    age_rows(runtime)
    assert await mirroring.run_comparison() > 0  # what was heard of agents has become old, and nothing else is wrong
    assert await mirroring.run_comparison() == 0
    assert own_redis.direct.client.zcard(PENDING) == 2
    assert own_redis.direct.client.llen(RECOVERY) == 1
    await mirroring.key_writer.close()


async def test_a_login_needs_no_more_for_them_than_the_operations_page_says(
    runtime: RuntimeHarness, own_redis: RedisServer
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    said = page.partition("The login needs")[2].partition("\n\n")[0]
    commands, patterns = re.findall(r"\+[a-z|]+", said), re.findall(r"`([a-z.:]+\*)`", said)
    channels = [name for name in patterns if ":events:" in name or ":commands:" in name]
    own_redis.direct.client.acl_setuser(
        "narrow",
        enabled=True,
        passwords=["+hush"],
        keys=[name for name in patterns if name not in channels],
        reset_channels=True,
        channels=channels,
        commands=commands,
    )
    mirroring = KeyMirrorHarness(runtime, f"redis://narrow:hush@127.0.0.1:{own_redis.port}/0")
    await mirroring.mirror.sink.register()
    await busy(TaskHarness(runtime))
    await mirroring.run_until_idle()
    own_redis.direct.client.zadd(PENDING, {"ghost": 1})
    await mirroring.run_comparison()
    await mirroring.key_writer.write_heartbeats([key_layout.Heartbeat(ZONE, "a", "idle", "", 1)])
    await mirroring.key_writer.show_coordinator([ZONE], "me", overwrite=False)
    await mirroring.key_writer.ping()
    has_heard = asyncio.Event()
    listening = asyncio.create_task(mirroring.key_writer.listen(has_heard.set))
    await asyncio.wait_for(has_heard.wait(), 5)
    listening.cancel()
    await asyncio.wait({listening})
    await mirroring.key_writer.delete_state()
    assert own_redis.direct.client.zcard(PENDING) == 2
    await mirroring.key_writer.close()


async def test_every_unreachable_moment_is_counted(own_redis: RedisServer) -> None:
    errors = ErrorCounter()
    board = open_key_writer(own_redis.url, errors)
    await board.ping()
    assert errors.count == 0
    own_redis.kill()
    for count in (1, 2):
        with pytest.raises(BusUnavailable):
            await board.ping()
        assert errors.count == count
    await board.close()
