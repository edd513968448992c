"""The composition root: the only module that imports everything, and the one screen that says who listens to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from quarterdeck import __version__
from quarterdeck.core.caller import METRICS, Caller
from quarterdeck.domain.agents.rules import AGENT
from quarterdeck.domain.api_keys import operations as keys
from quarterdeck.domain.delegations import operations as delegations
from quarterdeck.domain.delegations.rules import DELEGATION
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.rules import INVOCATION
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import persist
from quarterdeck.domain.tasks.rules.states import TASK
from quarterdeck.domain.webhooks import operations as webhooks
from quarterdeck.domain.webhooks.rules import DELIVERY
from quarterdeck.engine.event_retention import EventRetention
from quarterdeck.engine.event_tailer import Tailer
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.log_sealer import Sealer
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Listener
from quarterdeck.http import event_routes, event_stream, system_routes
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.http.dispatcher import Shell
from quarterdeck.http.event_routes import LogDesk
from quarterdeck.http.event_stream import Live
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.stream_limits import Streams, StreamSettings
from quarterdeck.http.system_routes import AboutDesk, CheckBearer, System
from quarterdeck.runtime import Keel, Room, Runs, lay
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.interface import StoreError
from quarterdeck.wiring import (
    agents as agent_wiring,
    invocations as invocation_wiring,
    redis as redis_wiring,
    secrets,
    sessions as session_wiring,
    tasks as task_wiring,
    webhooks as webhook_wiring,
)
from quarterdeck.wiring.coordination import Beside as CoordinationBeside, launcher_names, the_coordination
from quarterdeck.wiring.fleets import the_fleets
from quarterdeck.wiring.redis import Beside, Inside, redis_for

log = logging.getLogger("quarterdeck.app")
MACHINES = (SESSION, DELEGATION, INVOCATION, AGENT, TASK, DELIVERY)
"""Every state machine there is; `docs/states/` is drawn from these."""


def within(told: TaskSettings) -> tuple[Listener, ...]:
    """Who hears of events inside the transaction that caused them, in this order."""
    return (
        keys.go_with_zone,
        services.go_with_session,
        delegations.go_with_session,
        invocations.go_with_session,
        invocations.go_with_service,
        tasks.Settler(tasks.windows_of(told)).go_with_agent,
        webhooks.go_with_zone,
    )


LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
            log.error("stopped while %d commands still waited", sum(len(lane) for lane in self.keel.lanes.made))
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


async def build(
    settings: Settings,
    issuer: LocalIssuer,
    lines: LineWriter | None,
    paths: Collection[str] | None = None,
    url: str | None = None,
) -> App:
    """Puts the rooms together. Every lane, sweep, listener and route of the server is named from here on. `paths` are
    all that is served, if they are given; `url` is where, for whoever is on the same machine."""
    try:
        authenticator = Authenticator(settings.section(AuthSettings), issuer)
    except ValueError as error:  # an issuer that can never be asked
        raise SettingsError(str(error)) from error
    redis = redis_for(settings)
    keel = await lay(settings, within(settings.section(TaskSettings)))
    try:
        safe = await secrets.open_safe(keel, issuer, makes=paths is None)
    except BaseException:
        # Whatever it is, a process that only tries to start must not leave connections behind.
        for store in {*keel.stores}:
            await store.close()
        raise

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await keel.engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    live = live_on(keel)
    own = System(keel.stores[0], keel.metrics, issuer.jwks(), __version__, check_bearer)
    ender, finisher = session_wiring.endings(keel)
    watched = agent_wiring.agent_watch(keel)
    tasks_made = task_wiring.the_tasks(keel, safe)
    # What only sweeps leaves calling out to the servers.
    telling = webhook_wiring.webhook_secrets(issuer)
    told_of, teller = await webhook_wiring.the_webhooks(keel, telling, delivers=paths is None)
    rooms = [
        await session_wiring.zones_and_sessions(keel, finisher, check_bearer),
        session_wiring.api_keys(keel, authenticator),
        agent_wiring.the_members(keel),
        agent_wiring.the_agents(keel, issuer, launcher_names(keel), tasks_made.words, watched),
        session_wiring.the_services(keel, session_wiring.push_secrets(issuer)),
        session_wiring.the_delegations(keel, ender, finisher),
        # What only sweeps leaves pushing to the servers.
        invocation_wiring.invocations_room(keel, session_wiring.push_secrets(issuer) if paths is None else None),
        tasks_made.room,
        task_wiring.the_records(keel, safe),
        the_coordination(
            keel,
            CoordinationBeside(issuer, safe, tasks_made, watched, url, None if redis is None else redis.keys),
            acts=paths is None,
        ),
        the_fleets(keel, issuer, live),
        told_of,
        the_log(keel, issuer, live),
        await the_outside(keel, redis, check_bearer, Inside([teller], watched.beater)),
        # Every room that keeps secrets names the shelves they stand on.
        Room(secrets.lay(keel, safe, [persist.TASKS], check_bearer)),
        Room(system_routes.about_routes(AboutDesk(keel.engine, check_bearer, __version__, keel.stores[0].kind))),
        Room(system_routes.routes(own, None if settings.server.host in LOOPBACK else METRICS)),
    ]
    table = [route for room in rooms for route in room.routes if paths is None or route.path in paths]
    shell = Shell(table, authenticator, keel.metrics, lines, live.streams)
    shell.check_agent = agent_wiring.agent_check(keel)
    shell.on_drain += [callback for room in rooms for callback in room.on_drain]
    own.serves(table, lambda: shell.draining)
    watch(keel, lines)
    sweeps = SweepRunner([sweep for room in rooms for sweep in room.sweeps], keel.metrics)
    leases = [lease for room in rooms for lease in room.leases]
    runs = [each for room in rooms for each in room.runs]
    return App(keel, sweeps, leases, runs, shell, authenticator, live)


def the_log(keel: Keel, issuer: LocalIssuer, live: Live) -> Room:
    told = keel.settings.section(LogSettings)
    sealer, retention = Sealer(keel.everywhere, issuer, told), EventRetention(keel.everywhere, told)
    return Room(
        event_routes.routes(LogDesk(keel.engine, live)),
        [sealer.sweep(), retention.sweep()],
        [sealer.lease, retention.lease],
    )


async def the_outside(keel: Keel, beside: Beside | None, check_bearer: CheckBearer, inside: Inside) -> Room:
    made = await redis_wiring.lay(keel, beside, check_bearer, inside)
    return Room(made.routes, made.sweeps, made.leases, made.runs)


def live_on(keel: Keel) -> Live:
    """The streams of events: one reader across zones, and replays held to the zone of whoever asks."""
    told = keel.settings.section(StreamSettings)
    tailer = Tailer(keel.everywhere, keel.wakes, event_stream.frame, told.stream_poll_ms / 1000)
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
