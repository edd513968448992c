"""A part of the composition root: what is told to other systems, and what is built for it.

Without REDIS_URL there are only the routes and the retention of sinks: one that this server is no longer told of is
shown, and forgotten in its time. With it there are the sinks `redis-streams` and `redis-keys`, whoever runs them, the
slots that this process keeps and compares, and the heartbeats it has heard. Nothing connects before the first is due: a
server starts, and serves, with Redis away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.interfaces import Board, Outlet
from quarterdeck.bus.redis.key_layout import KeyBoard
from quarterdeck.core.clock import system_now
from quarterdeck.core.routing import Route
from quarterdeck.domain.agents.operations import Beater
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.tasks.operations import redis_rows
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leader_loop import Duty
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.mirrors.heartbeats import BeatWriter
from quarterdeck.engine.mirrors.keys import Mirror
from quarterdeck.engine.mirrors.slots import Reconciler, SlotKeeper
from quarterdeck.engine.settings import LogSettings, SinkSettings
from quarterdeck.engine.sinks import Channel, Sink
from quarterdeck.engine.sinks.retention import SinkRetention
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes
from quarterdeck.http import redis_routes, sink_routes
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.redis_routes import RedisDesk
from quarterdeck.http.sink_routes import SinkDesk
from quarterdeck.http.system_routes import CheckBearer
from quarterdeck.settings import Settings, SettingsError, mask

REDIS_STREAMS = "redis-streams"


@dataclass(frozen=True, slots=True)
class Beside:
    """What of Redis is used, each over a client of its own."""

    streams: Outlet
    slots: Board
    keys: KeyBoard
    errors: Callable[[], int]
    """How often it could not be reached."""


def redis_for(settings: Settings) -> Beside | None:
    """None where REDIS_URL is not set; a sentence where it cannot be used."""
    told = settings.section(SinkSettings)
    if told.redis_url is None:
        return None
    source = settings.found["redis_url"].source
    if told.streams_hmac_key is None:
        raise SettingsError(f"{source} is set, but STREAMS_HMAC_KEY, which entries are signed with, is not.")
    try:
        from quarterdeck.bus.redis import client, key_writer, slots, streams_writer
    except ImportError as error:
        raise SettingsError(f"{source} is set, but the extra quarterdeck[redis] is not installed.") from error
    try:
        clients = [client.connect(told.redis_url) for _ in range(2)]
        for_keys = client.connect(told.redis_url, key_writer.CONNECTIONS, "surrogateescape")
    except ValueError as error:
        raise SettingsError(f"{source} is {mask(told.redis_url)!r}: {error}.") from error
    key, errors = told.streams_hmac_key.encode(), client.Errors()
    return Beside(
        streams_writer.RedisStreams(clients[0], key, errors),
        slots.RedisSlots(clients[1], errors),
        key_writer.RedisKeys(for_keys, errors),
        lambda: errors.count,
    )


class Ground(Protocol):
    """What of the keel this stands on."""

    @property
    def settings(self) -> Settings: ...
    @property
    def wakes(self) -> Wakes: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def everywhere(self) -> Engine: ...
    @property
    def heard(self) -> list[Callable[[Sequence[NewEvent]], None]]: ...


@dataclass(slots=True)
class Outside:
    routes: list[Route]
    sweeps: list[Sweep]
    leases: list[Lease] = field(default_factory=list)
    runs: list[Duty | SlotKeeper | BeatWriter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Inside:
    """What of the rooms is told to the outside besides the log, or shown with what is."""

    sinks: Sequence[Duty] = ()
    """Those that rooms run by themselves: they are shown with those that are made here."""
    beater: Beater | None = None


async def lay(ground: Ground, beside: Beside | None, check_bearer: CheckBearer, inside: Inside) -> Outside:
    told = ground.settings.section(SinkSettings)
    cleaning_ms = ground.settings.section(LogSettings).retention_cleanup_interval_ms
    forgetting = SinkRetention(ground.everywhere, told.outbox_retention_days, cleaning_ms)
    duties = {duty.name: duty for duty in inside.sinks}
    desk = SinkDesk(ground.everywhere, duties, check_bearer, ground.wakes.committed)
    made = Outside(sink_routes.routes(desk), [forgetting.sweep()])
    mirror: Mirror | None = None
    if beside is not None:
        mirror, keys = await _keys(ground, beside.keys, told)
        for duty in (await _streams(ground, beside.streams, told), keys):
            duties[duty.name] = duty
            made.leases.append(duty.lease)
            made.runs.append(duty)
        made.runs.append(_slots(ground, beside.slots, told, made.sweeps))
        if inside.beater is not None:
            # First of all: when it stops, the client that it shares is still there.
            made.runs.insert(0, _beats(ground.metrics, beside.keys, inside.beater))
    made.routes += redis_routes.routes(RedisDesk(mirror, check_bearer, ground.wakes.committed))
    ground.metrics.counter(
        "valkey_connection_errors",
        "How often Redis could not be reached",
        "redis",
        (lambda: 0) if beside is None else beside.errors,
    )
    return made


async def _keys(ground: Ground, board: KeyBoard, told: SinkSettings) -> tuple[Mirror, Duty]:
    mirror = Mirror(ground.everywhere, redis_rows.Rows(), board, told)
    await mirror.sink.begin()
    _watch(ground.metrics, mirror.sink)
    ground.metrics.counter("quarterdeck_redis_keys_repairs", "Keys put right", "redis", lambda: mirror.repairs)
    return mirror, Duty(mirror.sink.name, ground.everywhere, ground.wakes, told.outbox_interval_ms, mirror)


def _beats(metrics: Metrics, board: KeyBoard, beater: Beater) -> BeatWriter:
    writer = BeatWriter(board)
    beater.hears.append(lambda agents: writer.heard(map(redis_rows.pulse_of, agents)))
    metrics.counter("quarterdeck_redis_beats_lost", "Heartbeats not shown", "redis", lambda: writer.lost)
    return writer


async def _streams(ground: Ground, outlet: Outlet, told: SinkSettings) -> Duty:
    channel = Channel(outlet, stream_entries.entries_of, stream_entries.REVOCATIONS.__eq__)
    sink = Sink(ground.everywhere, REDIS_STREAMS, channel, told)
    await sink.begin()
    _watch(ground.metrics, sink)
    return Duty(sink.name, ground.everywhere, ground.wakes, told.outbox_interval_ms, sink)


def _slots(ground: Ground, board: Board, told: SinkSettings, sweeps: list[Sweep]) -> SlotKeeper:
    counts = SlotCounts(ground.settings.section(Limits))
    keeper = SlotKeeper(ground.everywhere, counts, board)
    ground.heard.append(keeper.committed)
    reconciler = Reconciler(ground.everywhere, counts, board, told.slots_reconcile_interval_ms)
    sweeps.append(reconciler.sweep())
    ground.metrics.counter("quarterdeck_slots_repairs", "Slots put right", "redis", lambda: reconciler.repairs)
    return keeper


def _watch(metrics: Metrics, sink: Sink) -> None:
    def lag_events() -> float:
        return max(0, sink.head - sink.position)

    def lag_seconds() -> float:
        return 0.0 if sink.oldest_at is None else max(0, system_now() - sink.oldest_at) / 1000

    own, name = "quarterdeck_sink", sink.name
    metrics.gauge(f"{own}_lag_events", "Events not told yet", name, lag_events)
    metrics.gauge(f"{own}_lag_seconds", "How long the oldest of them has waited", name, lag_seconds)
    metrics.gauge(f"{own}_stuck", "Entries refused time and again that are never given up", name, lambda: sink.stuck)
    metrics.counter(f"{own}_delivered", "Entries delivered", name, lambda: sink.delivered)
    metrics.counter(f"{own}_refused", "Entries refused, each time", name, lambda: sink.refused)
    metrics.counter(f"{own}_dead", "Entries given up", name, lambda: sink.died)
    metrics.counter(f"{own}_missed", "Events that went before they were told", name, lambda: sink.missed)
