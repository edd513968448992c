"""The composition root: the only module that imports everything, and the one screen that says who listens to what."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from quarterdeck import __version__
from quarterdeck.core.wire import METRICS, Caller, Route
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions import routes as session_routes
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.routes import SessionDesk
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.domain.sessions.sweeps import ttl_sweep
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones import routes as zone_routes
from quarterdeck.domain.zones.model import Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneDesk
from quarterdeck.engine.lanes import Lanes
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.tx import Engine, Listener
from quarterdeck.http import events as event_routes
from quarterdeck.http import system
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.http.events import LogDesk
from quarterdeck.http.logs import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.shell import Shell
from quarterdeck.http.system import System
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.port import Store
from quarterdeck.store.sqlite import SqliteStore

log = logging.getLogger("quarterdeck.app")
MACHINES = (SESSION,)
"""Every state machine there is; `docs/states/` is drawn from these."""

WITHIN: tuple[Listener, ...] = ()
"""Who hears of events inside the transaction that caused them, in this order."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_ZONE = "default"


async def open_store(settings: Settings) -> Store:
    url = settings.database_url
    if path := sqlite_path(url):
        return SqliteStore(path)
    from quarterdeck.store.postgres import PostgresStore  # the driver is an extra, and costs a laptop nothing

    return await PostgresStore.open(url, settings.server.db_pool_max)


@dataclass(frozen=True, slots=True)
class App:
    """A server without its sockets."""

    store: Store
    lanes: Lanes
    sweeps: SweepRunner
    shell: Shell
    authenticator: Authenticator
    metrics: Metrics

    async def stop(self, grace_seconds: float) -> None:
        """Answers what was let in, then lets go of everything."""
        await self.sweeps.stop()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.lanes.drain()
        except TimeoutError:
            log.error("stopped while %d commands still waited", sum(len(lane) for lane in self.lanes.made))
        await self.authenticator.close()
        await self.store.close()


async def build(settings: Settings, issuer: LocalIssuer, lines: LineWriter | None) -> App:
    """Puts the rooms together. Every lane, sweep, listener and route of the server is named in here."""
    try:
        authenticator = Authenticator(settings.section(AuthSettings), issuer)
    except ValueError as error:  # an issuer that can never be asked
        raise SettingsError(str(error)) from error
    store = await open_store(settings)
    metrics = Metrics()
    engine = Engine(store, WITHIN, metrics.committed)
    lanes = Lanes(engine, settings.section(EngineSettings), metrics)
    limits = settings.section(Limits)

    put_zone = lanes.writing("zone", zones.put)
    show_zone = lanes.reading("zone-show", zones.show)
    spawn = lanes.writing("spawn", sessions.Spawner(limits).spawn)
    terminate = lanes.writing("terminate", sessions.terminate)
    show_session = lanes.reading("session-show", sessions.show)
    await put_zone.submit(PutZone(DEFAULT_ZONE, None, None, "server"))

    async def check_bearer(caller: Caller) -> None:
        if caller.session_id is not None:
            await engine.read(lambda tx: sessions.require_bearer(tx, caller.zone_id, caller.session_id))

    sweeps = SweepRunner([ttl_sweep(engine, terminate.submit, settings.section(SessionSettings))], metrics)
    own = System(store, metrics, issuer.jwks(), __version__)
    table: list[Route] = [
        *zone_routes.routes(ZoneDesk(engine, limits, put_zone.submit, show_zone.submit, check_bearer)),
        *session_routes.routes(SessionDesk(engine, spawn.submit, terminate.submit, show_session.submit)),
        *event_routes.routes(LogDesk(engine)),
        *system.routes(own, None if settings.server.host in LOOPBACK else METRICS),
    ]
    shell = Shell(table, authenticator, metrics, lines)
    own.serves(table, lambda: shell.draining)
    for lane in lanes.made:
        metrics.gauge("quarterdeck_lane_waiting", "Commands waiting in a lane", lane.name, lane.__len__)
    if lines is not None:
        metrics.gauge(
            "quarterdeck_log_lines_lost", "Log lines that could not be written", "stderr", lambda: lines.lost
        )
    return App(store, lanes, sweeps, shell, authenticator, metrics)
