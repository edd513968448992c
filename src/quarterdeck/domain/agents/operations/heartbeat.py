"""Heartbeats. They are many, so they take no zone's lock: of each agent one narrow row is locked and written, and
nothing else unless there is something to keep.

What follows from a heartbeat for how an agent stands (it was lost and is back, it fares worse, it fares better) is not
decided here: that is decided under the zone's lock, and an outcome that `is_news` says that somebody has to look."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Beat, Beaten, Ref, State
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.authorization import Heard, Speakers
from quarterdeck.domain.agents.operations.load import Batch, by_ref, refs_of
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx

Hears = Callable[[Sequence[Agent]], None]


class Beater:
    """An object because others of this process hear of heartbeats: they write no event that a sink could follow."""

    def __init__(self) -> None:
        self.hears: list[Hears] = []
        """Called after the commit, with the agents that were heard of as they are since."""

    async def beat(self, tx: Tx, asks: Sequence[Beat]) -> list[Beaten | Problem | Busy]:
        """Notes that agents were heard of, in order of arrival."""
        refs = refs_of(asks)
        speakers = Speakers(asks)
        _, rows, *said = await tx.read(
            Q.agent_pulses_lock(batch=refs), Q.agents_get(batch=refs), *speakers.statements()
        )
        known, heard = by_ref(rows), speakers.heard(said, tx.now)
        beaten: dict[Ref, Agent] = {}
        kept: Batch = []
        outcomes: list[Beaten | Problem | Busy] = []
        for ask in asks:
            agent = _found(ask, known, heard)
            if isinstance(agent, Problem):
                outcomes.append(agent)
                continue
            if rules.kept(agent, ask, tx.now):
                kept.append(_row(ask, agent, tx.now))
            known[ask.ref] = beaten[ask.ref] = agent = rules.beaten(agent, ask, tx.now)
            outcomes.append(Beaten(agent, rules.is_news(agent, tx.now)))
        persist.pulses(tx, [beaten[ref] for ref in sorted(beaten)])
        if kept:
            tx.write(Q.agent_heartbeats_insert(batch=kept))
        if self.hears and beaten:
            tx.on_commit(lambda: self._told([*beaten.values()]))
        return outcomes

    def _told(self, agents: Sequence[Agent]) -> None:
        for hear in self.hears:
            hear(agents)


def _found(ask: Beat, known: dict[Ref, Agent], heard: Heard) -> Agent | Problem:
    if problem := heard.problem(ask, "agents.beat"):
        return problem
    if problem := rules.acting_problem(ask.caller, heard.role(ask), ask.agent_id):
        return problem
    agent = known.get(ask.ref)
    if agent is None:
        return rules.not_found(ask.agent_id)
    return rules.has_terminated(ask.agent_id) if agent.status is State.TERMINATED else agent


def _row(ask: Beat, agent: Agent, now: Millis) -> tuple[object, ...]:
    return (
        new_id(),
        *ask.ref,
        ask.status,
        ask.current_task_id,
        ask.progress_percent,
        ask.memory_mb,
        ask.cpu_percent,
        now,
        now + rules.expected_within(agent) * SECOND,
        ask.metadata,
    )
