"""Redis keys of tasks and agents: they mirror the rows, and the comparison repairs every difference."""

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
from quarterdeck.domain.tasks.operations.redis_rows import to_heartbeat
from quarterdeck.engine.mirrors import heartbeats
from quarterdeck.engine.mirrors.heartbeats import HeartbeatMirror
from tests.support.agents import AgentHarness
from tests.support.builders import ZONE, admin
from tests.support.key_mirror import KeyMirrorHarness, age_rows, open_key_writer, read_keys, status_key
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness

PENDING, ACTIVE, RECOVERY = (f"tasks:pending:{ZONE}", f"tasks:active:{ZONE}", f"coordinator:recovery_queue:{ZONE}")
AGENT_TASKS, STATUS = f"agent:tasks:{ZONE}/a", status_key("a", ZONE)


@pytest.fixture
async def mirror_harness(runtime: RuntimeHarness, redis: DirectRedis) -> AsyncIterator[KeyMirrorHarness]:
    harness = KeyMirrorHarness(runtime, redis.url)
    await harness.mirror.sink.register()
    await harness.run_until_idle()
    yield harness
    await harness.key_writer.close()


@pytest.fixture
def task_harness(runtime: RuntimeHarness) -> TaskHarness:
    return TaskHarness(runtime)


def subscribe(redis: DirectRedis) -> PubSub:
    """Subscribe to every event channel."""
    subscription: PubSub = redis.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py has no types here
    subscription.psubscribe("*:events:*")
    subscription.get_message(timeout=5)
    return subscription


def read_messages(subscription: PubSub) -> list[tuple[str, dict[str, str]]]:
    found = []
    while (message := subscription.get_message(timeout=0.2)) is not None:
        found.append((message["channel"], json.loads(message["data"])))
    return found


# -- keys and channels


