"""What an agent that is heard of must know of its tasks, and what it says of the one it works on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.agents.heartbeat_port import Keep, Reported, Tells, Warned, Working
from quarterdeck.domain.agents.operations.authorization import require_power
from quarterdeck.domain.tasks import request_commands
from quarterdeck.domain.tasks.model.commands import Abort, Command, Outcome, Progress
from quarterdeck.domain.tasks.model.rows import State, Task
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.secrets import Safe
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import decode

FORGOTTEN_MS = MINUTE
"""What an agent was given longer ago than this and does not name, it has lost: an answer is not that long under way."""
WARNED_MAX = 100
"""Tasks that one answer warns of."""


@dataclass(frozen=True, slots=True)
class Found:
    named: list[Task]
    held: list[Task]
    warned: list[str]
    now: Millis


class Teller:
    def __init__(self, engine: Engine, submit: Callable[[Command], Awaitable[Outcome]], safe: Safe) -> None:
        self._engine = engine
        self._submit = submit
        self._safe = safe

    # -- what it must know ---------------------------------------------------------------------------------------

    async def tells(self, working: Working) -> Tells:
        """Of what it names: what is no longer its own it must stop. Of all it holds: what is too long under way. What
        it holds and does not name, although it names all it has, it has lost, as one does that was killed and begun
        anew: the attempt is over."""
        found = await self._engine.read(lambda tx: _look(tx, working), zones={working.zone_id, working.caller.zone_id})
        known = {row.id: row for row in found.named}
        mine = {row.id for row in found.named if row.status in HELD and row.agent_id == working.agent_id}
        paused = [name for name in working.task_ids if name in known and known[name].status is State.PAUSED]
        canceled = [name for name in working.task_ids if name not in mine and name not in paused]
        lost = [
            row
            for row in found.held
            if row.id not in working.task_ids and (row.assigned_at or found.now) < found.now - FORGOTTEN_MS
        ]
        await self._give_up(lost)
        gone = {row.id for row in lost}
        warned = [_overdue(task_id) for task_id in found.warned if task_id not in gone]
        return Tells(tuple(canceled), tuple(paused), tuple(warned))

    async def _give_up(self, lost: Sequence[Task]) -> None:
        asked = [
            self._submit(
                Abort(
                    zone_id=row.zone_id,
                    id=row.id,
                    token=row.attempt_token,
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

    # -- what it says --------------------------------------------------------------------------------------------

    async def hears(self, reported: Reported) -> Keep:
        """Looks at what a heartbeat says of its current task before anything is changed, and raises what is wrong with
        it. That the attempt is over is no reason: it is by its heartbeat that the agent hears of it. But whoever shows
        an older token while another attempt has the task is refused, and not heard of by that."""
        word = self._word(reported)
        row = await self._engine.read(
            lambda tx: _current(tx, reported), zones={reported.zone_id, reported.caller.zone_id}
        )
        if row.status in HELD and row.attempt_token != word.token:
            # The lane refuses it, since no older token counts ever again, and notes that two believe to have the task.
            await self._submit(word)

        async def keep() -> Warned | None:
            if row.status not in HELD or row.agent_id != reported.agent_id:
                return _over(errors.stale(row), row.id)
            if word.percent is None and word.step is None and word.checkpoint is None:
                # That the agent is there is no progress of its task.
                return None
            try:
                await self._submit(word)
            except Conflict as problem:
                # Its attempt was not over a moment ago, and the heartbeat counts: the agent is told by its answer.
                if problem.code != "stale_attempt":
                    raise
                return _over(problem, row.id)
            return None

        return keep

    def _word(self, said: Reported) -> Progress:
        return Progress(
            zone_id=said.zone_id,
            caller=said.caller,
            trace=said.trace,
            id=said.task_id,
            token=said.attempt_token or said.caller.attempt,
            percent=said.progress_percent,
            step=said.current_step,
            checkpoint=request_commands.sealed(
                self._safe, said.zone_id, said.task_id, "checkpoint_data", said.checkpoint_data
            ),
        )


async def _look(tx: Tx, working: Working) -> Found:
    """In one trip, which is made again and again by every agent that names what it has."""
    held = (State.ASSIGNED, State.RUNNING) if working.is_all else ()
    run = (State.RUNNING,) if working.holds else ()
    named, all_held, warned = await tx.read(
        Q.tasks_get(batch=[(working.zone_id, name) for name in working.task_ids]),
        Q.tasks_of_agents(batch=[(working.zone_id, working.agent_id, state) for state in held]),
        LISTS.tasks_warned(batch=[(working.zone_id, working.agent_id, state) for state in run]),
    )
    overdue = sorted(str(row[0]) for row in warned)[:WARNED_MAX]
    return Found(decode(named, Task), decode(all_held, Task), overdue, tx.now)


async def _current(tx: Tx, reported: Reported) -> Task:
    """Only for those who may speak of tasks at all: nobody else learns which there are."""
    await require_power(tx, reported.caller, reported.zone_id, "tasks.work")
    [rows] = await tx.read(Q.tasks_get(batch=[(reported.zone_id, reported.task_id)]))
    if not rows:
        raise errors.not_found(reported.task_id)
    [row] = decode(rows, Task)
    return row


def _overdue(task_id: str) -> Warned:
    return Warned("task_overdue", "It is long past its estimate: report progress, or it is aborted.", task_id)


def _over(problem: Conflict, task_id: str) -> Warned:
    return Warned(problem.code, problem.detail, task_id)
