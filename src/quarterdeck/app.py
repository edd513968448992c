"""The composition root: the only module that imports everything, and the one screen that says who listens to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quarterdeck import __version__
from quarterdeck.core.wire import METRICS, Caller, Route
from quarterdeck.domain.keys import operations as keys
from quarterdeck.domain.keys import routes as key_routes
from quarterdeck.domain.keys.routes import KeyDesk
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions import routes as session_routes
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.routes import SessionDesk
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.domain.sessions.sweeps import sweeps as session_sweeps
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones import routes as zone_routes
from quarterdeck.domain.zones.model import DEFAULT_ZONE, Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneDesk
from quarterdeck.engine.events import NewEvent
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.lanes import Lanes
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.retention import EventRetention
from quarterdeck.engine.seals import Sealer
from quarterdeck.engine.settings import EngineSettings, LogSettings
from quarterdeck.engine.sweeps import Sweep, SweepRunner
from quarterdeck.engine.tail import Tailer
from quarterdeck.engine.tx import Engine, Listener
from quarterdeck.engine.wake import Carrier, Wakes
from quarterdeck.http import events as event_routes
from quarterdeck.http import sse, system
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.http.events import LogDesk
from quarterdeck.http.logs import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.shell import Shell
from quarterdeck.http.sse import Live
from quarterdeck.http.streams import Streams, StreamSettings
from quarterdeck.http.system import System
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.port import Store, StoreError
from quarterdeck.store.roles import SWEEP
from quarterdeck.store.sqlite import SqliteStore

log = logging.getLogger("quarterdeck.app")
MACHINES = (SESSION,)
"""Every state machine there is; `docs/states/` is drawn from these."""

WITHIN: tuple[Listener, ...] = (keys.go_with_zone,)
"""Who hears of events inside the transaction that caused them, in this order."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SWEEP_CONNECTIONS = 6
"""Half of them read: one for whoever follows the log, one for a sweep that takes its time."""


async def open_stores(settings: Settings) -> tuple[Store, Store]:
    """The store for what is done for callers, held to their zones, and the one that sees across zones."""
    url = settings.database_url
    if path := sqlite_path(url):
        store = SqliteStore(path)
        return store, store
    from quarterdeck.store.postgres import PostgresStore  # the driver is an extra, and costs a laptop nothing

    own = await PostgresStore.open(url, settings.server.db_pool_max)
    try:
        return own, await PostgresStore.open(url, SWEEP_CONNECTIONS, SWEEP)
    except BaseException:
        await own.close()
        raise


def carrier_for(settings: Settings) -> Carrier | None:
    """SQLite has one process, which wakes itself."""
    if sqlite_path(settings.database_url):
        return None
    from quarterdeck.store.notify import Notifier

    return Notifier(settings.database_url)


@dataclass(frozen=True, slots=True)
class Keel:
    """What every room of this process stands on."""

    settings: Settings
    stores: tuple[Store, Store]
    wakes: Wakes
    metrics: Metrics
    engine: Engine
    """Held to the zones of whoever asks."""
    everywhere: Engine
    """Sees across zones: for sweeps, the tailer, and whoever administers all zones."""
    lanes: Lanes


