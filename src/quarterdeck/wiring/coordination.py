"""Builds the coordination component: the coordinator's leader loop, the launchers, and the health report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quarterdeck.bus.redis.key_layout import KeyWriter
from quarterdeck.core.caller import Role
from quarterdeck.core.retry import Policy
from quarterdeck.domain.coordination import launchers, redis_signals, routes
from quarterdeck.domain.coordination.coordinator import Coordinator, CoordinatorDeps
from quarterdeck.domain.coordination.health_checks import CONNECTED, REACHABLE, HealthCheck, HealthReporter
from quarterdeck.domain.coordination.launchers import AgentTokenSpec, TaskLauncher
from quarterdeck.domain.coordination.metrics import CoordinatorMetrics
from quarterdeck.domain.coordination.model import LEASE_NAME, CoordinationSettings, HttpLauncherConfig, launcher_configs
from quarterdeck.domain.coordination.routes import CoordinatorHandlers
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient, Request
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.http.metrics import DURATION_BUCKETS, Histogram
from quarterdeck.runtime import Component, Runtime, Startable
from quarterdeck.settings import environment
from quarterdeck.wiring.agents import AgentLiveness
from quarterdeck.wiring.tasks import TaskParts

RETRY = Policy(max_attempts=0, base_ms=5_000, multiplier=2.0, cap_ms=40_000, jitter_ratio=0.0)
"""A failed cycle is retried after 5, 10, 20 and then always 40 seconds."""
ALARM_SECONDS = 300.0
"""Failing cycles are logged as critical after this time."""
GAP_SECONDS = 0.1
"""Minimum time between two cycles: every commit wakes the coordinator, and most give it nothing to do."""
GATEWAY_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CoordinationDeps:
    """What the coordinator needs from other components."""

    issuer: LocalIssuer
    cipher: FieldCipher
    tasks: TaskParts
    liveness: AgentLiveness
    url: str | None
    """The server's URL on its own machine."""
    key_writer: KeyWriter | None = None
    """None without Redis."""


def launcher_names(runtime: Runtime) -> frozenset[str]:
    return frozenset(launcher_configs(runtime.settings.section(CoordinationSettings)))


def build_coordination(runtime: Runtime, deps: CoordinationDeps, *, runs_coordinator: bool) -> Component:
    """If `runs_coordinator` is false, as in the sweeper daemon, this process coordinates and launches nothing."""
    settings = runtime.settings.section(CoordinationSettings)
    coordinator_metrics, cycle_durations = CoordinatorMetrics(), Histogram(DURATION_BUCKETS)
    http_client = OutboundClient(ALLOW_ALL)
    launcher = _build_launcher(runtime, deps, http_client)
    rank = runtime.lanes.add_write_lane("task-rank", strategies.run_batch)
    coordinator_deps = CoordinatorDeps(
        runtime.cross_zone_engine,
        deps.tasks.lane.submit,
        deps.liveness.refresh_status.submit,
        rank.submit,
        cycle_durations.observe,
    )
    coordinator = Coordinator(coordinator_deps, launcher, settings, coordinator_metrics)
    timing = LoopTiming(settings.coordinator_interval_ms, GAP_SECONDS, RETRY, ALARM_SECONDS, wakes_while_failing=True)
    leader_loop = LeaderLoop(LEASE_NAME, runtime.cross_zone_engine, runtime.wakeups, timing, coordinator)
    health = _build_health(runtime, deps, leader_loop, coordinator_metrics, http_client)
    handlers = CoordinatorHandlers(
        runtime.engine,
        runtime.cross_zone_engine,
        coordinator,
        health,
        leader_loop.holder,
        rank.submit,
        tuple(sorted(launcher_names(runtime))),
    )
    runtime.commit_listeners.append(coordinator_metrics.record_events)
    runtime.metrics.add_histogram(
        "coordinator_cycle_duration_seconds", "Duration of a coordinator cycle", cycle_durations
    )
    _register_metrics(runtime, coordinator_metrics, launcher, leader_loop)
    # The leader loop stops first, so that no task is assigned after the launcher has stopped.
    startables: list[Startable] = [leader_loop, launcher, health] if runs_coordinator else [health]
    if runs_coordinator and deps.key_writer is not None:
        key_publisher = redis_signals.CoordinatorKeyPublisher(
            runtime.cross_zone_engine, deps.key_writer, leader_loop.holder
        )
        startables += [key_publisher, redis_signals.CommandListener(deps.key_writer, runtime.wakeups.notify)]
    return Component(
        routes.routes(handlers), leases=[leader_loop.lease], startables=startables, on_drain=[launcher.drain]
    )


