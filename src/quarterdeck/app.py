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
from quarterdeck.domain.delegations.rules import DELEGATION_STATES
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.rules import INVOCATION_STATES
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import persist
from quarterdeck.domain.tasks.rules.states import TASK_STATES
from quarterdeck.domain.webhooks import operations as webhooks
from quarterdeck.domain.webhooks.rules import DELIVERY_STATES
from quarterdeck.engine.event_retention import EventRetention
from quarterdeck.engine.event_tailer import EventTailer
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.log_sealer import LogSealer
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import TransactionListener
from quarterdeck.http import event_routes, event_stream, system_routes
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.event_routes import EventHandlers
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.stream_limits import OpenStreams, StreamSettings
from quarterdeck.http.system_routes import CheckBearer, ServerInfoHandlers, SystemHandlers
from quarterdeck.runtime import Component, Runtime, Startable, build_runtime
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
from quarterdeck.wiring.coordination import CoordinationDeps as CoordinationBeside, build_coordination, launcher_names
from quarterdeck.wiring.fleets import build_fleets
from quarterdeck.wiring.redis import RedisClients, SinkInputs, open_redis

log = logging.getLogger("quarterdeck.app")
STATE_MACHINES = (SESSION, DELEGATION_STATES, INVOCATION_STATES, AGENT, TASK_STATES, DELIVERY_STATES)
"""Every state machine there is; `docs/states/` is drawn from these."""


def transaction_listeners(settings: TaskSettings) -> tuple[TransactionListener, ...]:
    """Who hears of events inside the transaction that caused them, in this order."""
    return (
        keys.on_zone_ended,
        services.on_session_ended,
        delegations.on_session_ended,
        invocations.on_session_changed,
        invocations.on_service_ended,
        tasks.LostAgentListener(tasks.timeouts_of(settings)).on_agent_ended,
        webhooks.on_zone_ended,
    )


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class App:
    """A server without its sockets; or a daemon, which sweeps and tells nobody more than how it is."""

    runtime: Runtime
    sweeps: SweepRunner
    leases: Sequence[Lease]
    startables: Sequence[Startable]
    dispatcher: Dispatcher
    authenticator: Authenticator
    event_streams: EventStreams

    def start(self, only: Collection[str] | None = None) -> None:
        """What goes on by itself, begins: every sweep, or those named."""
        self.runtime.wakeups.start()
        self.sweeps.start(only)
        for startable in self.startables:
            startable.start()

    async def stop(self, grace_seconds: float) -> None:
        """Answers what was let in, then lets go of everything."""
        await self.sweeps.stop()
        for startable in self.startables:
            await startable.stop()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.runtime.lanes.drain()
        except TimeoutError:
            log.error("stopped while %d commands still waited", sum(len(lane) for lane in self.runtime.lanes.lanes))
        await self._release_leases()
        await self.authenticator.close()
        await self.event_streams.tailer.stop()
        await self.runtime.wakeups.stop()
        for store in {*self.runtime.stores}:
            await store.close()

    async def _release_leases(self) -> None:
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
    redis = open_redis(settings)
    runtime = await build_runtime(settings, transaction_listeners(settings.section(TaskSettings)))
    try:
        cipher = await secrets.open_cipher(runtime, issuer, create_key=paths is None)
    except BaseException:
        # Whatever it is, a process that only tries to start must not leave connections behind.
        for store in {*runtime.stores}:
            await store.close()
        raise

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await runtime.engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    event_streams = build_event_streams(runtime)
    system_handlers = SystemHandlers(runtime.stores[0], runtime.metrics, issuer.jwks(), __version__, check_bearer)
    terminator, cascades = session_wiring.build_cascades(runtime)
    liveness = agent_wiring.build_agent_liveness(runtime)
    task_parts = task_wiring.build_tasks(runtime, cipher)
    # What only sweeps leaves calling out to the servers.
    webhook_secrets = webhook_wiring.webhook_secrets(issuer)
    webhooks, fanout_loop = await webhook_wiring.build_webhooks(runtime, webhook_secrets, with_delivery=paths is None)
    components = [
        await session_wiring.build_zones_and_sessions(runtime, cascades, check_bearer),
        session_wiring.build_api_keys(runtime, authenticator),
        agent_wiring.build_role_assignments(runtime),
        agent_wiring.build_agents(runtime, issuer, launcher_names(runtime), task_parts.heartbeat_port, liveness),
        session_wiring.build_services(runtime, session_wiring.push_secrets(issuer)),
        session_wiring.build_delegations(runtime, terminator, cascades),
        # What only sweeps leaves pushing to the servers.
        invocation_wiring.build_invocations(runtime, session_wiring.push_secrets(issuer) if paths is None else None),
        task_parts.component,
        task_wiring.build_task_details(runtime, cipher),
        build_coordination(
            runtime,
            CoordinationBeside(issuer, cipher, task_parts, liveness, url, None if redis is None else redis.keys),
            runs_coordinator=paths is None,
        ),
        build_fleets(runtime, issuer, event_streams),
        webhooks,
        build_event_log(runtime, issuer, event_streams),
        await build_sink_component(runtime, redis, check_bearer, SinkInputs([fanout_loop], liveness.heartbeats)),
        # Every room that keeps secrets names the shelves they stand on.
        Component(secrets.build_secret_routes(runtime, cipher, [persist.SECRET_COLUMNS], check_bearer)),
        Component(
            system_routes.about_routes(
                ServerInfoHandlers(runtime.engine, check_bearer, __version__, runtime.stores[0].kind)
            )
        ),
        Component(system_routes.routes(system_handlers, None if settings.server.host in LOOPBACK else METRICS)),
    ]
    route_table = [
        route for component in components for route in component.routes if paths is None or route.path in paths
    ]
    dispatcher = Dispatcher(route_table, authenticator, runtime.metrics, lines, event_streams.open_streams)
    dispatcher.check_agent = agent_wiring.build_agent_check(runtime)
    dispatcher.on_drain += [callback for component in components for callback in component.on_drain]
    system_handlers.set_routes(route_table, lambda: dispatcher.is_draining)
    register_metrics(runtime, lines)
    sweeps = SweepRunner([sweep for component in components for sweep in component.sweeps], runtime.metrics)
    leases = [lease for component in components for lease in component.leases]
    startables = [startable for component in components for startable in component.startables]
    return App(runtime, sweeps, leases, startables, dispatcher, authenticator, event_streams)


