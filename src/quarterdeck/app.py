"""The composition root: builds a server from its components and lists which component listens to which events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from quarterdeck import __version__
from quarterdeck.client import data_dir
from quarterdeck.core import metric_table
from quarterdeck.core.caller import METRICS, Caller, Role
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.access.component import RoleAssignments
from quarterdeck.domain.agents.component import Agents
from quarterdeck.domain.agents.model import AgentTokenClaims, MintAgentToken
from quarterdeck.domain.agents.rules import AGENT_STATES
from quarterdeck.domain.api_keys import operations as api_keys
from quarterdeck.domain.api_keys.component import ApiKeys
from quarterdeck.domain.coordination.component import Coordination, CoordinationDeps, launcher_names
from quarterdeck.domain.costs.component import Costs
from quarterdeck.domain.delegations import operations as delegations
from quarterdeck.domain.delegations.component import Delegations
from quarterdeck.domain.delegations.rules import DELEGATION_STATES
from quarterdeck.domain.fleets.component import Fleets
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.component import Invocations
from quarterdeck.domain.invocations.rules import INVOCATION_STATES
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.component import Services
from quarterdeck.domain.sessions.component import Sessions
from quarterdeck.domain.sessions.rules import SESSION_STATES
from quarterdeck.domain.task_logs.component import TaskLogs
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.component import Tasks, build_explanations
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import persist
from quarterdeck.domain.tasks.rules.states import TASK_STATES
from quarterdeck.domain.webhooks import operations as webhooks
from quarterdeck.domain.webhooks.component import Webhooks
from quarterdeck.domain.webhooks.rules import DELIVERY_STATES
from quarterdeck.domain.zones.component import Zones
from quarterdeck.engine.event_retention import EventRetention
from quarterdeck.engine.event_tailer import EventTailer
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.log_sealer import LogSealer
from quarterdeck.engine.runtime import Component, Runtime, Startable, build_runtime
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.settings import LogSettings, SettingsError
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import TransactionListener
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.http import event_routes, event_stream, system_routes
from quarterdeck.http.auth import Authenticator, AuthSettings, Grant, LocalIssuer
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.event_routes import EventHandlers
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.secret_component import build_secrets, open_cipher
from quarterdeck.http.sink_component import RedisWriters, SinkInputs, build_sinks, open_redis
from quarterdeck.http.stream_limits import OpenStreams, StreamSettings
from quarterdeck.http.system_routes import CheckBearer, ServerInfoHandlers, SystemHandlers
from quarterdeck.http.timeline_stream import TimelineStreams
from quarterdeck.settings import Settings, environment
from quarterdeck.store.factory import create_wakeup_transport, open_stores
from quarterdeck.store.interface import StoreError

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


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What components get from the process besides the runtime."""

    settings: Settings
    issuer: LocalIssuer
    authenticator: Authenticator
    cipher: FieldCipher
    event_streams: EventStreams
    redis: RedisWriters | None
    is_server: bool
    """Otherwise the process is the sweeper daemon, which delivers, pushes and coordinates nothing."""
    url: str | None
    """The server's URL on its own machine."""


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
    redis, metrics, is_server = open_redis(settings), Metrics(), paths is None
    runtime = build_runtime(
        settings,
        await open_stores(settings.database_url, settings.server.db_pool_max, settings.clock),
        Wakeups(create_wakeup_transport(settings.database_url)),
        metrics,
        transaction_listeners(settings.section(TaskSettings)),
    )
    cipher = await _open_cipher_or_close(runtime, issuer, settings.secret_keys_path, create_key=is_server)
    event_streams = build_event_streams(runtime)
    context = ServerContext(settings, issuer, authenticator, cipher, event_streams, redis, is_server, url)
    components = await build_components(runtime, context)
    system_handlers = SystemHandlers(runtime.stores[0], metrics, issuer.jwks(), __version__, bearer_check(runtime))
    metrics_scope = None if settings.server.host in LOOPBACK else METRICS
    components.append(Component(system_routes.routes(system_handlers, metrics_scope)))
    route_table = [
        route for component in components for route in component.routes if paths is None or route.path in paths
    ]
    dispatcher = Dispatcher(route_table, authenticator, metrics, request_log, event_streams.open_streams)
    dispatcher.on_drain += [callback for component in components for callback in component.on_drain]
    system_handlers.set_routes(route_table, lambda: dispatcher.is_draining)
    register_metrics(runtime, request_log)
    sweeps = SweepRunner([sweep for component in components for sweep in component.sweeps], metrics)
    leases = [lease for component in components for lease in component.leases]
    startables = [startable for component in components for startable in component.startables]
    return App(runtime, sweeps, leases, startables, dispatcher, authenticator, event_streams)


