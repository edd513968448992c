"""A harness for tasks of a zone: agents, tasks, claims and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents.model import AgentUpdate, Register, Terminate
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import (
    Claim,
    Complete,
    Create,
    Fail,
    MakeAvailable,
    Release,
    TaskUpdate,
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import ClaimedTask, ClaimedTasks, CreatedTask, FullTask, Task
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from tests.support.builders import ZONE, admin
from tests.support.runtime import RuntimeHarness
from tests.support.structs import build_struct
from tests.support.task_rules import create_command


class TaskHarness:
    """The tasks of one zone, on a runtime."""

    def __init__(self, runtime: RuntimeHarness, zone_id: str = ZONE) -> None:
        self.runtime = runtime
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)

    async def register_agent(self, name: str = "a", *capabilities: str, slots: int = 1_000) -> str:
        update = AgentUpdate(capabilities=_encode(capabilities), max_concurrent_tasks=slots)
        await self.runtime.agents.register_lane.submit(
            Register(zone_id=self.zone_id, agent_id=name, caller=self.caller, update=update)
        )
        return name

    async def terminate_agent(self, name: str = "a", *, graceful: bool = False) -> None:
        command = Terminate(zone_id=self.zone_id, agent_id=name, caller=self.caller, graceful=graceful)
        await self.runtime.agents.terminate_lane.submit(command)

    def create_command(self, task_id: str | None = None, **fields: object) -> Create:
        has_id = task_id is not None
        defaults: dict[str, object] = {"zone_id": self.zone_id, "has_requested_id": has_id, "retry_backoff_seconds": 0}
        return create_command(task_id or new_id(), self.caller, **(defaults | fields))

    async def create(self, task_id: str | None = None, **fields: object) -> Task:
        return (await self.submit_create(self.create_command(task_id, **fields))).task

    async def create_many(self, commands: Sequence[Create]) -> list[Task]:
        results = await asyncio.gather(*(self.submit_create(command) for command in commands))
        return [result.task for result in results]

    async def submit_create(self, command: Create) -> CreatedTask:
        result = await self.runtime.submit_task(command)
        assert isinstance(result, CreatedTask)
        return result

    def claim_command(self, agent: str = "a", limit: int = 1, **fields: object) -> Claim:
        tokens = tuple(new_id() for _ in range(limit))
        defaults: dict[str, object] = {"zone_id": self.zone_id, "caller": self.caller, "agent_id": agent}
        return build_struct(Claim, **(defaults | {"limit": limit, "attempt_tokens": tokens} | fields))

    async def claim(self, agent: str = "a", limit: int = 1, **fields: object) -> tuple[ClaimedTask, ...]:
        return await self.submit_claim(self.claim_command(agent, limit, **fields))

    async def submit_claim(self, command: Claim) -> tuple[ClaimedTask, ...]:
        leases = await self.runtime.submit_task(command)
        assert isinstance(leases, ClaimedTasks)
        return leases.items

    async def complete(self, task: Task, token: str | None = None, output: str = '"done"') -> Task:
        command = Complete(
            zone_id=task.zone_id,
            caller=self.caller,
            id=task.id,
            attempt_token=token or task.attempt_token,
            output=output,
            summary=None,
        )
        return await self.submit(command)

    async def fail(self, task: Task, *, retryable: bool = True) -> Task:
        command = Fail(
            zone_id=task.zone_id,
            caller=self.caller,
            id=task.id,
            attempt_token=task.attempt_token,
            error="broken",
            stack_trace=None,
            retryable=retryable,
            jitter=0.0,
        )
        return await self.submit(command)

    async def release(self, task: Task) -> Task:
        return await self.submit(Release(zone_id=task.zone_id, id=task.id, attempt_token=task.attempt_token or ""))

    async def make_available(self, task_id: str) -> Task:
        return await self.submit(MakeAvailable(zone_id=self.zone_id, id=task_id))

    async def unblock_dependents(self, task_id: str) -> Task:
        return await self.submit(UnblockDependents(zone_id=self.zone_id, id=task_id))

    async def submit(self, command: TaskUpdate) -> Task:
        row = await self.runtime.submit_task(command)
        assert isinstance(row, Task)
        return row

    async def read(self, task_id: str) -> FullTask:
        ref = TaskLookup(self.zone_id, task_id)
        [found] = await self.runtime.engine.read(lambda tx: tasks.read_tasks(tx, [ref]), zones=[self.zone_id])
        assert isinstance(found, FullTask), found
        return found

    def read_held(self, agent: str = "a") -> int:
        """The number of tasks that an agent holds, as counted in its heartbeat row."""
        [[number]] = self.runtime.database.execute(
            "select held from agent_pulses where zone_id = ? and agent_id = ?", self.zone_id, agent
        )
        assert isinstance(number, int)
        return number


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()
