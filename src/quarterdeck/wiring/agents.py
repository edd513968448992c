"""Builds the components for agents and role assignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import DAY
from quarterdeck.domain.agents import operations as agents, role_routes, routes as agent_routes
from quarterdeck.domain.agents.model import AgentResult, RefreshStatus
from quarterdeck.domain.agents.operations import role_assignments
from quarterdeck.domain.agents.operations.authorization import AgentCaller
from quarterdeck.domain.agents.role_routes import RoleHandlers
from quarterdeck.domain.agents.routes import AgentHandlers, AgentLanes, AgentTokenClaims
from quarterdeck.domain.agents.sweeps import AgentRetention, sweeps as agent_sweeps
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.runtime import Component, Runtime
from quarterdeck.wiring.tasks import HeartbeatPort

HEARTBEATS_GATHER_SECONDS = 0.02
"""The lane waits this long to fill a batch: 1,000 heartbeats a second then take 50 transactions instead of 300."""


def build_role_assignments(runtime: Runtime) -> Component:
    change = runtime.lanes.add_write_lane("member", role_assignments.change_roles)
    return Component(role_routes.routes(RoleHandlers(runtime.engine, change.submit)))


@dataclass(frozen=True, slots=True)
class AgentLiveness:
    """Parts that other components share: the coordinator refreshes statuses, the Redis mirror gets heartbeats."""

    heartbeats: agents.HeartbeatRecorder
    refresh_status: Lane[RefreshStatus, AgentResult]


def build_agent_liveness(runtime: Runtime) -> AgentLiveness:
    return AgentLiveness(agents.HeartbeatRecorder(), runtime.lanes.add_write_lane("agent-watch", agents.refresh_status))


def build_agent_check(runtime: Runtime) -> Callable[[Caller], Awaitable[None]]:
    """Build the check of agent tokens, for the routes of components that do not depend on agents.

    One statement checks all waiting callers.
    """
    lane = runtime.lanes.add_read_lane("agent-speaks", agents.check_agent_callers)

    async def check(caller: Caller) -> None:
        await lane.submit(AgentCaller(caller.zone_id, caller))

    return check


def build_agents(
    runtime: Runtime,
    issuer: LocalIssuer,
    launchers: Collection[str],
    heartbeat_port: HeartbeatPort,
    liveness: AgentLiveness,
) -> Component:
    """`launchers` are the names of the configured launchers."""
    lanes = runtime.lanes
    scopes = (runtime.settings.section(AuthSettings).lifecycle_scope,)

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

    agent_lanes = AgentLanes(
        lanes.add_write_lane("agent-register", agents.Registrar(launchers).register).submit,
        lanes.add_write_lane("agent-heartbeat", liveness.heartbeats.record, HEARTBEATS_GATHER_SECONDS).submit,
        liveness.refresh_status.submit,
        lanes.add_write_lane("agent-terminate", agents.terminate_agents).submit,
        lanes.add_write_lane("agent-token", agents.issue_tokens).submit,
        lanes.add_read_lane("agent-show", agents.show_agents).submit,
    )
    handlers = AgentHandlers(
        runtime.engine, agent_lanes, mint, heartbeat_port.load_task_feedback, heartbeat_port.check_progress
    )
    return Component(
        agent_routes.routes(handlers), [*agent_sweeps(runtime.cross_zone_engine), _build_agent_retention(runtime)]
    )


def _build_agent_retention(runtime: Runtime) -> Sweep:
    """A terminated agent is kept as long as its tasks: for their archive days plus their retention days."""
    settings = runtime.settings.section(TaskSettings)
    retention_ms = round((settings.task_archive_days + settings.task_retention_days) * DAY)
    delete_past_retention = runtime.lanes.add_write_lane("agent-forget", agents.delete_past_retention)
    retention = AgentRetention(
        runtime.cross_zone_engine,
        delete_past_retention.submit,
        coordinator_queries.find_agents_named_by_tasks,
        retention_ms,
    )
    return retention.sweep(runtime.settings.section(LogSettings).retention_cleanup_interval_ms)
