"""The composition root: builds a server from its components and lists which component listens to which events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from quarterdeck import __version__
from quarterdeck.core.caller import METRICS, Caller
from quarterdeck.domain.agents.rules import AGENT_STATES
from quarterdeck.domain.api_keys import operations as api_keys
from quarterdeck.domain.delegations import operations as delegations
from quarterdeck.domain.delegations.rules import DELEGATION_STATES
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.rules import INVOCATION_STATES
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.rules import SESSION_STATES
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
from quarterdeck.engine.secrets import FieldCipher
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
from quarterdeck.wiring.agents import build_agent_check, build_agent_liveness, build_agents, build_role_assignments
from quarterdeck.wiring.coordination import CoordinationDeps, build_coordination, launcher_names
from quarterdeck.wiring.fleets import build_fleets
from quarterdeck.wiring.invocations import build_invocations
from quarterdeck.wiring.redis import RedisWriters, SinkInputs, build_sinks, open_redis
from quarterdeck.wiring.secrets import build_secret_routes, open_cipher
from quarterdeck.wiring.sessions import (
    build_api_keys,
    build_cascades,
    build_delegations,
    build_services,
    build_zones_and_sessions,
    push_secret_deriver,
)
from quarterdeck.wiring.tasks import build_task_details, build_tasks
from quarterdeck.wiring.webhooks import build_webhooks, webhook_secret_deriver

log = logging.getLogger("quarterdeck.app")
STATE_MACHINES = (SESSION_STATES, DELEGATION_STATES, INVOCATION_STATES, AGENT_STATES, TASK_STATES, DELIVERY_STATES)
"""All state machines. `docs/states/` is generated from them."""


def transaction_listeners(settings: TaskSettings) -> tuple[TransactionListener, ...]:
    """The listeners that get events inside the transaction that caused them, in the order in which they are called."""
    return (
        api_keys.on_zone_ended,
        services.on_session_or_zone_ended,
        delegations.on_session_ended,
        invocations.on_session_changed,
        invocations.on_service_ended,
        tasks.LostAgentListener(tasks.timeouts_of(settings)).on_agents_lost,
        webhooks.on_zone_ended,
    )


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class App:
    """A server without its sockets, or the sweeper daemon, which serves only health and metrics."""

    runtime: Runtime
    sweeps: SweepRunner
    leases: Sequence[Lease]
    startables: Sequence[Startable]
    dispatcher: Dispatcher
    authenticator: Authenticator
    event_streams: EventStreams

    def start(self, only: Collection[str] | None = None) -> None:
        """Start the background work. If `only` is given, start only the sweeps that it names."""
        self.runtime.wakeups.start()
        self.sweeps.start(only)
        for startable in self.startables:
            startable.start()

    async def stop(self, grace_seconds: float) -> None:
        """Finish the accepted commands, then release leases and connections."""
        await self.sweeps.stop()
        for startable in self.startables:
            await startable.stop()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.runtime.lanes.drain()
        except TimeoutError:
            log.error("stopped with %d commands still waiting", sum(len(lane) for lane in self.runtime.lanes.lanes))
        await self._release_leases()
        await self.authenticator.close()
        await self.event_streams.tailer.stop()
        await self.runtime.wakeups.stop()
        for store in {*self.runtime.stores}:
            await store.close()

    async def _release_leases(self) -> None:
        """Release the leases, so that other processes need not wait until they expire."""
        try:
            async with asyncio.timeout(1):
                for lease in self.leases:
                    await lease.release()
        except (StoreError, TimeoutError) as error:
            log.warning("leases were not released and will expire: %r", error)


async def build(
    settings: Settings,
    issuer: LocalIssuer,
    request_log: LineWriter | None,
    paths: Collection[str] | None = None,
    url: str | None = None,
) -> App:
    """Build a server from its components.

    If `request_log` is None, requests are not logged. If `paths` is given, only these paths are served; the sweeper
    daemon uses that. `url` is the server's URL on its own machine.
    """
    try:
        authenticator = Authenticator(settings.section(AuthSettings), issuer)
    except ValueError as error:  # the issuer's URL is not usable
        raise SettingsError(str(error)) from error
    is_server = paths is None  # otherwise this is the sweeper daemon
    redis = open_redis(settings)
    runtime = await build_runtime(settings, transaction_listeners(settings.section(TaskSettings)))
    cipher = await _open_cipher_or_close(runtime, issuer, create_key=is_server)

    async def check_bearer(caller: Caller) -> None:
        if bearer := caller.bearer:
            await runtime.engine.read(lambda tx: sessions.require_bearer(tx, bearer), zones=[bearer.zone_id])

    event_streams = build_event_streams(runtime)
    system_handlers = SystemHandlers(runtime.stores[0], runtime.metrics, issuer.jwks(), __version__, check_bearer)
    terminator, cascades = build_cascades(runtime)
    liveness = build_agent_liveness(runtime)
    task_parts = build_tasks(runtime, cipher)
    coordination_deps = CoordinationDeps(issuer, cipher, task_parts, liveness, url, redis.keys if redis else None)
    # Only servers deliver webhooks and pushes and run the coordinator; the sweeper daemon does not.
    webhook_component, fanout_loop = await build_webhooks(
        runtime, webhook_secret_deriver(issuer), with_delivery=is_server
    )
    components = [
        await build_zones_and_sessions(runtime, cascades, check_bearer),
        build_api_keys(runtime, authenticator),
        build_role_assignments(runtime),
        build_agents(runtime, issuer, launcher_names(runtime), task_parts.heartbeat_port, liveness),
        build_services(runtime, push_secret_deriver(issuer)),
        build_delegations(runtime, terminator, cascades),
        build_invocations(runtime, push_secret_deriver(issuer) if is_server else None),
        task_parts.component,
        build_task_details(runtime, cipher),
        build_coordination(runtime, coordination_deps, runs_coordinator=is_server),
        build_fleets(runtime, issuer, event_streams),
        webhook_component,
        build_event_log(runtime, issuer, event_streams),
        await build_sink_component(runtime, redis, check_bearer, SinkInputs([fanout_loop], liveness.heartbeats)),
        # Components with encrypted columns list them here, so that a key rotation re-encrypts them.
        Component(build_secret_routes(runtime, cipher, [persist.SECRET_COLUMNS], check_bearer)),
        build_server_info(runtime, check_bearer),
        Component(system_routes.routes(system_handlers, None if settings.server.host in LOOPBACK else METRICS)),
    ]
    route_table = [
        route for component in components for route in component.routes if paths is None or route.path in paths
    ]
    dispatcher = Dispatcher(route_table, authenticator, runtime.metrics, request_log, event_streams.open_streams)
    dispatcher.check_agent = build_agent_check(runtime)
    dispatcher.on_drain += [callback for component in components for callback in component.on_drain]
    system_handlers.set_routes(route_table, lambda: dispatcher.is_draining)
    register_metrics(runtime, request_log)
    sweeps = SweepRunner([sweep for component in components for sweep in component.sweeps], runtime.metrics)
    leases = [lease for component in components for lease in component.leases]
    startables = [startable for component in components for startable in component.startables]
    return App(runtime, sweeps, leases, startables, dispatcher, authenticator, event_streams)


async def _open_cipher_or_close(runtime: Runtime, issuer: LocalIssuer, *, create_key: bool) -> FieldCipher:
    try:
        return await open_cipher(runtime, issuer, create_key=create_key)
    except BaseException:
        # A process that fails to start must not leave connections open.
        for store in {*runtime.stores}:
            await store.close()
        raise


def build_server_info(runtime: Runtime, check_bearer: CheckBearer) -> Component:
    handlers = ServerInfoHandlers(runtime.engine, check_bearer, __version__, runtime.stores[0].kind)
    return Component(system_routes.about_routes(handlers))


def build_event_log(runtime: Runtime, issuer: LocalIssuer, event_streams: EventStreams) -> Component:
    settings = runtime.settings.section(LogSettings)
    sealer = LogSealer(runtime.cross_zone_engine, issuer, settings)
    retention = EventRetention(runtime.cross_zone_engine, settings)
    return Component(
        event_routes.routes(EventHandlers(runtime.engine, event_streams)),
        [sealer.sweep(), retention.sweep()],
        [sealer.lease, retention.lease],
    )


async def build_sink_component(
    runtime: Runtime, writers: RedisWriters | None, check_bearer: CheckBearer, inputs: SinkInputs
) -> Component:
    sinks = await build_sinks(runtime, writers, check_bearer, inputs)
    return Component(sinks.routes, sinks.sweeps, sinks.leases, sinks.startables)


def build_event_streams(runtime: Runtime) -> EventStreams:
    """One tailer reads the log of all zones. Replays are confined to the zone of the caller."""
    settings = runtime.settings.section(StreamSettings)
    tailer = EventTailer(
        runtime.cross_zone_engine, runtime.wakeups, event_stream.encode_frame, settings.stream_poll_ms / 1000
    )
    streams = OpenStreams(settings)
    runtime.metrics.add_gauge("quarterdeck_streams_open", "Open event streams", "events", streams.__len__)
    runtime.metrics.add_counter(
        "quarterdeck_streams_fell_behind",
        "Times a stream's client was too slow and had to read from the log again",
        "events",
        lambda: tailer.fell_behind_count,
    )
    return EventStreams(runtime.engine, tailer, streams, settings.stream_keep_alive_ms / 1000)


def register_metrics(runtime: Runtime, request_log: LineWriter | None) -> None:
    """Register the metrics whose values are read at each scrape."""
    for lane in runtime.lanes.lanes:
        runtime.metrics.add_gauge("quarterdeck_lane_waiting", "Commands waiting in a lane", lane.name, lane.__len__)
    if request_log is not None:
        runtime.metrics.add_counter(
            "quarterdeck_log_lines_lost",
            "Log lines that could not be written",
            "stderr",
            lambda: request_log.lost_line_count,
        )
