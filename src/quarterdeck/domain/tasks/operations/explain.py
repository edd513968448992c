"""Why a task is as it is, and what it hangs together with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import SECOND
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Agent, AgentFilter, State as AgentState
from quarterdeck.domain.agents.operations.authorization import require_power
from quarterdeck.domain.tasks.model.explain_types import (
    NODES_MAX,
    Ahead,
    Candidate,
    Facts,
    Holder,
    Node,
    NodeView,
    TaskExplanation,
    TaskTree,
)
from quarterdeck.domain.tasks.model.rows import Content, State, Task, Waits
from quarterdeck.domain.tasks.operations import costs
from quarterdeck.domain.tasks.operations.reads import TaskRef
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors, explain as explaining
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

Batch = list[tuple[object, ...]]
READ = "tasks.read"
AHEAD_MAX = 50
BEFORE_MAX = 1_000
AGENTS_MAX = 1_000
"""Agents that are looked at for one task; where there are more, those with what it requires are looked for by that."""
EDGES_MAX = 5_000
"""Of one step."""
_width = len(Task.__struct_fields__)
_names = msgspec.json.Decoder(frozenset[str]).decode


# -- why ---------------------------------------------------------------------------------------------------------


async def explain(tx: Tx, ref: TaskRef) -> TaskExplanation:
    await require_power(tx, ref.caller, ref.zone_id, READ)
    whole, *budgets = await tx.read(Q.tasks_whole(batch=[(ref.zone_id, ref.id)]), *costs.statements([ref.zone_id]))
    if not whole:
        raise errors.not_found(ref.id)
    [row] = decode([whole[0][:_width]], Task)
    [content] = decode([whole[0][_width:]], Content)
    facts = Facts(
        row=row,
        title=content.title,
        last_error=content.last_error,
        required=_names(content.required_capabilities),
        now=tx.now,
    )
    if row.status in HELD:
        facts = await _with_holder(tx, facts)
    elif row.status is State.PENDING and row.waits == Waits.OTHERS:
        facts = await _with_others(tx, facts)
    elif row.status is State.PENDING and row.waits == Waits.NOTHING:
        spent = costs.Budgets.of(budgets, tx.now).why(row)
        facts = msgspec.structs.replace(facts, spent=spent)
        if spent is None:
            facts = await _with_agents(tx, facts)
    return explaining.explain(facts)


async def _with_holder(tx: Tx, facts: Facts) -> Facts:
    row = facts.row
    who = (row.zone_id, row.agent_id or "")
    [rows] = await tx.read(agents.get([who]))
    agent = agents.by_ref(rows).get(who)
    if agent is None:
        return facts
    ends_at = agent.last_seen_at + agent.stale_threshold_seconds * SECOND
    return msgspec.structs.replace(facts, holder=Holder(agent.id, agent.last_seen_at, ends_at))


async def _with_others(tx: Tx, facts: Facts) -> Facts:
    row = facts.row
    [rows] = await tx.read(LISTS.tasks_waited_for(zone_id=row.zone_id, task_id=row.id, limit=AHEAD_MAX))
    return msgspec.structs.replace(facts, ahead=tuple(decode(rows, Ahead)))


async def _with_agents(tx: Tx, facts: Facts) -> Facts:
    row = facts.row
    [[[before]]] = await tx.read(
        LISTS.tasks_before(zone_id=row.zone_id, class_id=row.class_id, turn=row.turn, id=row.id, limit=BEFORE_MAX)
    )
    found = await agents.page(tx, AgentFilter(zone_id=row.zone_id, limit=AGENTS_MAX))
    if len(found) == AGENTS_MAX:
        for name in sorted(facts.required):
            found += await agents.page(tx, AgentFilter(zone_id=row.zone_id, limit=AGENTS_MAX, capability=name))
    known = {agent.id: _candidate(agent) for agent in found}
    return msgspec.structs.replace(facts, before=int(str(before)), candidates=tuple(known.values()))


def _candidate(agent: Agent) -> Candidate:
    lives = agent.status in (AgentState.IDLE, AgentState.DEGRADED) and not agent.draining
    return Candidate(agent.id, _names(agent.capabilities), agents.free_slots(agent), lives)


# -- with what ---------------------------------------------------------------------------------------------------


async def tree(tx: Tx, ref: TaskRef, depth: int) -> TaskTree:
    """Step by step, either way, so that it costs what it shows. The ways that lead from the task or to it are shown,
    and not those that lead past it."""
    await require_power(tx, ref.caller, ref.zone_id, READ)
    walk = _Walk(ref.zone_id, ref.id)
    await walk.take(tx, [ref.id], 0)
    if not walk.nodes:
        raise errors.not_found(ref.id)
    ahead, behind = [ref.id], [ref.id]
    for step in range(1, depth + 1):
        ahead, behind = await walk.step(tx, ahead, behind, step)
        if not ahead and not behind:
            break
    else:
        await walk.look_beyond(tx, ahead, behind)
    return walk.tree()


class _Walk:
    def __init__(self, zone_id: str, root: str) -> None:
        self._zone_id = zone_id
        self._root = root
        self.nodes: dict[str, tuple[Node, int]] = {}
        self._edges: dict[str, set[str]] = {}
        self._truncated = False

    async def step(
        self, tx: Tx, ahead: Sequence[str], behind: Sequence[str], depth: int
    ) -> tuple[list[str], list[str]]:
        """One farther, both ways at once: what is new in each."""
        forth, back = await tx.read(
            LISTS.tasks_edges_ahead(batch=self._batch(ahead), limit=EDGES_MAX),
            LISTS.tasks_edges_behind(batch=self._batch(behind), limit=EDGES_MAX),
        )
        self._truncated |= len(forth) == EDGES_MAX or len(back) == EDGES_MAX
        for task_id, depends_on in [*forth, *back]:
            self._edges.setdefault(str(task_id), set()).add(str(depends_on))
        ahead = await self.take(tx, dict.fromkeys(str(row[1]) for row in forth), -depth)
        behind = await self.take(tx, dict.fromkeys(str(row[0]) for row in back), depth)
        return ahead, behind

    async def take(self, tx: Tx, names: Iterable[str], depth: int) -> list[str]:
        """Of these, those that are met for the first time, as far as there is room."""
        fresh = [name for name in names if name not in self.nodes]
        room = NODES_MAX - len(self.nodes)
        self._truncated |= len(fresh) > room
        if not fresh[:room]:
            return []
        [rows] = await tx.read(LISTS.tasks_nodes(batch=self._batch(fresh[:room])))
        for node in decode(rows, Node):
            self.nodes[node.id] = (node, depth)
        return [name for name in fresh[:room] if name in self.nodes]

    async def look_beyond(self, tx: Tx, ahead: Sequence[str], behind: Sequence[str]) -> None:
        """Whether anything lies beyond the last step."""
        forth, back = await tx.read(
            LISTS.tasks_edges_ahead(batch=self._batch(ahead), limit=1),
            LISTS.tasks_edges_behind(batch=self._batch(behind), limit=1),
        )
        self._truncated |= bool(forth or back)

    def tree(self) -> TaskTree:
        shown = sorted(self.nodes.values(), key=lambda found: (abs(found[1]), found[1], found[0].id))
        return TaskTree([self._view(node, depth) for node, depth in shown], self._truncated)

    def _view(self, node: Node, depth: int) -> NodeView:
        known = sorted(name for name in self._edges.get(node.id, ()) if name in self.nodes)
        return NodeView(
            *(node.id, node.title, node.task_type, node.status, node.progress_percent, bool(node.final)),
            depth=depth,
            depends_on=known,
        )

    def _batch(self, names: Iterable[str]) -> Batch:
        return [(self._zone_id, name) for name in names]
