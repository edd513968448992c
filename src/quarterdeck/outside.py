"""A part of the composition root: what is told to other systems, and what is built for it.

Without REDIS_URL there are only the routes and the retention of sinks: one that this server is no longer told of is
shown, and forgotten in its time. With it there is the sink `redis-streams`, whoever runs it, and the slots that this
process keeps and compares. Nothing connects before the first is due: a server starts, and serves, with Redis away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quarterdeck.bus import streams
from quarterdeck.bus.port import Board, Outlet
from quarterdeck.core.clock import system_now
from quarterdeck.core.wire import Route
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.duties import Duty
from quarterdeck.engine.events import NewEvent
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.settings import LogSettings, SinkSettings
from quarterdeck.engine.sinks import Channel, Sink
from quarterdeck.engine.sinks.retention import SinkRetention
from quarterdeck.engine.slots import Reconciler, SlotKeeper
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.tx import Engine
from quarterdeck.engine.wake import Wakes
from quarterdeck.http import sinks
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.sinks import SinkDesk
from quarterdeck.http.system import CheckBearer
from quarterdeck.settings import Settings, SettingsError, mask

REDIS_STREAMS = "redis-streams"


@dataclass(frozen=True, slots=True)
class Beside:
    """What of Redis is used, each over a client of its own."""

    streams: Outlet
    slots: Board


def redis_for(settings: Settings) -> Beside | None:
    """None where REDIS_URL is not set; a sentence where it cannot be used."""
    told = settings.section(SinkSettings)
    if told.redis_url is None:
        return None
    source = settings.found["redis_url"].source
    if told.streams_hmac_key is None:
        raise SettingsError(f"{source} is set, but STREAMS_HMAC_KEY, which entries are signed with, is not.")
    try:
        from quarterdeck.bus import redis  # the library is an extra, and costs a laptop nothing
    except ImportError as error:
        raise SettingsError(f"{source} is set, but the extra quarterdeck[redis] is not installed.") from error
    try:
        clients = [redis.connect(told.redis_url) for _ in range(2)]
    except ValueError as error:
        raise SettingsError(f"{source} is {mask(told.redis_url)!r}: {error}.") from error
    key = told.streams_hmac_key.encode()
    return Beside(redis.RedisStreams(clients[0], key), redis.RedisSlots(clients[1]))


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
    runs: list[Duty | SlotKeeper] = field(default_factory=list)


async def lay(ground: Ground, beside: Beside | None, check_bearer: CheckBearer) -> Outside:
    told = ground.settings.section(SinkSettings)
    cleaning_ms = ground.settings.section(LogSettings).retention_cleanup_interval_ms
    forgetting = SinkRetention(ground.everywhere, told.outbox_retention_days, cleaning_ms)
    duties: dict[str, Duty] = {}
    desk = SinkDesk(ground.everywhere, duties, check_bearer, ground.wakes.committed)
    made = Outside(sinks.routes(desk), [forgetting.sweep()])
    if beside is not None:
        duty = await _streams(ground, beside.streams, told)
        duties[duty.name] = duty
        made.leases.append(duty.lease)
        made.runs += [duty, _slots(ground, beside.slots, told, made.sweeps)]
    return made


async def _streams(ground: Ground, outlet: Outlet, told: SinkSettings) -> Duty:
    channel = Channel(outlet, streams.entries_of, streams.REVOCATIONS.__eq__)
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
    ground.metrics.counter(
        "quarterdeck_slots_repairs", "Slots put right", "redis", lambda: reconciler.repairs
    )
    return keeper


def _watch(metrics: Metrics, sink: Sink) -> None:
    def lag_events() -> float:
        return max(0, sink.head - sink.position)

    def lag_seconds() -> float:
        return 0.0 if sink.oldest_at is None else max(0, system_now() - sink.oldest_at) / 1000

    own, name = "quarterdeck_sink", sink.name
    metrics.gauge(f"{own}_lag_events", "Events not told yet", name, lag_events)
    metrics.gauge(f"{own}_lag_seconds", "How long the oldest of them has waited", name, lag_seconds)
    metrics.gauge(
        f"{own}_stuck", "Entries refused time and again that are never given up", name, lambda: sink.stuck
    )
    metrics.counter(f"{own}_delivered", "Entries delivered", name, lambda: sink.delivered)
    metrics.counter(f"{own}_refused", "Entries refused, each time", name, lambda: sink.refused)
    metrics.counter(f"{own}_dead", "Entries given up", name, lambda: sink.died)
    metrics.counter(f"{own}_missed", "Events that went before they were told", name, lambda: sink.missed)
