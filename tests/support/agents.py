"""Agents for tests: rows and commands with defaults, and a harness with the lanes of agents."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.ids import Ref
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import (
    Agent,
    AgentFilter,
    AgentHealth,
    AgentHistory,
    AgentResult,
    AgentStatus,
    HeartbeatResult,
    IssueToken,
    RecordHeartbeat,
    RefreshStatus,
    Register,
    RegisterBody,
    RegisterResult,
    ShowAgent,
    State,
    Terminate,
)
from quarterdeck.domain.agents.operations import reads
from quarterdeck.domain.agents.rules.registration import update_from_body
from quarterdeck.domain.agents.sweeps import HEARTBEAT_RETENTION, AgentRetention, sweeps
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Transaction
from tests.support.builders import APP, NOW, ZONE, admin
from tests.support.runtime import LAUNCHER_NAMES as LAUNCHER_NAMES, RuntimeHarness
from tests.support.structs import build_struct

AGENT_ID = "a"


def user_caller(role: Role = Role.MEMBER, zone_id: str = ZONE) -> Caller:
    return Caller("user-1", APP, zone_id, frozenset(), role=role)


def agent_caller(agent_id: str = AGENT_ID, zone_id: str = ZONE) -> Caller:
    """A caller with the agent's own token."""
    return Caller(f"agent:{agent_id}", APP, zone_id, frozenset(), agent_id=agent_id)


def agent_row(**fields: object) -> Agent:
    """A row of an agent that is live at NOW."""
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "id": AGENT_ID,
        "name": AGENT_ID,
        "model": None,
        "description": None,
        "capabilities": "[]",
        "max_concurrent_tasks": 1,
        "heartbeat_interval_seconds": 30,
        "stale_threshold_seconds": 180,
        "coordinator_enabled": 1,
        "launcher": None,
        "labels": "{}",
        "pool": None,
        "status": State.IDLE,
        "status_reason": None,
        "draining": 0,
        "look_at": NOW + 180_000,
        "terminated_at": None,
        "created_by": "tester",
        "created_at": NOW - 1_000,
        "updated_at": NOW - 1_000,
        "pulse_status": AgentHealth.HEALTHY,
        "held": 0,
        "current_task_id": None,
        "progress_percent": None,
        "current_step": None,
        "memory_mb": None,
        "cpu_percent": None,
        "last_seen_at": NOW,
        "kept_at": 0,
    }
    return build_struct(Agent, **(defaults | fields))


