"""The composition root: the only module that imports everything, and the one screen that says who listens to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quarterdeck import __version__, outside
from quarterdeck.core.pushkeys import Secrets, secrets_from
from quarterdeck.core.wire import METRICS, Caller, Route
from quarterdeck.domain.delegations import operations as delegations
from quarterdeck.domain.delegations import routes as delegation_routes
from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.delegations.routes import DelegationDesk
from quarterdeck.domain.delegations.rules import DELEGATION
from quarterdeck.domain.delegations.sweeps import sweeps as delegation_sweeps
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations import routes as invocation_routes
from quarterdeck.domain.invocations.model import Command, InvocationSettings, Outcome
from quarterdeck.domain.invocations.operations.waiting import Lookout
from quarterdeck.domain.invocations.pushing import Means, Pusher
from quarterdeck.domain.invocations.routes import InvocationDesk
from quarterdeck.domain.invocations.rules import INVOCATION
from quarterdeck.domain.invocations.rules.pushing import CODES
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.keys import operations as keys
from quarterdeck.domain.keys import routes as key_routes
from quarterdeck.domain.keys.routes import KeyDesk
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services import routes as service_routes
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.services.routes import ServiceDesk
from quarterdeck.domain.services.sweeps import sweeps as service_sweeps
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions import routes as session_routes
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.routes import SessionDesk
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.domain.sessions.sweeps import Reconciler
from quarterdeck.domain.sessions.sweeps import sweeps as session_sweeps
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones import routes as zone_routes
from quarterdeck.domain.zones.model import DEFAULT_ZONE, Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneDesk
from quarterdeck.engine.events import NewEvent
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.lanes import Lane, Lanes
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.outward import LAB, PUBLIC, Outward
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
from quarterdeck.http.system import CheckBearer, System
from quarterdeck.outside import Beside, redis_for
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.port import Store, StoreError
from quarterdeck.store.roles import SWEEP
from quarterdeck.store.sqlite import SqliteStore

log = logging.getLogger("quarterdeck.app")
MACHINES = (SESSION, DELEGATION, INVOCATION)
"""Every state machine there is; `docs/states/` is drawn from these."""

WITHIN: tuple[Listener, ...] = (
    keys.go_with_zone,
    services.go_with_session,
    delegations.go_with_session,
    invocations.go_with_session,
    invocations.go_with_service,
)
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
    heard: list[Callable[[Sequence[NewEvent]], None]]
    """Who is told what this process has committed, right after it."""


class Runs(Protocol):
    """Something that goes on by itself as long as the process serves, and is no sweep."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What a room brings along."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()
    runs: Sequence[Runs] = ()
    on_drain: Sequence[Callable[[], None]] = ()
    """Told when the server begins to stop, before anything else is: whoever waits for long is let go."""


@dataclass(frozen=True, slots=True)
class App:
    """A server without its sockets; or a daemon, which sweeps and tells nobody more than how it is."""

    keel: Keel
    sweeps: SweepRunner
    leases: Sequence[Lease]
    runs: Sequence[Runs]
    shell: Shell
    authenticator: Authenticator
    live: Live

    def start(self, only: Collection[str] | None = None) -> None:
        """What goes on by itself, begins: every sweep, or those named."""
        self.keel.wakes.start()
        self.sweeps.start(only)
        for each in self.runs:
            each.start()

    async def stop(self, grace_seconds: float) -> None:
        """Answers what was let in, then lets go of everything."""
        await self.sweeps.stop()
        for each in self.runs:
            await each.stop()
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

    heard: list[Callable[[Sequence[NewEvent]], None]] = [metrics.committed]

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakes.committed()
        for hear in heard:
            hear(events)

    engine = Engine(store, WITHIN, after_commit)

    def turnstile(zone_id: str) -> Awaitable[object]:
        # One round trip, at whose end the lock is free again: a transaction would keep it for another.
        return engine.read(lambda tx: zones.wait_for(tx, zone_id), zones=[zone_id], for_a_writer=True)

    lanes = Lanes(engine, settings.section(EngineSettings), metrics, turnstile=turnstile)
    return Keel(settings, stores, wakes, metrics, engine, Engine(store_everywhere), lanes, heard)