async def build_components(runtime: Runtime, context: ServerContext) -> list[Component]:
    """Build all components, each after those that it uses."""
    issuer, cipher, is_server = context.issuer, context.cipher, context.is_server
    check_bearer = bearer_check(runtime)
    scopes = (runtime.settings.section(AuthSettings).lifecycle_scope,)
    mint_token = agent_token_minter(issuer, scopes)
    push_secrets = secret_deriver(issuer.derive_secret("push secrets"))
    open_timeline = TimelineStreams(context.event_streams).open
    redis_keys = context.redis.keys if context.redis else None

    zone_part = Zones(runtime, access.with_caller_check, check_bearer)
    session_part = Sessions(runtime)
    key_part = ApiKeys(runtime, scopes)
    context.authenticator.set_api_key_lookup(key_part.authenticate_lane.submit)
    agent_part = Agents(runtime, mint_token, launcher_names(runtime.settings))
    task_part = Tasks(runtime, cipher, agent_part)
    coordination_deps = CoordinationDeps(
        agent_part, task_part, cipher, mint_token, environment(), context.url, redis_keys
    )
    webhook_secrets = secret_deriver(issuer.derive_secret("webhook secrets"))
    webhook_part = Webhooks(runtime, webhook_secrets, with_delivery=is_server)
    sink_inputs = SinkInputs([webhook_part.fanout_loop], agent_part.heartbeats)
    await zone_part.create_default_zone()
    await webhook_part.fanout.create_sink()
    return [
        zone_part.component,
        session_part.component,
        key_part.component,
        RoleAssignments(runtime).component,
        agent_part.component,
        Services(runtime, push_secrets, invocations.find_unreferenced_services).component,
        Delegations(runtime, session_part).component,
        Invocations(runtime, push_secrets if is_server else None).component,
        task_part.component,
        TaskLogs(runtime, cipher).component,
        build_explanations(runtime),
        Costs(runtime, tasks.states_statement).component,
        Coordination(runtime, coordination_deps, runs_coordinator=is_server).component,
        Fleets(runtime, mint_token, open_timeline, member_environment(context.settings)).component,
        webhook_part.component,
        build_event_log(runtime, issuer, context.event_streams),
        await build_sinks(runtime, context.redis, check_bearer, sink_inputs),
        # Components with encrypted columns list them here, so that a key rotation re-encrypts them.
        build_secrets(runtime, cipher, [persist.SECRET_COLUMNS], check_bearer),
        build_server_info(runtime, check_bearer),
    ]


def bearer_check(runtime: Runtime) -> CheckBearer:
    """Return the check that the caller's token is still valid, for routes that run no operation of their own."""

    async def check(caller: Caller) -> None:
        if bearer := caller.bearer:
            await runtime.engine.read(lambda tx: access.require_token(tx, bearer), zones=[bearer.zone_id])

    return check


def agent_token_minter(issuer: LocalIssuer, scopes: tuple[str, ...]) -> MintAgentToken:
    """Return the function that issues tokens of agents."""

    def mint(claims: AgentTokenClaims) -> str:
        grant = Grant(
            zone_id=claims.zone_id,
            client_id=claims.client_id,
            subject=f"agent:{claims.agent_id}",
            scopes=scopes,
            agent_id=claims.agent_id,
            role=Role.AGENT,
            attempt=claims.attempt,
            agent_since=claims.registered_at,
        )
        return issuer.mint(grant, claims.ttl_seconds)

    return mint


def member_environment(settings: Settings) -> dict[str, str]:
    """The variable by which a member of a fleet finds the server.

    It names the Unix socket, whose path depends only on the data directory and stays valid when the server restarts.
    """
    return {"QD_URL": f"unix:{data_dir.socket_path(data_dir.DataDir(str(settings.data)), environment())}"}


async def _open_cipher_or_close(
    runtime: Runtime, issuer: LocalIssuer, key_file: Path, *, create_key: bool
) -> FieldCipher:
    try:
        return await open_cipher(runtime, issuer, key_file, create_key=create_key)
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


def build_event_streams(runtime: Runtime) -> EventStreams:
    """One tailer reads the log of all zones. Replays are confined to the zone of the caller."""
    settings = runtime.settings.section(StreamSettings)
    tailer = EventTailer(
        runtime.cross_zone_engine, runtime.wakeups, event_stream.encode_frame, settings.stream_poll_ms / 1000
    )
    streams = OpenStreams(settings)
    runtime.metrics.add(metric_table.STREAMS_OPEN, "events", streams.__len__)
    runtime.metrics.add(metric_table.STREAMS_FELL_BEHIND, "events", lambda: tailer.fell_behind_count)
    return EventStreams(runtime.engine, tailer, streams, settings.stream_keep_alive_ms / 1000)


def register_metrics(runtime: Runtime, request_log: LineWriter | None) -> None:
    """Register the metrics whose values are read at each scrape."""
    for lane in runtime.lanes.lanes:
        runtime.metrics.add(metric_table.LANE_WAITING, lane.name, lane.__len__)
    if request_log is not None:
        runtime.metrics.add(metric_table.LOG_LINES_LOST, "stderr", lambda: request_log.lost_line_count)
