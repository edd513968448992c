"""Builds the sinks component: the sinks, and the Redis mirrors of keys, slots and heartbeats.

Without REDIS_URL only the routes and the retention of sinks are built: a sink that is no longer configured is still
listed, and is deleted after its retention period. With REDIS_URL, the sinks `redis-streams` and `redis-keys` with their
leader loops and the mirrors of slot counters and heartbeats are built too. Nothing connects to Redis before the first
write: a server starts and serves while Redis is unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.interfaces import SlotWriter, StreamWriter
from quarterdeck.bus.redis.key_layout import KeyWriter
from quarterdeck.core import metric_table
from quarterdeck.core.clock import system_now
from quarterdeck.core.redaction import mask_passwords
from quarterdeck.domain.agents.operations import HeartbeatRecorder
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.tasks.operations import redis_rows
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.mirrors.heartbeats import HeartbeatMirror
from quarterdeck.engine.mirrors.keys import KeyMirror
from quarterdeck.engine.mirrors.slots import SlotMirror, SlotReconciler
from quarterdeck.engine.runtime import Component, MetricsRegistry, Runtime, SettingsReader, Startable
from quarterdeck.engine.settings import SettingsError, SinkSettings
from quarterdeck.engine.sinks import Sink, SinkTarget
from quarterdeck.engine.sinks.retention import SinkRetention
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http import redis_routes, sink_routes
from quarterdeck.http.redis_routes import RedisHandlers
from quarterdeck.http.sink_routes import SinkHandlers
from quarterdeck.http.system_routes import CheckBearer

REDIS_STREAMS = "redis-streams"


@dataclass(frozen=True, slots=True)
class RedisWriters:
    """The Redis writers, each with its own client."""

    streams: StreamWriter
    slots: SlotWriter
    keys: KeyWriter
    error_count: Callable[[], int]
    """Returns the number of connection errors."""


def open_redis(settings: SettingsReader) -> RedisWriters | None:
    """Return None if REDIS_URL is not set. Raises SettingsError if it cannot be used."""
    sink_settings = settings.section(SinkSettings)
    if sink_settings.redis_url is None:
        return None
    source = settings.source("redis_url")
    if sink_settings.streams_hmac_key is None:
        raise SettingsError(f"{source} is set, but STREAMS_HMAC_KEY is not. Set it: stream entries are signed with it.")
    try:
        from quarterdeck.bus.redis import client, key_writer, slots, streams_writer
    except ImportError as error:
        raise SettingsError(f"{source} is set, but Redis support is missing. Install quarterdeck[redis].") from error
    try:
        clients = [client.connect(sink_settings.redis_url) for _ in range(2)]
        key_client = client.connect(sink_settings.redis_url, key_writer.CONNECTIONS, "surrogateescape")
    except ValueError as error:
        raise SettingsError(f"{source} is {mask_passwords(sink_settings.redis_url)!r}: {error}.") from error
    key, errors = sink_settings.streams_hmac_key.encode(), client.ErrorCounter()
    return RedisWriters(
        streams_writer.RedisStreamWriter(clients[0], key, errors),
        slots.RedisSlotWriter(clients[1], errors),
        key_writer.RedisKeyWriter(key_client, errors),
        lambda: errors.count,
    )


@dataclass(frozen=True, slots=True)
class SinkInputs:
    """What other components provide to the sinks."""

    sinks: Sequence[LeaderLoop] = ()
    """Sinks that other components run. The sink routes list them too."""
    heartbeats: HeartbeatRecorder | None = None


async def build_sinks(
    runtime: Runtime, writers: RedisWriters | None, check_bearer: CheckBearer, inputs: SinkInputs
) -> Component:
    settings = runtime.settings.section(SinkSettings)
    retention = SinkRetention(runtime.cross_zone_engine, settings.outbox_retention_days, runtime.retention_interval_ms)
    sweeps, startables = [retention.sweep()], list[Startable]()
    mirror: KeyMirror | None = None
    redis_loops: list[LeaderLoop] = []
    if writers is not None:
        mirror, key_loop = await _build_key_mirror(runtime, writers.keys, settings)
        redis_loops = [await _build_stream_sink(runtime, writers.streams, settings), key_loop]
        startables += [*redis_loops, _build_slot_mirror(runtime, writers.slots, settings, sweeps)]
        if inputs.heartbeats is not None:
            # First in the list, so that it stops while the client that it shares is still open.
            startables.insert(0, _build_heartbeat_mirror(runtime.metrics, writers.keys, inputs.heartbeats))
    leader_loops = {leader_loop.name: leader_loop for leader_loop in (*inputs.sinks, *redis_loops)}
    handlers = SinkHandlers(runtime.cross_zone_engine, leader_loops, check_bearer, runtime.wakeups.notify)
    redis_handlers = RedisHandlers(mirror, check_bearer, runtime.wakeups.notify)
    error_count = (lambda: 0) if writers is None else writers.error_count
    runtime.metrics.add(metric_table.REDIS_CONNECTION_ERRORS, "redis", error_count)
    return Component(
        [*sink_routes.routes(handlers), *redis_routes.routes(redis_handlers)],
        sweeps,
        [leader_loop.lease for leader_loop in redis_loops],
        startables,
    )


async def _build_key_mirror(
    runtime: Runtime, key_writer: KeyWriter, settings: SinkSettings
) -> tuple[KeyMirror, LeaderLoop]:
    mirror = KeyMirror(runtime.cross_zone_engine, redis_rows.TaskMirrorSource(), key_writer, settings)
    await mirror.sink.register()
    _register_metrics(runtime.metrics, mirror.sink)
    runtime.metrics.add(metric_table.REDIS_KEY_REPAIRS, "redis", lambda: mirror.repair_count)
    return mirror, LeaderLoop(
        mirror.sink.name, runtime.cross_zone_engine, runtime.wakeups, settings.outbox_interval_ms, mirror
    )


def _build_heartbeat_mirror(
    metrics: MetricsRegistry, key_writer: KeyWriter, heartbeats: HeartbeatRecorder
) -> HeartbeatMirror:
    mirror = HeartbeatMirror(key_writer)
    heartbeats.listeners.append(lambda agents: mirror.record(map(redis_rows.to_heartbeat, agents)))
    metrics.add(metric_table.HEARTBEATS_LOST, "redis", lambda: mirror.lost_count)
    return mirror


async def _build_stream_sink(runtime: Runtime, stream_writer: StreamWriter, settings: SinkSettings) -> LeaderLoop:
    target = SinkTarget(stream_writer, stream_entries.build_entries, stream_entries.REVOCATIONS.__eq__)
    sink = Sink(runtime.cross_zone_engine, REDIS_STREAMS, target, settings)
    await sink.register()
    _register_metrics(runtime.metrics, sink)
    return LeaderLoop(sink.name, runtime.cross_zone_engine, runtime.wakeups, settings.outbox_interval_ms, sink)


def _build_slot_mirror(
    runtime: Runtime, slot_writer: SlotWriter, settings: SinkSettings, sweeps: list[Sweep]
) -> SlotMirror:
    counts = SlotCounts(runtime.settings.section(Limits))
    mirror = SlotMirror(runtime.cross_zone_engine, counts, slot_writer)
    runtime.commit_listeners.append(mirror.on_commit)
    reconciler = SlotReconciler(runtime.cross_zone_engine, counts, slot_writer, settings.slots_reconcile_interval_ms)
    sweeps.append(reconciler.sweep())
    runtime.metrics.add(metric_table.SLOT_REPAIRS, "redis", lambda: reconciler.repair_count)
    return mirror


def _register_metrics(metrics: MetricsRegistry, sink: Sink) -> None:
    def lag_events() -> float:
        return max(0, sink.head - sink.position)

    def lag_seconds() -> float:
        return 0.0 if sink.oldest_at is None else max(0, system_now() - sink.oldest_at) / 1000

    metrics.add(metric_table.SINK_LAG_EVENTS, sink.name, lag_events)
    metrics.add(metric_table.SINK_LAG_SECONDS, sink.name, lag_seconds)
    metrics.add(metric_table.SINK_STUCK, sink.name, lambda: sink.stuck_count)
    metrics.add(metric_table.SINK_DELIVERED, sink.name, lambda: sink.delivered_count)
    metrics.add(metric_table.SINK_REFUSED, sink.name, lambda: sink.rejected_count)
    metrics.add(metric_table.SINK_DEAD, sink.name, lambda: sink.dead_count)
    metrics.add(metric_table.SINK_MISSED, sink.name, lambda: sink.missed_count)
