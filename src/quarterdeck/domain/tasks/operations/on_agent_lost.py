"""What the end of an agent, or its silence, means for the tasks it holds: settled in the transaction that says so."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Abort, Ask
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Task
from quarterdeck.domain.tasks.operations import persist
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import Known, Windows
from quarterdeck.domain.tasks.rules.decider import Board
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

REASONS = {"agent.stale": "agent_stale", "agent.terminated": "agent_terminated", "agent.restarted": "lost_by_agent"}


class Settler:
    """An object because it knows how long a backoff may be."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    async def go_with_agent(self, tx: Tx, events: Sequence[NewEvent]) -> None:
        """`within`: whoever says that an agent is gone holds its zone's lock. An agent that ends because its last task
        has holds nothing any more."""
        gone = {(event.zone_id, event.subject): event for event in events if event.type in REASONS}
        if not gone:
            return
        board = Board(Known(tx.now, self._windows, _nobody_is_refused, rows=await held_by(tx, sorted(gone))))
        for row in board.rows(board.refs()):
            event = gone[row.zone_id, row.agent_id or ""]
            board.decide(
                Abort(
                    zone_id=row.zone_id,
                    id=row.id,
                    trace=event.trace,
                    token=row.attempt_token,
                    reason=REASONS[event.type],
                    chance=random.random(),
                )
            )
        await persist.write(tx, board, [])


async def held_by(tx: Tx, agents: Sequence[AgentRef]) -> list[Task]:
    """What these agents hold."""
    batch: list[tuple[object, ...]] = [(*ref, state) for ref in agents for state in (State.ASSIGNED, State.RUNNING)]
    [rows] = await tx.read(Q.tasks_of_agents(batch=batch))
    return decode(rows, Task)


def _nobody_is_refused(ask: Ask, power: str) -> Problem | None:
    return None