async def build(
    settings: Settings, issuer: LocalIssuer, lines: LineWriter | None, paths: Collection[str] | None = None
) -> App:
    """Puts the rooms together. Every lane, sweep, listener and route of the server is named from here on. `paths` are
    all that is served, if they are given."""
    try:
        authenticator = Authenticator(settings.section(AuthSettings), issuer)
    except ValueError as error:  # an issuer that can never be asked
        raise SettingsError(str(error)) from error
    redis = redis_for(settings)
    keel = await lay_keel(settings)

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await keel.engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    live = live_on(keel)
    own = System(keel.stores[0], keel.metrics, issuer.jwks(), __version__, check_bearer)
    ender, finisher = endings(keel)
    rooms = [
        await zones_and_sessions(keel, finisher, check_bearer),
        api_keys(keel, authenticator),
        the_services(keel, push_secrets(issuer)),
        the_delegations(keel, ender, finisher),
        # What only sweeps leaves pushing to the servers.
        invocations_room(keel, push_secrets(issuer) if paths is None else None),
        the_log(keel, issuer, live),
        await the_outside(keel, redis, check_bearer),
        Room(system.routes(own, None if settings.server.host in LOOPBACK else METRICS)),
    ]
    table = [route for room in rooms for route in room.routes if paths is None or route.path in paths]
    shell = Shell(table, authenticator, keel.metrics, lines, live.streams)
    shell.on_drain += [callback for room in rooms for callback in room.on_drain]
    own.serves(table, lambda: shell.draining)
    watch(keel, lines)
    sweeps = SweepRunner([sweep for room in rooms for sweep in room.sweeps], keel.metrics)
    leases = [lease for room in rooms for lease in room.leases]
    runs = [each for room in rooms for each in room.runs]
    return App(keel, sweeps, leases, runs, shell, authenticator, live)


def endings(keel: Keel) -> tuple[sessions.Ender, sessions.Finisher]:
    """How sessions are ended, by whichever room, and how an ending is seen through."""
    ender = sessions.Ender(keel.settings.section(SessionSettings).cascade_chunk)
    return ender, sessions.Finisher(
        keel.lanes.writing("terminate", ender.terminate).submit,
        keel.lanes.writing("zone-stop", ender.stop_zone).submit,
        keel.lanes.writing("settle", ender.settle).submit,
    )


async def zones_and_sessions(
    keel: Keel, finisher: sessions.Finisher, check_bearer: Callable[[Caller], Awaitable[None]]
) -> Room:
    lanes, limits = keel.lanes, keel.settings.section(Limits)
    told = keel.settings.section(SessionSettings)
    spawner = sessions.Spawner(limits)
    put_zone = lanes.writing("zone", sessions.guarded(zones.put))
    show_zone = lanes.reading("zone-show", sessions.guarded(zones.show, writes=False))
    freeze_zone = lanes.writing("zone-freeze", sessions.guarded(zones.freeze))
    spawn = lanes.writing("spawn", spawner.spawn)
    hold = lanes.writing("hold", sessions.hold)
    recount = lanes.writing("recount", sessions.recount)
    show_session = lanes.reading("session-show", sessions.show)
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
            Reconciler(keel.everywhere, recount.submit).sweep(told.reconcile_interval_ms),
            KeyRetention(keel.everywhere, told.session_retention_days, cleaning_ms).sweep(),
        ],
    )


def api_keys(keel: Keel, authenticator: Authenticator) -> Room:
    create = keel.lanes.writing("key-create", keys.create)
    revoke = keel.lanes.writing("key-revoke", keys.revoke)
    authenticator.believes_keys(keel.lanes.reading("key-find", keys.find).submit)
    usual_scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)
    return Room(key_routes.routes(KeyDesk(keel.engine, usual_scopes, create.submit, revoke.submit)))


def push_secrets(issuer: LocalIssuer) -> Secrets:
    """Of services that are pushed to: whoever shares the signing key finds the same."""
    return secrets_from(issuer.derive("push secrets"))


