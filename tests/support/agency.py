"""Agents as tests write them: rows and asks with plain defaults, and the room's lanes on a keel."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from quarterdeck.core.caller import Caller, Role
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import (
    Agent,
    AgentAt,
    AgentFilter,
    AgentHealth,
    AgentHistory,
    AgentRef,
    AgentStatus,
    HeartbeatResult,
    IssueToken,
    RecordHeartbeat,
    Ref,
    RefreshStatus,
    Register,
    RegisterBody,
    RegisterResult,
    State,
    Terminate,
)
from quarterdeck.domain.agents.rules import update_from_body
from quarterdeck.domain.agents.sweeps import HEARTBEAT_RETENTION, AgentRetention, sweeps
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Transaction
from tests.support.asking import APP, NOW, ZONE, admin
from tests.support.keel import Keel
from tests.support.making import struct_of

LAUNCHERS = ("gateway", "local")
AGENT = "a"


def person(role: Role = Role.MEMBER, zone_id: str = ZONE) -> Caller:
    return Caller("someone", APP, zone_id, frozenset(), role=role)


def agent_caller(agent_id: str = AGENT, zone_id: str = ZONE) -> Caller:
    """Whoever has an agent's own token."""
    return Caller(f"agent:{agent_id}", APP, zone_id, frozenset(), agent_id=agent_id)


def agent(**stored: object) -> Agent:
    """A row that is alive at NOW."""
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "id": AGENT,
        "name": AGENT,
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
    return struct_of(Agent, **(plain | stored))


class Agency:
    """The agents of zones, on a keel."""

    def __init__(self, keel: Keel) -> None:
        self.keel = keel
        registrar, self.beater = agents.Registrar(LAUNCHERS), agents.HeartbeatRecorder()
        self.registers = keel.lanes.add_write_lane("agent-register", registrar.register)
        self.beats = keel.lanes.add_write_lane("agent-heartbeat", self.beater.record)
        self.looks = keel.lanes.add_write_lane("agent-watch", agents.refresh_status)
        self.ends = keel.lanes.add_write_lane("agent-terminate", agents.terminate_agents)
        self.issues = keel.lanes.add_write_lane("agent-token", agents.issue_tokens)
        self.forgets = keel.lanes.add_write_lane("agent-forget", agents.delete_expired)

    async def register(self, agent_id: str = AGENT, caller: Caller | None = None, **said: object) -> RegisterResult:
        body = struct_of(RegisterBody, **said)
        who = _who(agent_id, caller or admin())
        return await self.registers.submit(Register(**who, update=update_from_body(body), run_id=body.run_id))

    async def beat(self, agent_id: str = AGENT, caller: Caller | None = None, **told: object) -> HeartbeatResult:
        """As a server does it: with the look that follows if it is news."""
        beaten = await self.beats.submit(struct_of(RecordHeartbeat, **_who(agent_id, caller or admin()), **told))
        if beaten.needs_refresh:
            await self.look(agent_id)
        return beaten

    async def look(self, agent_id: str = AGENT) -> Agent:
        return (await self.looks.submit(RefreshStatus(zone_id=ZONE, agent_id=agent_id))).agent

    async def terminate(self, agent_id: str = AGENT, caller: Caller | None = None, *, graceful: bool = False) -> Agent:
        ask = Terminate(**_who(agent_id, caller or admin()), reason="over", graceful=graceful)
        return (await self.ends.submit(ask)).agent

    async def issue(self, agent_id: str = AGENT, caller: Caller | None = None) -> int:
        ask = IssueToken(**_who(agent_id, caller or admin()), ttl_seconds=60)
        return (await self.issues.submit(ask)).expires_at

    async def show(self, agent_id: str = AGENT, caller: Caller | None = None) -> Agent:
        ref = AgentRef(**_who(agent_id, caller or admin()))
        [found] = await self.keel.engine.read(lambda tx: agents.show_agents(tx, [ref]), zones=[ZONE])
        if not isinstance(found, AgentAt):
            raise found if isinstance(found, Exception) else AssertionError(found)
        return found.agent

    async def watch(self, agent_id: str = AGENT) -> AgentHistory:
        ref = AgentRef(**_who(agent_id, admin()))
        return await self.keel.engine.read(lambda tx: agents.load_history(tx, ref), zones=[ZONE])

    async def page(self, caller: Caller | None = None, **wanted: object) -> list[str]:
        plain: dict[str, object] = {"zone_id": ZONE, "limit": 500, "caller": caller or admin()}
        asked = struct_of(AgentFilter, **(plain | wanted))
        found = await self.keel.engine.read(lambda tx: agents.list_agents(tx, asked), zones=[ZONE])
        return [each.id for each in found]

    async def hold(self, deltas: dict[Ref, int], spoke: Collection[Ref] = ()) -> None:
        """As the room of tasks does it: under the zone's lock."""

        async def work(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, {zone_id for zone_id, _ in deltas}))
            await agents.adjust_held(tx, deltas, spoke)

        await self.keel.engine.transact(work, zones=[ZONE])

    def silent(self, agent_id: str = AGENT, seconds: int = 3_600) -> None:
        """Lets an agent not have been heard of for a while."""
        self.keel.side.run(
            "update agent_pulses set last_seen_at = last_seen_at - ?, kept_at = kept_at - ? where agent_id = ?",
            seconds * 1_000,
            seconds * 1_000,
            agent_id,
        )
        self.keel.side.run(
            "update agents set look_at = look_at - ? where id = ? and look_at is not null", seconds * 1_000, agent_id
        )

    def sweeper(self, kept_for: int) -> SweepRunner:
        return SweepRunner(sweeps(self.keel.everywhere, kept_for))

    async def forget(self, kept_for: int) -> int:
        """Removes those that were terminated so long ago, and no task names."""
        retention = AgentRetention(
            self.keel.everywhere, self.forgets.submit, coordinator_queries.agents_named_by_tasks, kept_for
        )
        return await retention.run_once(0)

    async def told(self, subject: str = AGENT) -> list[str]:
        return [each.type for each in await self.keel.log() if each.subject == subject]