@dataclass(frozen=True, slots=True)
class Room:
    """What a room brings along."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()


@dataclass(frozen=True, slots=True)
class App:
    """A server without its sockets."""

    keel: Keel
    sweeps: SweepRunner
    leases: Sequence[Lease]
    shell: Shell
    authenticator: Authenticator
    live: Live

    def start(self) -> None:
        """What goes on by itself, begins."""
        self.keel.wakes.start()
        self.sweeps.start()

    async def stop(self, grace_seconds: float) -> None:
        """Answers what was let in, then lets go of everything."""
        await self.sweeps.stop()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.keel.lanes.drain()
        except TimeoutError:
            log.error(
                "stopped while %d commands still waited", sum(len(lane) for lane in self.keel.lanes.made)
            )
        await self._give_leases_back()
        await self.authenticator.close()
        await self.live.tailer.stop()
        await self.keel.wakes.stop()
        for store in {*self.keel.stores}:
            await store.close()

    async def _give_leases_back(self) -> None:
        """So that another need not wait for their end. If the database is away, they end by themselves."""
        try:
            async with asyncio.timeout(1):
                for lease in self.leases:
                    await lease.release()
        except (StoreError, TimeoutError) as error:
            log.warning("leases were not given back, and end by themselves: %r", error)


async def lay_keel(settings: Settings) -> Keel:
    stores = store, store_everywhere = await open_stores(settings)
    metrics = Metrics()
    wakes = Wakes(carrier_for(settings))

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakes.committed()
        metrics.committed(events)

    engine = Engine(store, WITHIN, after_commit)

    def turnstile(zone_id: str) -> Awaitable[object]:
        # One round trip, at whose end the lock is free again: a transaction would keep it for another.
        return engine.read(lambda tx: zones.wait_for(tx, zone_id), zones=[zone_id], for_a_writer=True)

    lanes = Lanes(engine, settings.section(EngineSettings), metrics, turnstile=turnstile)
    return Keel(settings, stores, wakes, metrics, engine, Engine(store_everywhere), lanes)


async def build(settings: Settings, issuer: LocalIssuer, lines: LineWriter | None) -> App:
    """Puts the rooms together. Every lane, sweep, listener and route of the server is named from here on."""
    try:
        authenticator = Authenticator(settings.section(AuthSettings), issuer)
    except ValueError as error:  # an issuer that can never be asked
        raise SettingsError(str(error)) from error
    keel = await lay_keel(settings)

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await keel.engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    live = live_on(keel)
    own = System(keel.stores[0], keel.metrics, issuer.jwks(), __version__, check_bearer)
    rooms = [
        await zones_and_sessions(keel, check_bearer),
        api_keys(keel, authenticator),
        the_log(keel, issuer, live),
        Room(system.routes(own, None if settings.server.host in LOOPBACK else METRICS)),
    ]
    table = [route for room in rooms for route in room.routes]
    shell = Shell(table, authenticator, keel.metrics, lines, live.streams)
    own.serves(table, lambda: shell.draining)
    watch(keel, lines)
    sweeps = SweepRunner([sweep for room in rooms for sweep in room.sweeps], keel.metrics)
    leases = [lease for room in rooms for lease in room.leases]
    return App(keel, sweeps, leases, shell, authenticator, live)


async def zones_and_sessions(keel: Keel, check_bearer: Callable[[Caller], Awaitable[None]]) -> Room:
    lanes, limits = keel.lanes, keel.settings.section(Limits)
    told = keel.settings.section(SessionSettings)
    spawner, ender = sessions.Spawner(limits), sessions.Ender(told.cascade_chunk)
    put_zone = lanes.writing("zone", sessions.guarded(zones.put))
    show_zone = lanes.reading("zone-show", sessions.guarded(zones.show, writes=False))
    freeze_zone = lanes.writing("zone-freeze", sessions.guarded(zones.freeze))
    spawn = lanes.writing("spawn", spawner.spawn)
    hold = lanes.writing("hold", sessions.hold)
    show_session = lanes.reading("session-show", sessions.show)
    finisher = sessions.Finisher(
        lanes.writing("terminate", ender.terminate).submit,
        lanes.writing("zone-stop", ender.stop_zone).submit,
        lanes.writing("settle", ender.settle).submit,
    )
    await put_zone.submit(PutZone(DEFAULT_ZONE, None, None, "server"))
    zone_desk = ZoneDesk(
        keel.everywhere, limits, put_zone.submit, show_zone.submit, freeze_zone.submit, check_bearer
    )
    session_desk = SessionDesk(
        keel.engine, spawn.submit, hold.submit, show_session.submit, finisher, sessions.Explainer(spawner)
    )
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    return Room(
        [*zone_routes.routes(zone_desk), *session_routes.routes(session_desk)],
        [
            *session_sweeps(keel.everywhere, finisher, told, cleaning_ms),
            KeyRetention(keel.everywhere, told.session_retention_days, cleaning_ms).sweep(),
        ],
    )


def api_keys(keel: Keel, authenticator: Authenticator) -> Room:
    create = keel.lanes.writing("key-create", keys.create)
    revoke = keel.lanes.writing("key-revoke", keys.revoke)
    authenticator.believes_keys(keel.lanes.reading("key-find", keys.find).submit)
    usual_scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)
    return Room(key_routes.routes(KeyDesk(keel.engine, usual_scopes, create.submit, revoke.submit)))


def the_log(keel: Keel, issuer: LocalIssuer, live: Live) -> Room:
    told = keel.settings.section(LogSettings)
    sealer, retention = Sealer(keel.everywhere, issuer, told), EventRetention(keel.everywhere, told)
    return Room(
        event_routes.routes(LogDesk(keel.engine, live)),
        [sealer.sweep(), retention.sweep()],
        [sealer.lease, retention.lease],
    )


def live_on(keel: Keel) -> Live:
    """The streams of events: one reader across zones, and replays held to the zone of whoever asks."""
    told = keel.settings.section(StreamSettings)
    tailer = Tailer(keel.everywhere, keel.wakes, sse.frame, told.stream_poll_ms / 1000)
    streams = Streams(told)
    keel.metrics.gauge("quarterdeck_streams_open", "Open streams", "events", streams.__len__)
    keel.metrics.gauge(
        "quarterdeck_streams_fell_behind",
        "How often a stream's client did not keep up and was sent back to the log",
        "events",
        lambda: tailer.fell_behind,
    )
    return Live(keel.engine, tailer, streams, told.stream_keep_alive_ms / 1000)


def watch(keel: Keel, lines: LineWriter | None) -> None:
    """The figures that are read when somebody asks for them."""
    for lane in keel.lanes.made:
        keel.metrics.gauge("quarterdeck_lane_waiting", "Commands waiting in a lane", lane.name, lane.__len__)
    if lines is not None:
        keel.metrics.gauge(
            "quarterdeck_log_lines_lost", "Log lines that could not be written", "stderr", lambda: lines.lost
        )
