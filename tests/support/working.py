"""Tasks as tests of the rooms write them: agents of a zone, work for them, and what they say of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentUpdate as AgentSaid, Register, Terminate
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import (
    Claim,
    Complete,
    Create,
    Fail,
    MakeAvailable,
    Release,
    TaskCommand,
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import ClaimedTask, ClaimedTasks, CreatedTask, FullTask, Task
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.lanes import Lane
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel
from tests.support.making import struct_of
from tests.support.tasking import create


class Working:
    """The tasks of one zone, on a keel."""

    def __init__(self, keel: Keel, zone_id: str = ZONE) -> None:
        self.keel = keel
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)
        registrar = agents.Registrar(())
        self._registers = keel.lanes.add_write_lane("agent-register", registrar.register)
        self.terminates: Lane[Terminate, object] = keel.lanes.add_write_lane("agent-terminate", agents.terminate_agents)

    async def agent(self, name: str = "a", *capabilities: str, slots: int = 1_000) -> str:
        said = AgentSaid(capabilities=_text(capabilities), max_concurrent_tasks=slots)
        await self._registers.submit(Register(zone_id=self.zone_id, agent_id=name, caller=self.caller, update=said))
        return name

    async def terminate(self, name: str = "a", *, graceful: bool = False) -> None:
        ask = Terminate(zone_id=self.zone_id, agent_id=name, caller=self.caller, graceful=graceful)
        await self.terminates.submit(ask)

    def asking(self, task_id: str | None = None, **asked: object) -> Create:
        named = task_id is not None
        plain: dict[str, object] = {"zone_id": self.zone_id, "has_requested_id": named, "retry_backoff_seconds": 0}
        return create(task_id or new_id(), self.caller, **(plain | asked))

    async def make(self, task_id: str | None = None, **asked: object) -> Task:
        return (await self.creation(self.asking(task_id, **asked))).task

    async def make_many(self, asks: Sequence[Create]) -> list[Task]:
        done = await asyncio.gather(*(self.creation(ask) for ask in asks))
        return [each.task for each in done]

    async def creation(self, ask: Create) -> CreatedTask:
        done = await self.keel.tasks.submit(ask)
        assert isinstance(done, CreatedTask)
        return done

    def claiming(self, agent: str = "a", most: int = 1, **asked: object) -> Claim:
        tokens = tuple(new_id() for _ in range(most))
        plain: dict[str, object] = {"zone_id": self.zone_id, "caller": self.caller, "agent_id": agent}
        return struct_of(Claim, **(plain | {"limit": most, "attempt_tokens": tokens} | asked))

    async def claim(self, agent: str = "a", most: int = 1, **asked: object) -> tuple[ClaimedTask, ...]:
        return await self.submit_claim(self.claiming(agent, most, **asked))

    async def submit_claim(self, ask: Claim) -> tuple[ClaimedTask, ...]:
        leases = await self.keel.tasks.submit(ask)
        assert isinstance(leases, ClaimedTasks)
        return leases.items

    async def complete(self, task: Task, token: str | None = None, output: str = '"done"') -> Task:
        ask = Complete(
            zone_id=task.zone_id,
            caller=self.caller,
            id=task.id,
            attempt_token=token or task.attempt_token,
            output=output,
            summary=None,
        )
        return await self.moved(ask)

    async def fail(self, task: Task, *, retryable: bool = True) -> Task:
        ask = Fail(
            zone_id=task.zone_id,
            caller=self.caller,
            id=task.id,
            attempt_token=task.attempt_token,
            error="broken",
            stack_trace=None,
            retryable=retryable,
            jitter=0.0,
        )
        return await self.moved(ask)

    async def release(self, task: Task) -> Task:
        return await self.moved(Release(zone_id=task.zone_id, id=task.id, attempt_token=task.attempt_token or ""))

    async def due(self, task_id: str) -> Task:
        return await self.moved(MakeAvailable(zone_id=self.zone_id, id=task_id))

    async def spread(self, task_id: str) -> Task:
        return await self.moved(UnblockDependents(zone_id=self.zone_id, id=task_id))

    async def moved(self, ask: TaskCommand) -> Task:
        row = await self.keel.tasks.submit(ask)
        assert isinstance(row, Task)
        return row

    async def show(self, task_id: str) -> FullTask:
        ref = TaskLookup(self.zone_id, task_id)
        [found] = await self.keel.engine.read(lambda tx: tasks.read_tasks(tx, [ref]), zones=[self.zone_id])
        assert isinstance(found, FullTask), found
        return found

    def held(self, agent: str = "a") -> int:
        """As it is counted where agents are heard of."""
        [[number]] = self.keel.side.run(
            "select held from agent_pulses where zone_id = ? and agent_id = ?", self.zone_id, agent
        )
        assert isinstance(number, int)
        return number


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
