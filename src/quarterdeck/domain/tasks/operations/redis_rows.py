"""What of tasks and agents is shown to whoever reads Redis: each as its row says, and all of them, in slices."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.bus.redis.key_layout import AgentMark, Holder, Pulse, Ref, TaskMark, score
from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Agent, Shown, State as AgentState
from quarterdeck.domain.agents.rules import shown
from quarterdeck.domain.tasks.model.rows import State, Task, Waits
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.mirrors.keys import Contents, Places
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

RECENT_MS = 2 * SECOND
"""How long it may take until what was committed is told."""
STATES = (State.PENDING, State.ASSIGNED, State.RUNNING)
BEGINNING: Places = ("",) * (len(STATES) + 1)
"""Tasks by state, and agents."""
WORDS = {Shown.WORKING: "running"}
"""How the seed calls it; all others are called as everywhere, in small letters."""
Batch = list[tuple[object, ...]]


class Rows:
    """The source of what is mirrored (`engine.mirror.Source`)."""

    async def marks(self, tx: Tx, tasks: Sequence[Ref], named: Sequence[Ref]) -> tuple[list[TaskMark], list[AgentMark]]:
        """How these stand now. Of what is not there any more: that it is gone."""
        rows, found = await tx.read(Q.tasks_get(batch=[*tasks]), agents.get(named))
        at_work, known = decode(rows, Task), agents.by_ref(found)
        current = await _current(tx, [agent for agent in known.values() if _is_silent_about_work(agent)])
        marks = {(row.zone_id, row.id): task_mark(row, tx.now) for row in at_work}
        return [marks.get(ref) or TaskMark(*ref) for ref in tasks], [
            agent_mark(known[ref], current.get(ref, ""), tx.now) if ref in known else AgentMark(*ref) for ref in named
        ]

    async def zones(self, tx: Tx, after: str, limit: int) -> list[str]:
        return [zone.id for zone in await zones.page(tx, after, limit)]

    async def contents(self, tx: Tx, zone_id: str, places: Places | None, limit: int) -> Contents:
        """What of a zone may have to be shown, from these places on; a place that is None is behind its end."""
        places = BEGINNING if places is None else places
        wanted = [
            LISTS.tasks_in_state(zone_id=zone_id, status=state, after=after, limit=limit)
            for state, after in zip(STATES, places[:-1], strict=True)
            if after is not None
        ]
        answers = iter(await tx.read(*wanted))
        reached: list[str | None] = []
        found: list[Ref] = []
        for after in places[:-1]:
            some = [] if after is None else _ids(next(answers))
            found += [(zone_id, each) for each in some]
            reached.append(_reached(some, limit))
        their = [] if places[-1] is None else await agents.names(tx, zone_id, after=places[-1], limit=limit)
        return Contents(found, [(zone_id, each) for each in their], (*reached, _reached(their, limit)))

    async def recovering(self, tx: Tx, limit: int) -> list[Ref]:
        """Tasks that wait for the end of a backoff, across zones: among the next to whom anything is due."""
        [rows] = await tx.read(LISTS.tasks_recovering(limit=limit))
        return [(str(zone_id), str(task_id)) for zone_id, task_id in rows]


def task_mark(row: Task, now: Millis) -> TaskMark:
    begins = row.status is State.PENDING and row.waits == Waits.NOTHING
    recovers = row.status in (State.FAILED, State.ABORTED) and row.waits == Waits.A_MOMENT and not row.final
    holder = None
    if row.status in HELD and row.agent_id is not None:
        given = row.assigned_at or row.updated_at
        holder = Holder(row.agent_id, row.session_key or "", given, row.started_at or given)
    return TaskMark(
        row.zone_id,
        row.id,
        score(row.priority, row.created_at) if begins else None,
        holder,
        recovers,
        now - row.updated_at < RECENT_MS,
    )


def agent_mark(agent: Agent, current: str, now: Millis) -> AgentMark:
    """`current` is what it works on, if it does not say so itself."""
    if agent.status is AgentState.TERMINATED:
        return AgentMark(*agent.ref, is_recent=now - agent.updated_at < RECENT_MS)
    return AgentMark(
        *agent.ref,
        word(agent),
        (agent.current_task_id or current) if agent.held else "",
        agent.last_seen_at,
        agent.status is AgentState.ERROR,
        now - max(agent.updated_at, agent.last_seen_at) < RECENT_MS,
    )


def pulse_of(agent: Agent) -> Pulse:
    """As it was heard of a moment ago."""
    return Pulse(*agent.ref, word(agent), agent.current_task_id if agent.held else "", agent.last_seen_at)


def word(agent: Agent) -> str:
    is_shown = shown(agent)
    return WORDS.get(is_shown, is_shown.value.lower())


def _is_silent_about_work(agent: Agent) -> bool:
    return agent.held > 0 and agent.current_task_id is None


async def _current(tx: Tx, silent: Sequence[Agent]) -> dict[Ref, str]:
    """The newest of what these hold."""
    batch: Batch = [(*agent.ref, state) for agent in silent for state in (State.ASSIGNED, State.RUNNING)]
    if not batch:
        return {}
    [rows] = await tx.read(LISTS.tasks_newest_held(batch=batch))
    # What runs comes after what is only assigned, and so is what is kept.
    ordered = sorted(rows, key=lambda row: str(row[2]))
    return {(str(row[0]), str(row[1])): str(row[3]) for row in ordered if row[3] is not None}


def _ids(rows: Sequence[Row]) -> list[str]:
    return [str(row[0]) for row in rows]


def _reached(found: Sequence[str], limit: int) -> str | None:
    return found[-1] if len(found) == limit else None
