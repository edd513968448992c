"""The rooms of the work plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from quarterdeck.core.clock import DAY
from quarterdeck.core.routing import Caller, Role
from quarterdeck.domain.agents import operations as agents, role_routes, routes as agent_routes
from quarterdeck.domain.agents.heartbeat_port import Keep, Reported, Tells, Working
from quarterdeck.domain.agents.model import Look, Standing
from quarterdeck.domain.agents.operations import role_assignments
from quarterdeck.domain.agents.operations.authorization import AsAgent
from quarterdeck.domain.agents.role_routes import MemberDesk
from quarterdeck.domain.agents.routes import AgentDesk, AgentLanes, Mint
from quarterdeck.domain.agents.sweeps import AgentRetention, sweeps as agent_sweeps
from quarterdeck.domain.tasks import detail_routes as task_records, operations as tasks, routes as task_routes
from quarterdeck.domain.tasks.detail_routes import RecordDesk
from quarterdeck.domain.tasks.model import commands as task_commands
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import budgets, coordinator_queries, log_long_poll, logs
from quarterdeck.domain.tasks.routes import TaskDesk
from quarterdeck.domain.tasks.sweeps import TaskRetention
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.engine.secrets import Safe
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.runtime import Keel, Room

HEARTBEATS_GATHER_SECONDS = 0.02
"""A thousand agents are heard of every second by fifty transactions, and not by three hundred."""


def the_members(keel: Keel) -> Room:
    change = keel.lanes.writing("member", role_assignments.change_members)
    return Room(role_routes.routes(MemberDesk(keel.engine, change.submit)))


@dataclass(frozen=True, slots=True)
class TaskWords:
    """What the room of tasks says and hears when an agent is heard of."""

    tells: Callable[[Working], Awaitable[Tells]]
    hears: Callable[[Reported], Awaitable[Keep]]


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


@dataclass(frozen=True, slots=True)
class Tasks:
    """The room of tasks, and what others share of it."""

    room: Room
    lane: Lane[task_commands.Command, task_commands.Outcome]
    words: TaskWords


def the_tasks(keel: Keel, safe: Safe) -> Tasks:
    told = keel.settings.section(TaskSettings)
    waiters, poll_seconds = tasks.waiters(), told.task_claim_poll_ms / 1000
    exchange = tasks.Exchange(tasks.windows_of(told), waiters, poll_seconds)
    lane: Lane[task_commands.Command, task_commands.Outcome] = keel.lanes.writing("task", exchange.run)
    show = keel.lanes.reading("task-show", tasks.show)
    desk = TaskDesk(keel.engine, lane.submit, show.submit, waiters, safe, told)
    waiters.unwanted = desk.release
    keel.metrics.gauge("quarterdeck_claims_waiting", "Claims that wait for work", "tasks", waiters.__len__)
    look = tasks.Look(keel.engine, waiters, poll_seconds)
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    room = Room(
        task_routes.routes(desk),
        [TaskRetention(keel.everywhere, lane.submit, told).sweep(cleaning_ms)],
        runs=[Lookout(keel.wakes, waiters, look, poll_seconds, "task-lookout")],
        on_drain=[waiters.close],
    )
    teller = tasks.Teller(keel.engine, lane.submit, safe)
    return Tasks(room, lane, TaskWords(teller.tells, teller.hears))


def the_records(keel: Keel, safe: Safe) -> Room:
    """What is known of tasks beside themselves: logs, explanations, costs and budgets."""
    poll_seconds = keel.settings.section(TaskSettings).task_claim_poll_ms / 1000
    adder, readers = logs.LineAdder(safe, keel.wakes.committed), log_long_poll.readers()
    desk = RecordDesk(
        keel.engine,
        keel.lanes.writing("task-log", adder.add).submit,
        keel.lanes.writing("budget", budgets.change).submit,
        log_long_poll.Following(keel.engine, readers),
    )
    keel.metrics.gauge(
        "quarterdeck_log_readers_waiting", "Readers that wait for a task's log to grow", "tasks", readers.__len__
    )
    look = log_long_poll.LogLook(keel.engine, readers, poll_seconds)
    return Room(
        task_records.routes(desk),
        runs=[Lookout(keel.wakes, readers, look, poll_seconds, "task-log-lookout")],
        on_drain=[readers.close],
    )
