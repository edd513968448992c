"""Aborts the attempts of agents that ended, restarted or became stale, in the transaction that emits that event."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Abort
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Task
from quarterdeck.domain.tasks.operations import persist
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, Timeouts
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction

REASONS = {"agent.stale": "agent_stale", "agent.terminated": "agent_terminated", "agent.restarted": "lost_by_agent"}
"""Event type → reason of the abort."""


class LostAgentListener:
    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts

    async def on_agents_lost(self, tx: Transaction, events: Sequence[NewEvent]) -> None:
        """Abort the attempts of the agents in these events.

        This is a transaction listener: the transaction has already locked the zones of the agents. An agent that
        terminates after draining holds no tasks, so nothing is aborted.
        """
        events_by_agent = {(event.zone_id, event.subject): event for event in events if event.type in REASONS}
        if not events_by_agent:
            return
        decider = BatchDecider(
            BatchInput(tx.now, self._timeouts, _allow_all, tasks=await load_held_tasks(tx, sorted(events_by_agent)))
        )
        for task in [*decider.batch.tasks.values()]:
            event = events_by_agent[task.zone_id, task.agent_id or ""]
            decider.decide(
                Abort(
                    zone_id=task.zone_id,
                    id=task.id,
                    trace=event.trace,
                    attempt_token=task.attempt_token,
                    reason=REASONS[event.type],
                    jitter=random.random(),
                )
            )
        await persist.persist(tx, decider.batch, [])


async def load_held_tasks(tx: Transaction, agents: Sequence[AgentRef]) -> list[Task]:
    batch = [(*ref, state) for ref in agents for state in (State.ASSIGNED, State.RUNNING)]
    return await tx.fetch(Task, Q.tasks_of_agents(batch=batch))


def _allow_all(command: Command, permission: str) -> Problem | None:
    return None