def build_event_log(runtime: Runtime, issuer: LocalIssuer, event_streams: EventStreams) -> Component:
    settings = runtime.settings.section(LogSettings)
    sealer, retention = (
        LogSealer(runtime.cross_zone_engine, issuer, settings),
        EventRetention(runtime.cross_zone_engine, settings),
    )
    return Component(
        event_routes.routes(EventHandlers(runtime.engine, event_streams)),
        [sealer.sweep(), retention.sweep()],
        [sealer.lease, retention.lease],
    )


async def build_sink_component(
    runtime: Runtime, clients: RedisClients | None, check_bearer: CheckBearer, inputs: SinkInputs
) -> Component:
    sinks = await redis_wiring.build_sinks(runtime, clients, check_bearer, inputs)
    return Component(sinks.routes, sinks.sweeps, sinks.leases, sinks.startables)


def build_event_streams(runtime: Runtime) -> EventStreams:
    """The streams of events: one reader across zones, and replays held to the zone of whoever asks."""
    settings = runtime.settings.section(StreamSettings)
    tailer = EventTailer(
        runtime.cross_zone_engine, runtime.wakeups, event_stream.encode_frame, settings.stream_poll_ms / 1000
    )
    streams = OpenStreams(settings)
    runtime.metrics.add_gauge("quarterdeck_streams_open", "Open streams", "events", streams.__len__)
    runtime.metrics.add_counter(
        "quarterdeck_streams_fell_behind",
        "How often a stream's client did not keep up and was sent back to the log",
        "events",
        lambda: tailer.fell_behind_count,
    )
    return EventStreams(runtime.engine, tailer, streams, settings.stream_keep_alive_ms / 1000)


def register_metrics(runtime: Runtime, lines: LineWriter | None) -> None:
    """The figures that are read when somebody asks for them."""
    for lane in runtime.lanes.lanes:
        runtime.metrics.add_gauge("quarterdeck_lane_waiting", "Commands waiting in a lane", lane.name, lane.__len__)
    if lines is not None:
        runtime.metrics.add_counter(
            "quarterdeck_log_lines_lost", "Log lines that could not be written", "stderr", lambda: lines.lost_lines
        )
