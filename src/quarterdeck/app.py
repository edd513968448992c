"""The composition root: the only module that imports everything, and the one screen that says who listens to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
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
from quarterdeck.engine.sweeps import SweepRunner
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
SWEEP_CONNECTIONS = 2
"""One for whoever follows the log, one for the sweeps."""


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
class App:
    """A server without its sockets."""

    stores: tuple[Store, Store]
    wakes: Wakes
    lanes: Lanes
    sweeps: SweepRunner
    leases: Sequence[Lease]
    shell: Shell
    authenticator: Authenticator
    metrics: Metrics
    live: Live

    def start(self) -> None:
        """What goes on by itself, begins."""
        self.wakes.start()
        self.sweeps.start()

    async def stop(self, grace_seconds: float) -> None:
        """Answers what was let in, then lets go of everything."""
        await self.sweeps.stop()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.lanes.drain()
        except TimeoutError:
            log.error("stopped while %d commands still waited", sum(len(lane) for lane in self.lanes.made))
        await self._give_leases_back()
        await self.authenticator.close()
        await self.live.tailer.stop()
        await self.wakes.stop()
        for store in {*self.stores}:
            await store.close()

    async def _give_leases_back(self) -> None:
        """So that another need not wait for their end. If the database is away, they end by themselves."""
        try:
            async with asyncio.timeout(1):
                for lease in self.leases:
                    await lease.release()
        except (StoreError, TimeoutError) as error:
            log.warning("leases were not given back, and end by themselves: %r", error)


def live_on(
    settings: StreamSettings, engine: Engine, everywhere: Engine, wakes: Wakes, metrics: Metrics
) -> Live:
    """The streams of events: one reader across zones, and replays held to the zone of whoever asks."""
    tailer = Tailer(everywhere, wakes, sse.frame, settings.stream_poll_ms / 1000)
    streams = Streams(settings)
    metrics.gauge("quarterdeck_streams_open", "Open streams", "events", streams.__len__)
    metrics.gauge(
        "quarterdeck_streams_fell_behind",
        "How often a stream's client did not keep up and was sent back to the log",
        "events",
        lambda: tailer.fell_behind,
    )
    return Live(engine, tailer, streams, settings.stream_keep_alive_ms / 1000)


async def build(settings: Settings, issuer: LocalIssuer, lines: LineWriter | None) -> App:
    """Puts the rooms together. Every lane, sweep, listener and route of the server is named in here."""
    auth = settings.section(AuthSettings)
    try:
        authenticator = Authenticator(auth, issuer)
    except ValueError as error:  # an issuer that can never be asked
        raise SettingsError(str(error)) from error
    stores = store, store_everywhere = await open_stores(settings)
    metrics = Metrics()
    wakes = Wakes(carrier_for(settings))

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakes.committed()
        metrics.committed(events)

    engine = Engine(store, WITHIN, after_commit)
    everywhere = Engine(store_everywhere)
    lanes = Lanes(engine, settings.section(EngineSettings), metrics)
    limits = settings.section(Limits)

    room = settings.section(SessionSettings)
    spawner, ender = sessions.Spawner(limits), sessions.Ender(room.cascade_chunk)
    put_zone = lanes.writing("zone", sessions.guarded(zones.put))
    show_zone = lanes.reading("zone-show", sessions.guarded(zones.show))
    freeze_zone = lanes.writing("zone-freeze", sessions.guarded(zones.freeze))
    spawn = lanes.writing("spawn", spawner.spawn)
    finisher = sessions.Finisher(
        lanes.writing("terminate", ender.terminate).submit,
        lanes.writing("zone-stop", ender.stop_zone).submit,
        lanes.writing("settle", ender.settle).submit,
    )
    hold = lanes.writing("hold", sessions.hold)
    show_session = lanes.reading("session-show", sessions.show)
    create_key = lanes.writing("key-create", keys.create)
    revoke_key = lanes.writing("key-revoke", keys.revoke)
    authenticator.believes_keys(lanes.reading("key-find", keys.find).submit)
    await put_zone.submit(PutZone(DEFAULT_ZONE, None, None, "server"))

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    keeping = settings.section(LogSettings)
    cleaning_ms = keeping.retention_cleanup_interval_ms
    sealer, retention = Sealer(everywhere, issuer, keeping), EventRetention(everywhere, keeping)
    sweeps = SweepRunner(
        [
            *session_sweeps(everywhere, finisher, room, cleaning_ms),
            sealer.sweep(),
            retention.sweep(),
            KeyRetention(everywhere, room.session_retention_days, cleaning_ms).sweep(),
        ],
        metrics,
    )
    own = System(store, metrics, issuer.jwks(), __version__, check_bearer)
    live = live_on(settings.section(StreamSettings), engine, everywhere, wakes, metrics)
    table: list[Route] = [
        *zone_routes.routes(
            ZoneDesk(everywhere, limits, put_zone.submit, show_zone.submit, freeze_zone.submit, check_bearer)
        ),
        *session_routes.routes(
            SessionDesk(
                engine, spawn.submit, hold.submit, show_session.submit, finisher, sessions.Explainer(spawner)
            )
        ),
        *key_routes.routes(KeyDesk(engine, (auth.lifecycle_scope,), create_key.submit, revoke_key.submit)),
        *event_routes.routes(LogDesk(engine, live)),
        *system.routes(own, None if settings.server.host in LOOPBACK else METRICS),
    ]
    shell = Shell(table, authenticator, metrics, lines, live.streams)
    own.serves(table, lambda: shell.draining)
    for lane in lanes.made:
        metrics.gauge("quarterdeck_lane_waiting", "Commands waiting in a lane", lane.name, lane.__len__)
    if lines is not None:
        metrics.gauge(
            "quarterdeck_log_lines_lost", "Log lines that could not be written", "stderr", lambda: lines.lost
        )
    leases = (sealer.lease, retention.lease)
    return App(stores, wakes, lanes, sweeps, leases, shell, authenticator, metrics, live)