async def test_pending_tasks_are_sorted_by_priority_and_age_until_claimed(
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


async def test_active_tasks_are_shown_with_their_session_until_they_end(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await task_harness.register_agent()
    session = await task_harness.runtime.spawn()
    bearer = Caller("user-1", "app", ZONE, admin().scopes, session_id=session.id)
    for _ in range(2):
        await task_harness.create()
    first, second = await task_harness.claim(limit=2, caller=bearer)
    await mirror_harness.run_until_idle()
    held = {lease.task.id: str(lease.task.assigned_at) for lease in (first, second)}
    assert redis.client.hgetall(AGENT_TASKS) == held
    assert redis.client.smembers(ACTIVE) == {f"{task_id}:{session.id}" for task_id in held}
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
    assert not redis.client.exists(AGENT_TASKS, ACTIVE)
    assert redis.client.zrange(PENDING, 0, -1) == [second.task.id]
    assert redis.client.hgetall(STATUS)["status"] == "idle"
    assert redis.client.hgetall(STATUS)["current_task"] == ""
    assert await mirror_harness.run_comparison() == 0


async def test_task_in_backoff_is_in_the_recovery_queue_until_it_is_due(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await task_harness.register_agent()
    task = await task_harness.create(max_retries=1, retry_backoff_seconds=1_000)
    [leased] = await task_harness.claim()
    await task_harness.fail(leased.task)
    await mirror_harness.run_until_idle()
    assert redis.client.lrange(RECOVERY, 0, -1) == [task.id]
    assert not redis.client.exists(PENDING, ACTIVE, AGENT_TASKS)
    task_harness.runtime.database.execute("update agent_tasks set available_at = 1")
    await task_harness.make_available(task.id)
    await mirror_harness.run_until_idle()
    assert not redis.client.exists(RECOVERY)
    assert redis.client.zrange(PENDING, 0, -1) == [task.id]
    [leased] = await task_harness.claim()
    await task_harness.fail(leased.task)
    await mirror_harness.run_until_idle()
    assert not redis.client.exists(RECOVERY, PENDING, ACTIVE)


async def test_stale_agent_is_in_the_stale_set_and_a_terminated_agent_has_no_key(
    mirror_harness: KeyMirrorHarness, runtime: RuntimeHarness, redis: DirectRedis
) -> None:
    agent_harness = AgentHarness(runtime)
    await agent_harness.register("a")
    await agent_harness.register("b")
    await mirror_harness.run_until_idle()
    assert redis.client.hget(STATUS, "status") == "idle"
    runtime.database.execute("update agent_pulses set last_seen_at = 5000 where agent_id = 'a'")
    await agent_harness.refresh_status("a")
    await mirror_harness.run_until_idle()
    assert redis.client.hgetall(STATUS) == {"status": "error", "current_task": "", "last_heartbeat": "5000"}
    assert redis.client.zrange(key_layout.STALE_AGENTS, 0, -1, withscores=True) == [(f"{ZONE}/a", 5_000.0)]
    await agent_harness.heartbeat("a")
    await mirror_harness.run_until_idle()
    assert redis.client.hget(STATUS, "status") == "idle"
    assert not redis.client.exists(key_layout.STALE_AGENTS)
    await agent_harness.terminate("a")
    await mirror_harness.run_until_idle()
    assert [*read_keys(redis)] == [status_key("b", ZONE)]


async def test_agents_with_the_same_id_in_two_zones_have_separate_keys(
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


async def test_events_are_published_once_in_order_if_the_holder_is_killed_after_publishing(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    subscription = subscribe(redis)
    await task_harness.register_agent()
    task = await task_harness.create()
    await mirror_harness.run_until_idle()
    [leased] = await task_harness.claim()
    await task_harness.complete(leased.task)
    await mirror_harness.run_until_idle()
    # As if the holder was killed before it stored its position.
    task_harness.runtime.database.execute("update sinks set position = 0 where name = 'redis-keys'")
    second = KeyMirrorHarness(task_harness.runtime, redis.url)
    await second.take_over()
    await second.run_until_idle()
    await second.key_writer.close()
    assert read_messages(subscription) == [
        (f"agents:events:{ZONE}", {"event": "agent_registered", "agent_id": "a"}),
        (f"tasks:events:{ZONE}", {"event": "task_created", "task_id": task.id}),
        (f"tasks:events:{ZONE}", {"event": "task_started", "task_id": task.id}),
        (f"tasks:events:{ZONE}", {"event": "task_completed", "task_id": task.id}),
    ]
    subscription.close()


async def test_heartbeat_key_lasts_a_minute_and_creates_no_status_of_an_ended_agent(
    mirror_harness: KeyMirrorHarness, runtime: RuntimeHarness, redis: DirectRedis
) -> None:
    agent_harness, writer = AgentHarness(runtime), HeartbeatMirror(mirror_harness.key_writer)
    agent_harness.heartbeat_recorder.listeners.append(lambda agents: writer.record(map(to_heartbeat, agents)))
    await agent_harness.register("a")
    await mirror_harness.run_until_idle()
    result = await agent_harness.heartbeat("a")
    await writer.write()
    seen_at = result.agent.last_seen_at
    heartbeat = f"agent:heartbeat:{ZONE}/a"
    assert json.loads(str(redis.client.get(heartbeat))) == {"status": "idle", "task_id": "", "timestamp": seen_at}
    assert 50 < redis.client.ttl(heartbeat) <= 60
    assert redis.client.hget(STATUS, "last_heartbeat") == str(seen_at)
    redis.wipe()
    writer.record([to_heartbeat(result.agent)])
    await writer.write()
    assert [*read_keys(redis)] == [heartbeat]


async def test_heartbeats_above_the_buffer_limit_are_dropped_and_counted(
    mirror_harness: KeyMirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "AGENTS_MAX", 2)
    writer = HeartbeatMirror(mirror_harness.key_writer)
    writer.record([key_layout.Heartbeat(ZONE, name, "idle", "", at) for at in (1, 2) for name in ("a", "b", "c")])
    assert (writer.lost_count, {pulse.at for pulse in writer._newest.values()}) == (2, {2})


# -- repair, rebuild and outages


async def create_rows(task_harness: TaskHarness) -> None:
    """Create at least one row for every kind of key."""
    for name in ("a", "b"):
        await task_harness.register_agent(name)
    for _ in range(6):
        await task_harness.create(retry_backoff_seconds=1_000)
    first, *_ = await task_harness.claim("a", limit=3)
    await task_harness.claim("b", limit=1)
    await task_harness.fail(first.task)
    await AgentHarness(task_harness.runtime).register("lost")
    task_harness.runtime.database.execute("update agent_pulses set last_seen_at = 5000 where agent_id = 'lost'")
    await AgentHarness(task_harness.runtime).refresh_status("lost")


async def test_wiped_redis_is_rebuilt_and_then_marked_complete(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await create_rows(task_harness)
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


async def test_comparison_repairs_and_counts_every_difference(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await create_rows(task_harness)
    await mirror_harness.run_until_idle()
    age_rows(task_harness.runtime)
    await mirror_harness.run_comparison()
    mirror_harness.save_position()
    before, client = read_keys(redis), redis.client
    client.zadd(PENDING, {"ghost": 1, "invalid id": 3})
    client.zadd(PENDING, {b"\xff\x00": 2})
    client.zadd("tasks:pending:unknown-zone", {"ghost": 1})
    client.sadd(ACTIVE, "ghost:s", "nothing")
    client.hset(AGENT_TASKS, "ghost", "1")
    client.delete(f"agent:tasks:{ZONE}/b")
    client.hset(STATUS, mapping={"status": "idle", "last_heartbeat": "9999999999999"})
    client.hset("agent:status:ghost", "status", "running")
    client.set("agent:status:invalid id", "wrong type")
    client.zadd(key_layout.STALE_AGENTS, {f"{ZONE}/a": 1})
    client.delete(RECOVERY)
    client.set(RECOVERY, "wrong type")
    mirror_harness.make_comparison_due()
    assert await mirror_harness.mirror.is_due()
    assert await mirror_harness.run_comparison() >= 13
    assert read_keys(redis) == before
    assert await mirror_harness.run_comparison() == 0


async def test_recent_change_is_written_without_counting_as_a_repair(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    await mirror_harness.run_until_idle()
    await create_rows(task_harness)
    # As if the comparison ran before the sink delivered these events.
    mirror_harness.save_position()
    other = KeyMirrorHarness(mirror_harness.runtime, redis.url)
    await other.take_over()
    assert await other.run_comparison() == 0
    assert redis.client.zcard(PENDING) == 2
    await other.key_writer.close()


async def test_writer_with_an_expired_lease_writes_nothing_after_a_takeover(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis
) -> None:
    other = KeyMirrorHarness(task_harness.runtime, redis.url)
    await other.take_over()
    await other.run_until_idle()
    task = await task_harness.create()
    await other.run_until_idle()
    identity = mirror_harness.mirror._mirror_writer.identity
    assert identity is not None
    with pytest.raises(WriterFenced):
        await mirror_harness.key_writer.write(identity, [key_layout.MirroredTask(ZONE, task.id)])
    assert redis.client.zrange(PENDING, 0, -1) == [task.id]
    await other.key_writer.close()


async def test_redis_wiped_during_a_rebuild_is_not_marked_complete(
    mirror_harness: KeyMirrorHarness, task_harness: TaskHarness, redis: DirectRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_rows(task_harness)
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


async def test_redis_outage_loses_no_change_and_marks_no_partial_rebuild_complete(
    runtime: RuntimeHarness, own_redis: RedisServer
) -> None:
    mirror_harness, task_harness = KeyMirrorHarness(runtime, own_redis.url), TaskHarness(runtime)
    await mirror_harness.mirror.sink.register()
    await mirror_harness.run_until_idle()
    own_redis.kill()
    await create_rows(task_harness)
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            await mirror_harness.run_until_idle()
    own_redis.start()
    await mirror_harness.run_until_idle()
    assert own_redis.direct.client.zcard(PENDING) == 2
    own_redis.kill()
    mirror_harness.make_comparison_due()
    with pytest.raises(BusUnavailable):
        await mirror_harness.run_until_idle()
    own_redis.start()
    own_redis.direct.wipe()
    await mirror_harness.run_until_idle()
    age_rows(runtime)
    assert await mirror_harness.run_comparison() > 0  # only the heartbeats differ: the rows were aged
    assert await mirror_harness.run_comparison() == 0
    assert own_redis.direct.client.zcard(PENDING) == 2
    assert own_redis.direct.client.llen(RECOVERY) == 1
    await mirror_harness.key_writer.close()


async def test_documented_redis_acl_is_sufficient_for_the_key_mirror(
    runtime: RuntimeHarness, own_redis: RedisServer
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    section = page.partition("The login needs")[2].partition("\n\n")[0]
    commands, patterns = re.findall(r"\+[a-z|]+", section), re.findall(r"`([a-z.:]+\*)`", section)
    channels = [pattern for pattern in patterns if ":events:" in pattern or ":commands:" in pattern]
    own_redis.direct.client.acl_setuser(
        "narrow",
        enabled=True,
        passwords=["+hush"],
        keys=[pattern for pattern in patterns if pattern not in channels],
        reset_channels=True,
        channels=channels,
        commands=commands,
    )
    mirror_harness = KeyMirrorHarness(runtime, f"redis://narrow:hush@127.0.0.1:{own_redis.port}/0")
    await mirror_harness.mirror.sink.register()
    await create_rows(TaskHarness(runtime))
    await mirror_harness.run_until_idle()
    own_redis.direct.client.zadd(PENDING, {"ghost": 1})
    await mirror_harness.run_comparison()
    await mirror_harness.key_writer.write_heartbeats([key_layout.Heartbeat(ZONE, "a", "idle", "", 1)])
    await mirror_harness.key_writer.write_coordinator([ZONE], "coordinator-1", overwrite=False)
    await mirror_harness.key_writer.ping()
    has_received = asyncio.Event()
    listening = asyncio.create_task(mirror_harness.key_writer.listen_for_commands(has_received.set))
    await asyncio.wait_for(has_received.wait(), 5)
    listening.cancel()
    await asyncio.wait({listening})
    await mirror_harness.key_writer.delete_state()
    assert own_redis.direct.client.zcard(PENDING) == 2
    await mirror_harness.key_writer.close()


async def test_every_connection_error_is_counted(own_redis: RedisServer) -> None:
    errors = ErrorCounter()
    key_writer = open_key_writer(own_redis.url, errors)
    await key_writer.ping()
    assert errors.count == 0
    own_redis.kill()
    for count in (1, 2):
        with pytest.raises(BusUnavailable):
            await key_writer.ping()
        assert errors.count == count
    await key_writer.close()