def _build_launcher(runtime: Runtime, deps: CoordinationDeps, http_client: OutboundClient) -> TaskLauncher:
    scopes = (runtime.settings.section(AuthSettings).lifecycle_scope,)

    def mint(spec: AgentTokenSpec) -> str:
        grant = Grant(
            zone_id=spec.zone_id,
            client_id="launcher",
            subject=f"agent:{spec.agent_id}",
            scopes=scopes,
            agent_id=spec.agent_id,
            role=Role.AGENT,
            attempt=spec.attempt_token,
            agent_since=spec.agent_registered_at,
        )
        return deps.issuer.mint(grant, spec.ttl_seconds)

    launcher_deps = launchers.LauncherDeps(
        runtime.cross_zone_engine,
        runtime.wakeups,
        deps.tasks.lane.submit,
        runtime.lanes.add_read_lane("launch-show", tasks.read_tasks).submit,
        runtime.lanes.add_write_lane("launch-heartbeat", deps.liveness.heartbeats.record).submit,
        deps.cipher,
        mint,
        http_client,
        environment(),
        deps.url,
    )
    settings = runtime.settings
    return TaskLauncher(launcher_deps, settings.section(CoordinationSettings), settings.server.shutdown_grace_ms / 1000)


def _build_health(
    runtime: Runtime,
    deps: CoordinationDeps,
    leader_loop: LeaderLoop,
    coordinator_metrics: CoordinatorMetrics,
    http_client: OutboundClient,
) -> HealthReporter:
    configured = launcher_configs(runtime.settings.section(CoordinationSettings)).values()
    gateways = [launcher.url for launcher in configured if isinstance(launcher, HttpLauncherConfig)]

    async def check_gateways() -> None:
        """Raise unless every gateway responds. Any status counts, because this request has no credential."""
        async with asyncio.TaskGroup() as group:
            for url in gateways:
                request = Request("GET", url, requester="health")
                group.create_task(http_client.send(request, GATEWAY_TIMEOUT_SECONDS), name="health of a gateway")

    return HealthReporter(
        leader_loop,
        coordinator_metrics,
        HealthCheck(runtime.stores[0].ping, CONNECTED),
        None if deps.key_writer is None else HealthCheck(deps.key_writer.ping, CONNECTED),
        HealthCheck(check_gateways, REACHABLE) if gateways else None,
    )


def _register_metrics(
    runtime: Runtime, coordinator_metrics: CoordinatorMetrics, launcher: TaskLauncher, leader_loop: LeaderLoop
) -> None:
    metrics, label = runtime.metrics, "coordinator"
    metrics.add_gauge(
        "coordinator_stale_agents", "Agents that are stale", label, lambda: coordinator_metrics.stale_agents
    )
    metrics.add_gauge("tasks_pending", "Tasks waiting for an agent", label, lambda: coordinator_metrics.tasks_pending)
    metrics.add_counter(
        "tasks_failed", "Tasks that failed without a further retry", label, lambda: coordinator_metrics.tasks_failed
    )
    metrics.add_counter(
        "tasks_retry_exhausted",
        "Tasks that failed because no retries were left",
        label,
        lambda: coordinator_metrics.retries_exhausted,
    )
    metrics.add_counter("agents_spawned", "Launches that succeeded", label, lambda: launcher.spawned_count)
    metrics.add_counter("quarterdeck_launches_failed", "Launches that failed", label, lambda: launcher.failed_count)
    metrics.add_gauge("quarterdeck_launches", "Launches in progress and running processes", label, launcher.__len__)
    metrics.add_gauge(
        "quarterdeck_coordinator_failing",
        "1 while the coordinator's cycles fail",
        label,
        lambda: float(leader_loop.error is not None),
    )
