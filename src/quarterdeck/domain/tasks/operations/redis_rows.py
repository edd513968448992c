"""Reads tasks and agents for the Redis mirror: by id, and zone by zone in slices."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.bus.redis.key_layout import Heartbeat, MirroredAgent, MirroredTask, TaskHolder, pending_score
from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Agent, AgentStatus, State as AgentState
from quarterdeck.domain.agents.rules import displayed_status
from quarterdeck.domain.tasks.model.rows import State, Task, WaitsFor
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.mirrors.keys import Positions, ZoneContents
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode

RECENT_MS = 2 * SECOND
"""Tasks and agents that changed within this time are marked as recent: a commit may take this long to reach the
mirror."""
MIRRORED_STATES = (State.PENDING, State.ASSIGNED, State.RUNNING)
START_POSITIONS: Positions = ("",) * (len(MIRRORED_STATES) + 1)
"""One position per mirrored task state, and one for agents."""
STATUS_NAMES = {AgentStatus.WORKING: "running"}
"""Redis names of statuses that differ from the lower-case name."""


class TaskMirrorSource:
    """Implements `engine.mirrors.keys.MirrorSource`."""

    async def load_mirrored(
        self, tx: Transaction, task_refs: Sequence[Ref], agent_refs: Sequence[Ref]
    ) -> tuple[list[MirroredTask], list[MirroredAgent]]:
        """Load the current state of these tasks and agents. If one was deleted, only its reference is returned."""
        task_rows, agent_rows = await tx.read(Q.tasks_get(batch=[*task_refs]), agents.load_statement(agent_refs))
        tasks, agents_by_ref = decode(task_rows, Task), agents.decode_agents(agent_rows)
        newest_ids = await _load_newest_held(tx, [agent for agent in agents_by_ref.values() if _reports_no_task(agent)])
        mirrored_tasks = {(task.zone_id, task.id): to_mirrored_task(task, tx.now) for task in tasks}
        return [mirrored_tasks.get(ref) or MirroredTask(*ref) for ref in task_refs], [
            to_mirrored_agent(agents_by_ref[ref], newest_ids.get(ref, ""), tx.now)
            if ref in agents_by_ref
            else MirroredAgent(*ref)
            for ref in agent_refs
        ]

    async def list_zones(self, tx: Transaction, after: str, limit: int) -> list[str]:
        return [zone.id for zone in await zones.list_zones(tx, after, limit)]

    async def list_contents(
        self, tx: Transaction, zone_id: str, positions: Positions | None, limit: int
    ) -> ZoneContents:
        """List a slice of the tasks and agents of a zone, after these positions. A position is None if its list has
        ended."""
        positions = START_POSITIONS if positions is None else positions
        statements = [
            LISTS.tasks_in_state(zone_id=zone_id, status=state, after=after, limit=limit)
            for state, after in zip(MIRRORED_STATES, positions[:-1], strict=True)
            if after is not None
        ]
        results = iter(await tx.read(*statements))
        next_positions: list[str | None] = []
        task_refs: list[Ref] = []
        for after in positions[:-1]:
            ids = [] if after is None else _ids(next(results))
            task_refs += [(zone_id, task_id) for task_id in ids]
            next_positions.append(_next_position(ids, limit))
        agent_ids = (
            [] if positions[-1] is None else await agents.list_agent_ids(tx, zone_id, after=positions[-1], limit=limit)
        )
        return ZoneContents(
            task_refs,
            [(zone_id, agent_id) for agent_id in agent_ids],
            (*next_positions, _next_position(agent_ids, limit)),
        )

    async def list_recovering(self, tx: Transaction, limit: int) -> list[Ref]:
        """List the tasks in backoff, across zones, among the `limit` tasks that become available next."""
        [rows] = await tx.read(LISTS.tasks_in_backoff(limit=limit))
        return [(str(zone_id), str(task_id)) for zone_id, task_id in rows]


def to_mirrored_task(task: Task, now: Millis) -> MirroredTask:
    is_ready = task.status is State.PENDING and task.waits_for == WaitsFor.NOTHING
    awaits_retry = task.status in (State.FAILED, State.ABORTED) and task.waits_for == WaitsFor.TIME and not task.final
    holder = None
    if task.status in HELD and task.agent_id is not None:
        assigned_at = task.assigned_at or task.updated_at
        holder = TaskHolder(task.agent_id, task.session_key or "", assigned_at, task.started_at or assigned_at)
    return MirroredTask(
        task.zone_id,
        task.id,
        pending_score(task.priority, task.created_at) if is_ready else None,
        holder,
        awaits_retry,
        now - task.updated_at < RECENT_MS,
    )


def to_mirrored_agent(agent: Agent, newest_task_id: str, now: Millis) -> MirroredAgent:
    """`newest_task_id` is shown as the current task if the agent does not report one."""
    if agent.status is AgentState.TERMINATED:
        return MirroredAgent(*agent.ref, is_recent=now - agent.updated_at < RECENT_MS)
    return MirroredAgent(
        *agent.ref,
        status_name(agent),
        (agent.current_task_id or newest_task_id) if agent.held else "",
        agent.last_seen_at,
        agent.status is AgentState.ERROR,
        now - max(agent.updated_at, agent.last_seen_at) < RECENT_MS,
    )


def to_heartbeat(agent: Agent) -> Heartbeat:
    return Heartbeat(*agent.ref, status_name(agent), agent.current_task_id if agent.held else "", agent.last_seen_at)


def status_name(agent: Agent) -> str:
    status = displayed_status(agent)
    return STATUS_NAMES.get(status, status.value.lower())


def _reports_no_task(agent: Agent) -> bool:
    return agent.held > 0 and agent.current_task_id is None


async def _load_newest_held(tx: Transaction, agents_without_report: Sequence[Agent]) -> dict[Ref, str]:
    """Load the id of the newest task that each of these agents holds."""
    batch = [(*agent.ref, state) for agent in agents_without_report for state in (State.ASSIGNED, State.RUNNING)]
    if not batch:
        return {}
    [rows] = await tx.read(LISTS.tasks_newest_held(batch=batch))
    # RUNNING sorts after ASSIGNED, so a running task replaces an assigned one.
    ordered = sorted(rows, key=lambda row: str(row[2]))
    return {(str(row[0]), str(row[1])): str(row[3]) for row in ordered if row[3] is not None}


def _ids(rows: Sequence[Row]) -> list[str]:
    return [str(row[0]) for row in rows]


def _next_position(ids: Sequence[str], limit: int) -> str | None:
    return ids[-1] if len(ids) == limit else None
