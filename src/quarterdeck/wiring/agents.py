"""Builds the components of agents and of role assignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import DAY
from quarterdeck.domain.agents import operations as agents, role_routes, routes as agent_routes
from quarterdeck.domain.agents.model import Look, Standing
from quarterdeck.domain.agents.operations import role_assignments
from quarterdeck.domain.agents.operations.authorization import AsAgent
from quarterdeck.domain.agents.role_routes import MemberDesk
from quarterdeck.domain.agents.routes import AgentDesk, AgentLanes, Mint
from quarterdeck.domain.agents.sweeps import AgentRetention, sweeps as agent_sweeps
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.runtime import Keel, Room
from quarterdeck.wiring.tasks import TaskWords

HEARTBEATS_GATHER_SECONDS = 0.02
"""A thousand agents are heard of every second by fifty transactions, and not by three hundred."""


def the_members(keel: Keel) -> Room:
    change = keel.lanes.writing("member", role_assignments.change_members)
    return Room(role_routes.routes(MemberDesk(keel.engine, change.submit)))


@dataclass(frozen=True, slots=True)
class AgentWatch:
    """What others share of the room of agents: the coordinator looks after them, and Redis hears of heartbeats."""

    beater: agents.Beater
    look: Lane[Look, Standing]


def agent_watch(keel: Keel) -> AgentWatch:
    return AgentWatch(agents.Beater(), keel.lanes.writing("agent-watch", agents.look))


def agent_check(keel: Keel) -> Callable[[Caller], Awaitable[None]]:
    """For the rooms that know nothing of agents: one statement answers for everybody who waits."""
    lane = keel.lanes.reading("agent-speaks", agents.still_speak)

    async def check(caller: Caller) -> None:
        await lane.submit(AsAgent(caller.zone_id, caller))

    return check


def the_agents(
    keel: Keel, issuer: LocalIssuer, launchers: Collection[str], words: TaskWords, watch: AgentWatch
) -> Room:
    """`launchers` are those that the server's configuration names."""
    lanes = keel.lanes
    scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)

    def mint(said: Mint) -> str:
        grant = Grant(
            zone_id=said.zone_id,
            client_id=said.client_id,
            subject=f"agent:{said.agent_id}",
            scopes=scopes,
            agent_id=said.agent_id,
            role=Role.AGENT,
            attempt=said.attempt,
            agent_since=said.since,
        )
        return issuer.mint(grant, said.ttl_seconds)

    handed_in = AgentLanes(
        lanes.writing("agent-register", agents.Registrar(launchers).register).submit,
        lanes.writing("agent-heartbeat", watch.beater.beat, HEARTBEATS_GATHER_SECONDS).submit,
        watch.look.submit,
        lanes.writing("agent-terminate", agents.terminate).submit,
        lanes.writing("agent-token", agents.issue).submit,
        lanes.reading("agent-show", agents.show).submit,
    )
    desk = AgentDesk(keel.engine, handed_in, mint, words.tells, words.hears)
    return Room(agent_routes.routes(desk), [*agent_sweeps(keel.everywhere), _agent_retention(keel)])


def _agent_retention(keel: Keel) -> Sweep:
    """They go when what they have worked on has gone, from its end to when it is forgotten."""
    told = keel.settings.section(TaskSettings)
    kept_for = round((told.task_archive_days + told.task_retention_days) * DAY)
    forget = keel.lanes.writing("agent-forget", agents.forget)
    retention = AgentRetention(keel.everywhere, forget.submit, coordinator_queries.naming, kept_for)
    return retention.sweep(keel.settings.section(LogSettings).retention_cleanup_interval_ms)