def the_services(keel: Keel, secrets: Secrets) -> Room:
    private_allowed = keel.settings.section(ServiceSettings).push_private_addresses
    registrar = services.Registrar(private_allowed=private_allowed)
    changer = services.Changer(private_allowed=private_allowed)
    desk = ServiceDesk(
        keel.engine,
        secrets,
        keel.lanes.writing("service-register", registrar.register).submit,
        keel.lanes.writing("service-change", changer.change).submit,
        keel.lanes.writing("service-heartbeat", services.beat).submit,
        keel.lanes.writing("service-unregister", services.unregister).submit,
        keel.lanes.reading("service-show", services.show).submit,
    )
    forget = keel.lanes.writing("service-forget", services.forget)
    return Room(
        service_routes.routes(desk),
        service_sweeps(
            keel.everywhere,
            invocations.services_left_alone,
            forget.submit,
            keel.settings.section(ServiceSettings),
            keel.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
    )


def the_delegations(keel: Keel, ender: sessions.Ender, finisher: sessions.Finisher) -> Room:
    lanes, told = keel.lanes, keel.settings.section(DelegationSettings)
    desk = DelegationDesk(
        keel.engine,
        lanes.writing("delegate", delegations.delegate).submit,
        lanes.writing("revoke", delegations.Revoker(ender).revoke).submit,
        lanes.reading("delegation-show", sessions.guarded(delegations.show, writes=False)).submit,
        finisher.finish,
    )
    expire = lanes.writing("delegation-expire", delegations.expire)
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    return Room(
        delegation_routes.routes(desk),
        delegation_sweeps(keel.everywhere, expire.submit, told, cleaning_ms),
    )


def invocations_room(keel: Keel, secrets: Secrets | None) -> Room:
    """With the secrets to sign by, what is to be pushed is pushed."""
    told = keel.settings.section(InvocationSettings)
    waiters = invocations.Waiters()
    exchange = invocations.Exchange(told.lease_ms, waiters)
    lane: Lane[Command, Outcome] = keel.lanes.writing("invocation", exchange.run)
    settle = keel.lanes.writing("invocation-settle", invocations.settle)
    show = keel.lanes.reading("invocation-show", invocations.show)
    desk = InvocationDesk(keel.engine, lane.submit, show.submit, waiters, told)
    waiters.unwanted = desk.release
    pushers = [] if secrets is None else [the_pusher(keel, lane.submit, secrets)]
    keel.metrics.gauge(
        "quarterdeck_claims_waiting", "Claims that wait for work", "invocations", waiters.__len__
    )
    return Room(
        invocation_routes.routes(desk),
        invocation_sweeps(
            keel.everywhere,
            lane.submit,
            settle.submit,
            told,
            keel.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
        runs=[Lookout(keel.engine, keel.wakes, waiters, told.claim_poll_ms / 1000), *pushers],
        on_drain=[waiters.close, *(pusher.drain for pusher in pushers)],
    )


def the_pusher(keel: Keel, submit: Callable[[Command], Awaitable[Outcome]], secrets: Secrets) -> Pusher:
    settings = keel.settings
    guard = LAB if settings.section(ServiceSettings).push_private_addresses else PUBLIC
    means = Means(keel.engine, keel.everywhere, keel.wakes, submit, Outward(guard), secrets)
    pusher = Pusher(means, settings.section(InvocationSettings), settings.server.shutdown_grace_ms / 1000)
    keel.metrics.gauge("quarterdeck_pushes_under_way", "Pushes under way", "invocations", pusher.__len__)
    for code in CODES:
        keel.metrics.counter(
            "quarterdeck_pushes",
            "Pushes, by what came of them",
            code,
            partial(pusher.counts.__getitem__, code),
        )
    return pusher


def the_log(keel: Keel, issuer: LocalIssuer, live: Live) -> Room:
    told = keel.settings.section(LogSettings)
    sealer, retention = Sealer(keel.everywhere, issuer, told), EventRetention(keel.everywhere, told)
    return Room(
        event_routes.routes(LogDesk(keel.engine, live)),
        [sealer.sweep(), retention.sweep()],
        [sealer.lease, retention.lease],
    )


async def the_outside(keel: Keel, beside: Beside | None, check_bearer: CheckBearer) -> Room:
    made = await outside.lay(keel, beside, check_bearer)
    return Room(made.routes, made.sweeps, made.leases, made.runs)


def live_on(keel: Keel) -> Live:
    """The streams of events: one reader across zones, and replays held to the zone of whoever asks."""
    told = keel.settings.section(StreamSettings)
    tailer = Tailer(keel.everywhere, keel.wakes, sse.frame, told.stream_poll_ms / 1000)
    streams = Streams(told)
    keel.metrics.gauge("quarterdeck_streams_open", "Open streams", "events", streams.__len__)
    keel.metrics.counter(
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
        keel.metrics.counter(
            "quarterdeck_log_lines_lost", "Log lines that could not be written", "stderr", lambda: lines.lost
        )
