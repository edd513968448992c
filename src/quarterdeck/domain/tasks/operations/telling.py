"""What an agent that is heard of must know of the tasks it names, and what it says of the one it works on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.clock import MINUTE
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.agents.model import Reported, Tells, Warned, Working
from quarterdeck.domain.tasks.model.commands import Abort, Command, Outcome, Progress
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Task
from quarterdeck.domain.tasks.operations.settling import held_by
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.lives import HELD
from quarterdeck.engine.tx import Engine, Tx
from quarterdeck.store.port import decode

FORGOTTEN_MS = MINUTE
"""What an agent was given longer ago than this and does not name, it has lost: an answer is not that long under way."""
TABLE = "agent_tasks"


class Teller:
    def __init__(
        self,
        engine: Engine,
        submit: Callable[[Command], Awaitable[Outcome]],
        seal: Callable[[object, tuple[str, str, str, str]], str],
    ) -> None:
        self._engine = engine
        self._submit = submit
        self._seal = seal

    async def tells(self, working: Working) -> Tells:
        """Of what it names: what is no longer its own it must stop. What it holds and does not name, although it names
        all it has, it has lost, as one does that was killed and begun anew: the attempt is over."""
        named, held, now = await self._engine.read(
            lambda tx: _look(tx, working), zones={working.zone_id, working.caller.zone_id}
        )
        mine = {row.id for row in named if row.status in HELD and row.agent_id == working.agent_id}
        known = {row.id: row for row in named}
        paused = [name for name in working.task_ids if name in known and known[name].status is State.PAUSED]
        canceled = [name for name in working.task_ids if name not in mine and name not in paused]
        lost = [
            row
            for row in held
            if row.id not in working.task_ids and (row.assigned_at or now) < now - FORGOTTEN_MS
        ]
        await self._give_up(lost)
        return Tells(
            tuple(canceled),
            tuple(paused),
            tuple(_warning(row) for row in named if row.id in mine and row.warned_at),
        )

    async def said(self, reported: Reported) -> None:
        about = (reported.zone_id, TABLE, reported.task_id, "checkpoint_data")
        saved = reported.checkpoint_data
        await self._submit(
            Progress(
                zone_id=reported.zone_id,
                caller=reported.caller,
                trace=reported.trace,
                id=reported.task_id,
                token=reported.attempt_token or reported.caller.attempt,
                percent=reported.progress_percent,
                step=reported.current_step,
                checkpoint=None if saved is None else self._seal(saved, about),
            )
        )

    async def _give_up(self, lost: Sequence[Task]) -> None:
        asked = [
            self._submit(
                Abort(
                    zone_id=row.zone_id,
                    id=row.id,
                    attempt=row.attempt,
                    reason="lost_by_agent",
                    chance=random.random(),
                )
            )
            for row in lost
        ]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            # Moved or gone between the two is nobody's loss.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound | Conflict):
                raise outcome


async def _look(tx: Tx, working: Working) -> tuple[list[Task], list[Task], int]:
    who: AgentRef = (working.zone_id, working.agent_id)
    [rows] = await tx.read(Q.tasks_get(batch=[(working.zone_id, name) for name in working.task_ids]))
    held = await held_by(tx, [who]) if working.is_all else []
    return decode(rows, Task), held, tx.now


def _warning(row: Task) -> Warned:
    return Warned("task_overdue", "It is long past its estimate: report progress, or it is aborted.", row.id)
