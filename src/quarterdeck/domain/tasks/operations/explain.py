"""Loads the input of `rules.explain`, and reads the dependency tree of a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import SECOND
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Agent, AgentFilter, State as AgentState
from quarterdeck.domain.costs import operations as costs
from quarterdeck.domain.tasks.model.explain_types import (
    NODES_MAX,
    Candidate,
    ExplainInput,
    Holder,
    Node,
    NodeView,
    TaskExplanation,
    TaskTree,
    UnmetDependency,
)
from quarterdeck.domain.tasks.model.rows import Content, State, Task, TaskRef, WaitsFor
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors, explain as rules
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

READ_PERMISSION = "tasks.read"
DEPENDENCIES_MAX = 50
RANKED_BEFORE_MAX = 1_000
AGENTS_MAX = 1_000
"""Maximum number of agents that one statement reads. If a zone has that many, further statements read the agents with
each required capability."""
EDGES_MAX = 5_000
"""Maximum number of edges read per step, in each direction."""
_task_column_count = len(Task.__struct_fields__)
_decode_names = msgspec.json.Decoder(frozenset[str]).decode


# -- explanation -------------------------------------------------------------------------------------------------


async def explain(tx: Transaction, lookup: TaskLookup) -> TaskExplanation:
    await access.require_permission(tx, lookup.caller, lookup.zone_id, READ_PERMISSION)
    task_rows, *budgets = await tx.read(
        Q.tasks_with_content(batch=[(lookup.zone_id, lookup.id)]), *costs.spent_budget_statements([lookup.zone_id])
    )
    if not task_rows:
        raise errors.task_not_found(lookup.id)
    [task] = decode([task_rows[0][:_task_column_count]], Task)
    [content] = decode([task_rows[0][_task_column_count:]], Content)
    facts = ExplainInput(
        task=task,
        title=content.title,
        last_error=content.last_error,
        required_capabilities=_decode_names(content.required_capabilities),
        now=tx.now,
    )
    if task.status in HELD:
        facts = await _with_holder(tx, facts)
    elif task.status is State.PENDING and task.waits_for == WaitsFor.DEPENDENCIES:
        facts = await _with_dependencies(tx, facts)
    elif task.status is State.PENDING and task.waits_for == WaitsFor.NOTHING:
        spent_budget = costs.LoadedSpentBudgets.from_rows(budgets, tx.now).blocking_budget(task)
        facts = msgspec.structs.replace(facts, spent_budget=spent_budget)
        if spent_budget is None:
            facts = await _with_agents(tx, facts)
    return rules.explain(facts)


async def _with_holder(tx: Transaction, facts: ExplainInput) -> ExplainInput:
    task = facts.task
    agent_ref = (task.zone_id, task.agent_id or "")
    [rows] = await tx.read(agents.load_statement([agent_ref]))
    agent = agents.decode_agents(rows).get(agent_ref)
    if agent is None:
        return facts
    lease_expires_at = agent.last_seen_at + agent.stale_threshold_seconds * SECOND
    return msgspec.structs.replace(facts, holder=Holder(agent.id, agent.last_seen_at, lease_expires_at))


async def _with_dependencies(tx: Transaction, facts: ExplainInput) -> ExplainInput:
    task = facts.task
    [rows] = await tx.read(LISTS.task_dependencies_unmet(zone_id=task.zone_id, task_id=task.id, limit=DEPENDENCIES_MAX))
    return msgspec.structs.replace(facts, dependencies=tuple(decode(rows, UnmetDependency)))


async def _with_agents(tx: Transaction, facts: ExplainInput) -> ExplainInput:
    task = facts.task
    [[[ranked_before]]] = await tx.read(
        LISTS.tasks_count_ranked_before(
            zone_id=task.zone_id, class_id=task.class_id, turn=task.rank, id=task.id, limit=RANKED_BEFORE_MAX
        )
    )
    zone_agents = await agents.list_agents(tx, AgentFilter(zone_id=task.zone_id, limit=AGENTS_MAX))
    if len(zone_agents) == AGENTS_MAX:
        for name in sorted(facts.required_capabilities):
            capability_filter = AgentFilter(zone_id=task.zone_id, limit=AGENTS_MAX, capability=name)
            zone_agents += await agents.list_agents(tx, capability_filter)
    candidates = {agent.id: _to_candidate(agent) for agent in zone_agents}
    return msgspec.structs.replace(facts, ranked_before=int(str(ranked_before)), candidates=tuple(candidates.values()))


def _to_candidate(agent: Agent) -> Candidate:
    accepts_tasks = agent.status in (AgentState.IDLE, AgentState.DEGRADED) and not agent.draining
    return Candidate(agent.id, _decode_names(agent.capabilities), agents.free_slots(agent), accepts_tasks)


# -- dependency tree ---------------------------------------------------------------------------------------------


async def read_tree(tx: Transaction, lookup: TaskLookup, depth: int) -> TaskTree:
    """Read dependencies and dependents step by step, so that the cost is proportional to the result.

    Only paths from or to the task are followed. For example, other dependents of its dependencies are left out.
    """
    await access.require_permission(tx, lookup.caller, lookup.zone_id, READ_PERMISSION)
    walk = _TreeWalk(lookup.zone_id, lookup.id)
    await walk.add_nodes(tx, [lookup.id], 0)
    if not walk.nodes:
        raise errors.task_not_found(lookup.id)
    dependencies, dependents = [lookup.id], [lookup.id]
    for step in range(1, depth + 1):
        dependencies, dependents = await walk.step(tx, dependencies, dependents, step)
        if not dependencies and not dependents:
            break
    else:
        await walk.check_truncated(tx, dependencies, dependents)
    return walk.to_tree()


class _TreeWalk:
    def __init__(self, zone_id: str, root: str) -> None:
        self._zone_id = zone_id
        self._root = root
        self.nodes: dict[str, tuple[Node, int]] = {}
        self._edges: dict[str, set[str]] = {}
        self._is_truncated = False

    async def step(
        self, tx: Transaction, dependencies: Sequence[str], dependents: Sequence[str], depth: int
    ) -> tuple[list[str], list[str]]:
        """Read one step in both directions. Returns (new dependencies, new dependents)."""
        dependency_edges, dependent_edges = await tx.read(
            LISTS.task_edges_to_dependencies(batch=self._refs(dependencies), limit=EDGES_MAX),
            LISTS.task_edges_to_dependents(batch=self._refs(dependents), limit=EDGES_MAX),
        )
        self._is_truncated |= len(dependency_edges) == EDGES_MAX or len(dependent_edges) == EDGES_MAX
        for task_id, depends_on in [*dependency_edges, *dependent_edges]:
            self._edges.setdefault(str(task_id), set()).add(str(depends_on))
        dependencies = await self.add_nodes(tx, dict.fromkeys(str(row[1]) for row in dependency_edges), -depth)
        dependents = await self.add_nodes(tx, dict.fromkeys(str(row[0]) for row in dependent_edges), depth)
        return dependencies, dependents

    async def add_nodes(self, tx: Transaction, task_ids: Iterable[str], depth: int) -> list[str]:
        """Add tasks that are not in the tree yet, up to NODES_MAX in total. Returns the ids of the added tasks."""
        new_ids = [task_id for task_id in task_ids if task_id not in self.nodes]
        capacity = NODES_MAX - len(self.nodes)
        self._is_truncated |= len(new_ids) > capacity
        if not new_ids[:capacity]:
            return []
        [rows] = await tx.read(LISTS.tasks_nodes(batch=self._refs(new_ids[:capacity])))
        for node in decode(rows, Node):
            self.nodes[node.id] = (node, depth)
        return [task_id for task_id in new_ids[:capacity] if task_id in self.nodes]

    async def check_truncated(self, tx: Transaction, dependencies: Sequence[str], dependents: Sequence[str]) -> None:
        """Mark the tree as truncated if there are edges beyond the last step."""
        dependency_edges, dependent_edges = await tx.read(
            LISTS.task_edges_to_dependencies(batch=self._refs(dependencies), limit=1),
            LISTS.task_edges_to_dependents(batch=self._refs(dependents), limit=1),
        )
        self._is_truncated |= bool(dependency_edges or dependent_edges)

    def to_tree(self) -> TaskTree:
        ordered = sorted(self.nodes.values(), key=lambda entry: (abs(entry[1]), entry[1], entry[0].id))
        return TaskTree([self._node_view(node, depth) for node, depth in ordered], self._is_truncated)

    def _node_view(self, node: Node, depth: int) -> NodeView:
        dependencies = sorted(task_id for task_id in self._edges.get(node.id, ()) if task_id in self.nodes)
        return NodeView(
            *(node.id, node.title, node.task_type, node.status, node.progress_percent, bool(node.final)),
            depth=depth,
            depends_on=dependencies,
        )

    def _refs(self, task_ids: Iterable[str]) -> list[TaskRef]:
        return [(self._zone_id, task_id) for task_id in task_ids]