class AgentHarness:
    """The lanes of agents, on a runtime."""

    def __init__(self, runtime: RuntimeHarness) -> None:
        self.runtime = runtime
        parts = runtime.agents
        self.heartbeat_recorder = parts.heartbeats
        self.register_lane, self.heartbeat_lane, self.refresh_lane = (
            parts.register_lane,
            parts.heartbeat_lane,
            parts.refresh_lane,
        )
        self.terminate_lane, self.token_lane, self.delete_lane = (
            parts.terminate_lane,
            parts.token_lane,
            parts.delete_lane,
        )

    async def register(
        self, agent_id: str = AGENT_ID, caller: Caller | None = None, **fields: object
    ) -> RegisterResult:
        body = build_struct(RegisterBody, **fields)
        identity = _identity(agent_id, caller or admin())
        return await self.register_lane.submit(Register(**identity, update=update_from_body(body), run_id=body.run_id))

    async def heartbeat(
        self, agent_id: str = AGENT_ID, caller: Caller | None = None, **fields: object
    ) -> HeartbeatResult:
        """Record a heartbeat and, like a server, refresh the status if the result requires it."""
        result = await self.heartbeat_lane.submit(
            build_struct(RecordHeartbeat, **_identity(agent_id, caller or admin()), **fields)
        )
        if result.needs_refresh:
            await self.refresh_status(agent_id)
        return result

    async def refresh_status(self, agent_id: str = AGENT_ID) -> Agent:
        return (await self.refresh_lane.submit(RefreshStatus(zone_id=ZONE, agent_id=agent_id))).agent

    async def terminate(
        self, agent_id: str = AGENT_ID, caller: Caller | None = None, *, graceful: bool = False
    ) -> Agent:
        command = Terminate(**_identity(agent_id, caller or admin()), reason="finished", graceful=graceful)
        return (await self.terminate_lane.submit(command)).agent

    async def issue_token(self, agent_id: str = AGENT_ID, caller: Caller | None = None) -> int:
        command = IssueToken(**_identity(agent_id, caller or admin()), ttl_seconds=60)
        return (await self.token_lane.submit(command)).expires_at

    async def read(self, agent_id: str = AGENT_ID, caller: Caller | None = None) -> Agent:
        ref = ShowAgent(**_identity(agent_id, caller or admin()))
        [found] = await self.runtime.engine.read(lambda tx: reads.show_agents(tx, [ref]), zones=[ZONE])
        if not isinstance(found, AgentResult):
            raise found if isinstance(found, Exception) else AssertionError(found)
        return found.agent

    async def read_history(self, agent_id: str = AGENT_ID) -> AgentHistory:
        ref = ShowAgent(**_identity(agent_id, admin()))
        return await self.runtime.engine.read(lambda tx: reads.load_history(tx, ref), zones=[ZONE])

    async def list_ids(self, caller: Caller | None = None, **fields: object) -> list[str]:
        defaults: dict[str, object] = {"zone_id": ZONE, "limit": 500, "caller": caller or admin()}
        filters = build_struct(AgentFilter, **(defaults | fields))
        found = await self.runtime.engine.read(lambda tx: agents.list_agents(tx, filters), zones=[ZONE])
        return [agent.id for agent in found]

    async def adjust_held(self, deltas: dict[Ref, int], seen_agents: Collection[Ref] = ()) -> None:
        """Adjust the counts of held tasks under the zone's lock, as the tasks component does."""

        async def adjust(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, {zone_id for zone_id, _ in deltas}))
            await agents.adjust_held(tx, deltas, seen_agents)

        await self.runtime.engine.transact(adjust, zones=[ZONE])

    def make_silent(self, agent_id: str = AGENT_ID, seconds: int = 3_600) -> None:
        """Backdate an agent's last heartbeat."""
        self.runtime.database.execute(
            "update agent_pulses set last_seen_at = last_seen_at - ?, kept_at = kept_at - ? where agent_id = ?",
            seconds * 1_000,
            seconds * 1_000,
            agent_id,
        )
        self.runtime.database.execute(
            "update agents set look_at = look_at - ? where id = ? and look_at is not null", seconds * 1_000, agent_id
        )

    def sweep_runner(self, retention_ms: int) -> SweepRunner:
        return SweepRunner(sweeps(self.runtime.cross_zone_engine, retention_ms))

    async def delete_past_retention(self, retention_ms: int) -> int:
        """Delete agents that were terminated longer ago than `retention_ms` and that no task names."""
        retention = AgentRetention(
            self.runtime.cross_zone_engine,
            self.delete_lane.submit,
            coordinator_queries.find_agents_named_by_tasks,
            retention_ms,
        )
        return await retention.run_once(0)

    async def event_types(self, subject: str = AGENT_ID) -> list[str]:
        return [event.type for event in await self.runtime.read_log() if event.subject == subject]


class AgentIdentity(TypedDict):
    zone_id: str
    agent_id: str
    caller: Caller


def _identity(agent_id: str, caller: Caller) -> AgentIdentity:
    return AgentIdentity(zone_id=ZONE, agent_id=agent_id, caller=caller)


async def run_agent_workload(runtime: RuntimeHarness) -> None:
    """Run every statement of agents. Stale, draining and launchable agents remain, so that the recorded statements find
    rows when they run again."""
    harness = AgentHarness(runtime)
    for name in ("day-a", "day-b", "day-c"):
        await harness.register(name, capabilities=["x", "y"], launcher="local")
    await harness.register("day-a", capabilities=["y"])
    await harness.heartbeat("day-a", current_task_id="t")
    await harness.heartbeat("day-a", agent_caller("day-a"))
    await harness.adjust_held({(ZONE, "day-a"): 1, (ZONE, "day-b"): 1})
    await harness.terminate("day-b", graceful=True)
    await harness.adjust_held({(ZONE, "day-b"): -1})
    harness.make_silent("day-a")
    await harness.refresh_status("day-a")
    await harness.issue_token("day-c")
    await harness.read("day-a")
    await harness.read_history("day-a")
    await harness.list_ids(capability="y", status=AgentStatus.IDLE, coordinator_enabled=True)
    await harness.list_ids(limit=10, after="day-")
    await runtime.engine.read(lambda tx: agents.count_by_status(tx, ZONE), zones=[ZONE])
    await runtime.engine.read(
        lambda tx: agents.load_ms_until_contact(tx, [(ZONE, "day-a"), (ZONE, "day-b")]), zones=[ZONE]
    )
    await runtime.cross_zone_engine.read(lambda tx: agents.list_due_liveness_checks(tx, 10))
    await runtime.cross_zone_engine.read(agents.ms_until_liveness_check)
    launcher_zones = await runtime.cross_zone_engine.read(lambda tx: agents.list_launch_zones(tx, {"local": ""}, 10))
    await runtime.cross_zone_engine.read(lambda tx: agents.list_launchable(tx, launcher_zones, 10))
    await runtime.cross_zone_engine.read(agents.count_stale)
    await harness.sweep_runner(-60_000).run_now(HEARTBEAT_RETENTION)
    await harness.register("day-gone", capabilities=["x"])
    await harness.terminate("day-gone")
    await harness.delete_past_retention(-60_000)