class Who(TypedDict):
    zone_id: str
    agent_id: str
    caller: Caller


def _who(agent_id: str, caller: Caller) -> Who:
    return Who(zone_id=ZONE, agent_id=agent_id, caller=caller)


async def a_day_of_agents(keel: Keel) -> None:
    """Everything that is said to the database for agents. Some are left lost, draining and launchable, so that what was
    recorded has something to do when it is run again."""
    agency = Agency(keel)
    for name in ("day-a", "day-b", "day-c"):
        await agency.register(name, capabilities=["x", "y"], launcher="local")
    await agency.register("day-a", capabilities=["y"])
    await agency.beat("day-a", current_task_id="t")
    await agency.beat("day-a", agent_caller("day-a"))
    await agency.hold({(ZONE, "day-a"): 1, (ZONE, "day-b"): 1})
    await agency.terminate("day-b", graceful=True)
    await agency.hold({(ZONE, "day-b"): -1})
    agency.silent("day-a")
    await agency.look("day-a")
    await agency.issue("day-c")
    await agency.show("day-a")
    await agency.watch("day-a")
    await agency.page(capability="y", status=AgentStatus.IDLE, coordinator_enabled=True)
    await agency.page(limit=10, after="day-")
    await keel.engine.read(lambda tx: agents.count_by_status(tx, ZONE), zones=[ZONE])
    await keel.engine.read(
        lambda tx: agents.load_contact_deadlines(tx, [(ZONE, "day-a"), (ZONE, "day-b")]), zones=[ZONE]
    )
    await keel.everywhere.read(lambda tx: agents.list_liveness_due(tx, 10))
    await keel.everywhere.read(agents.next_liveness_due)
    places = await keel.everywhere.read(lambda tx: agents.list_launch_zones(tx, {"local": ""}, 10))
    await keel.everywhere.read(lambda tx: agents.list_launchable(tx, places, 10))
    await keel.everywhere.read(agents.count_stale)
    await agency.sweeper(-60_000).run_now(HEARTBEAT_RETENTION)
    await agency.register("day-gone", capabilities=["x"])
    await agency.terminate("day-gone")
    await agency.forget(-60_000)
