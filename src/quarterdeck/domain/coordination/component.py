"""Builds the coordination component: the coordinator's leader loop, the launchers, and the health report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from quarterdeck.bus.redis.key_layout import KeyWriter
from quarterdeck.core import metric_table
from quarterdeck.core.retry import Policy
from quarterdeck.domain.agents.component import Agents
from quarterdeck.domain.agents.model import MintAgentToken
from quarterdeck.domain.coordination.background import redis_signals
from quarterdeck.domain.coordination.background.coordinator import Coordinator, CoordinatorDeps
from quarterdeck.domain.coordination.background.health_checks import CONNECTED, REACHABLE, HealthCheck, HealthReporter
from quarterdeck.domain.coordination.background.launchers.launcher import TaskLauncher
from quarterdeck.domain.coordination.background.launchers.model import LauncherDeps
from quarterdeck.domain.coordination.background.metrics import CoordinatorMetrics
from quarterdeck.domain.coordination.model import LEASE_NAME, CoordinationSettings, HttpLauncherConfig, launcher_configs
from quarterdeck.domain.coordination.routes import CoordinatorHandlers, routes
from quarterdeck.domain.tasks import operations as task_operations
from quarterdeck.domain.tasks.component import Tasks
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient, Request
from quarterdeck.engine.runtime import Component, Runtime, SettingsReader, Startable
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.settings import ServerSettings

RETRY = Policy(max_attempts=0, base_ms=5_000, multiplier=2.0, cap_ms=40_000, jitter_ratio=0.0)
"""A failed cycle is retried after 5, 10, 20 and then always 40 seconds."""
ALARM_SECONDS = 300.0
"""Failing cycles are logged as critical after this time."""
GAP_SECONDS = 0.1
"""Minimum time between two cycles: every commit wakes the coordinator, and most give it nothing to do."""
GATEWAY_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CoordinationDeps:
    """What the coordinator needs from other components and from the process."""

    agents: Agents
    tasks: Tasks
    cipher: FieldCipher
    mint_token: MintAgentToken
    environment: Mapping[str, str]
    """The environment of the server process. A launched process gets parts of it."""
    url: str | None = None
    """The server's URL on its own machine."""
    key_writer: KeyWriter | None = None
    """None without Redis."""


def launcher_names(settings: SettingsReader) -> frozenset[str]:
    return frozenset(launcher_configs(settings.section(CoordinationSettings)))


class Coordination:
    def __init__(self, runtime: Runtime, deps: CoordinationDeps, *, runs_coordinator: bool) -> None:
        """If `runs_coordinator` is false, as in the sweeper daemon, this process coordinates and launches nothing."""
        settings = runtime.settings.section(CoordinationSettings)
        self.metrics = CoordinatorMetrics()
        http_client = OutboundClient(ALLOW_ALL)
        self.launcher = _build_launcher(runtime, deps, http_client)
        self.rank_lane = runtime.lanes.add_write_lane("task-rank", strategies.run_batch)
        coordinator_deps = CoordinatorDeps(
            runtime.cross_zone_engine,
            deps.tasks.submit,
            deps.agents.refresh_lane.submit,
            self.rank_lane.submit,
            runtime.metrics.add_histogram(metric_table.CYCLE_SECONDS),
        )
        self.coordinator = Coordinator(coordinator_deps, self.launcher, settings, self.metrics)
        timing = LoopTiming(
            settings.coordinator_interval_ms, GAP_SECONDS, RETRY, ALARM_SECONDS, wakes_while_failing=True
        )
        leader_loop = LeaderLoop(LEASE_NAME, runtime.cross_zone_engine, runtime.wakeups, timing, self.coordinator)
        health = _build_health(runtime, deps.key_writer, leader_loop, self.metrics, http_client)
        handlers = CoordinatorHandlers(
            runtime.engine,
            runtime.cross_zone_engine,
            self.coordinator,
            health,
            leader_loop.holder,
            self.rank_lane.submit,
            tuple(sorted(launcher_names(runtime.settings))),
        )
        runtime.commit_listeners.append(self.metrics.record_events)
        _register_metrics(runtime, self.metrics, self.launcher, leader_loop)
        # The leader loop stops first, so that no task is assigned after the launcher has stopped.
        startables: list[Startable] = [leader_loop, self.launcher, health] if runs_coordinator else [health]
        if runs_coordinator and deps.key_writer is not None:
            key_publisher = redis_signals.CoordinatorKeyPublisher(
                runtime.cross_zone_engine, deps.key_writer, leader_loop.holder
            )
            startables += [key_publisher, redis_signals.CommandListener(deps.key_writer, runtime.wakeups.notify)]
        self.component = Component(
            routes(handlers), leases=[leader_loop.lease], startables=startables, on_drain=[self.launcher.drain]
        )


def _build_launcher(runtime: Runtime, deps: CoordinationDeps, http_client: OutboundClient) -> TaskLauncher:
    section = runtime.settings.section
    launcher_deps = LauncherDeps(
        runtime.cross_zone_engine,
        runtime.wakeups,
        deps.tasks.submit,
        runtime.lanes.add_read_lane("launch-show", task_operations.read_tasks).submit,
        runtime.lanes.add_write_lane("launch-heartbeat", deps.agents.heartbeats.record).submit,
        deps.cipher,
        deps.mint_token,
        http_client,
        deps.environment,
        deps.url,
    )
    return TaskLauncher(launcher_deps, section(CoordinationSettings), section(ServerSettings).shutdown_grace_ms / 1000)


def _build_health(
    runtime: Runtime,
    key_writer: KeyWriter | None,
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
        None if key_writer is None else HealthCheck(key_writer.ping, CONNECTED),
        HealthCheck(check_gateways, REACHABLE) if gateways else None,
    )


def _register_metrics(
    runtime: Runtime, coordinator_metrics: CoordinatorMetrics, launcher: TaskLauncher, leader_loop: LeaderLoop
) -> None:
    metrics, label = runtime.metrics, "coordinator"
    metrics.add(metric_table.STALE_AGENTS, label, lambda: coordinator_metrics.stale_agents)
    metrics.add(metric_table.TASKS_PENDING, label, lambda: coordinator_metrics.tasks_pending)
    metrics.add(metric_table.TASKS_FAILED, label, lambda: coordinator_metrics.tasks_failed)
    metrics.add(metric_table.RETRIES_EXHAUSTED, label, lambda: coordinator_metrics.retries_exhausted)
    metrics.add(metric_table.AGENTS_SPAWNED, label, lambda: launcher.spawned_count)
    metrics.add(metric_table.LAUNCHES_FAILED, label, lambda: launcher.failed_count)
    metrics.add(metric_table.LAUNCHES, label, launcher.__len__)
    metrics.add(metric_table.COORDINATOR_FAILING, label, lambda: float(leader_loop.error is not None))
