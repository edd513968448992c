"""Tasks: durable units of work with dependencies, retries, progress and checkpoints; and the bulk calls of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Unpack

import msgspec

from quarterdeck.client.api import Query
from quarterdeck.client.problems import problem_from_document
from quarterdeck.core.ids import new_id
from quarterdeck.sdk.batching import RequestBatcher
from quarterdeck.sdk.errors import Problem, TimedOut
from quarterdeck.sdk.options import NewTask, TaskChanges, TaskFilter, TaskOptions
from quarterdeck.sdk.resource import (
    Resource,
    WorkResource,
    encode_camel_options,
    encode_options,
    ensure_key,
    without_none,
)
from quarterdeck.sdk.transport import ApiCall, Transport
from quarterdeck.sdk.types import Items
from quarterdeck.sdk.wait import EndWaiter
from quarterdeck.sdk.work_types import (
    Level,
    LogLine,
    Task,
    TaskCompletion,
    TaskExplanation,
    TaskFailure,
    TaskItem,
    TaskLease,
    TaskLeases,
    TaskProgress,
    TaskReturn,
    TaskTree,
    WorkPage,
)

END_EVENT_TYPES = ("task.completed", "task.failed", "task.aborted", "task.archived")
"""Events after which a task may have ended."""
UNBATCHED_FIELDS = frozenset({"id", "dependsOn"})
"""A task with one of these fields is not batched: it depends on other tasks, or other tasks may depend on it."""


class Tasks(WorkResource):
    def __init__(self, transport: Transport, zone: str) -> None:
        super().__init__(transport, zone)
        self._create_batcher: RequestBatcher[Task] = RequestBatcher(self._create_batch)
        self._end_waiter: EndWaiter[Task] = EndWaiter(
            transport, Resource(transport, zone)._path("events"), END_EVENT_TYPES
        )

    # -- creation and reads ----------------------------------------------------------------------------------------

    async def create(
        self, title: str, task_type: str, *, key: str | None = None, **options: Unpack[TaskOptions]
    ) -> Task:
        """Create a durable task. Repeated calls with the same `key` create it only once.

        Concurrent calls without a `key` are combined into bulk requests.
        """
        body = {"title": title, "taskType": task_type, **encode_camel_options(TaskOptions, options)}
        if key is None and body.keys().isdisjoint(UNBATCHED_FIELDS):
            return await self._create_batcher.submit(body)
        return await self._create(body, ensure_key(key))

    async def create_many(self, tasks: Sequence[NewTask], *, key: str | None = None) -> tuple[Task | Problem, ...]:
        """Create up to 1,000 tasks in one call. They may name each other's `id` in `depends_on`.

        Returns a task or a problem for each, in the same order.
        """
        bodies = [encode_camel_options(NewTask, task) for task in tasks]
        return tuple(await self._create_all(bodies, ensure_key(key)))

    async def _create(self, body: object, key: str) -> Task:
        return await self._call(ApiCall("POST", self._path("agent-tasks"), body=body, key=key), Task)

    async def _create_batch(self, bodies: Sequence[msgspec.Raw]) -> Sequence[Task | Problem]:
        if len(bodies) == 1:
            return [await self._create(bodies[0], ensure_key(None))]
        return await self._create_all(bodies, ensure_key(None))

    async def _create_all(self, bodies: Sequence[object], key: str) -> list[Task | Problem]:
        call = ApiCall("POST", self._path("agent-tasks"), body={"tasks": bodies}, key=key)
        response = await self._call(call, Items[dict[str, object]])
        return [_decode_task_or_problem(item) for item in response.items]

    async def get(self, task_id: str) -> Task:
        return await self._get(self._path("agent-tasks", task_id), Task)

    def list(self, **filters: Unpack[TaskFilter]) -> AsyncIterator[Task]:
        """Iterate over tasks, newest first."""
        return self._iter_items(self._path("agent-tasks"), _build_query(filters), WorkPage[Task])

    def logs(self, task_id: str, *, level: Level | None = None, event: str | None = None) -> AsyncIterator[LogLine]:
        """Iterate over the task's log: its transitions and the lines that agents wrote, oldest first."""
        query = {"level": level, "event": event, "order": "asc"}
        return self._iter_items(self._path("agent-tasks", task_id, "logs"), query, WorkPage[LogLine])

    async def explain(self, task_id: str) -> TaskExplanation:
        """Explain why the task is in its current state, and what would change that."""
        return await self._get(self._path("agent-tasks", task_id, "explain"), TaskExplanation)

    async def tree(self, task_id: str, *, depth: int | None = None) -> TaskTree:
        """The task's dependencies and dependents, direct and indirect."""
        return await self._call(ApiCall("GET", self._path("agent-tasks", task_id, "tree"), {"depth": depth}), TaskTree)

    async def wait(self, task_ids: Sequence[str], *, timeout: float | None = None) -> tuple[Task, ...]:
        """Wait until all these tasks have ended, however they ended, and return them.

        Raises `TimedOut` if they have not ended within `timeout` seconds; the tasks keep running.
        """
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                waiters = [group.create_task(self._end_waiter.wait(task_id, self.get)) for task_id in task_ids]
        except TimeoutError:
            raise TimedOut("wait_timeout", f"Not all tasks ended within {timeout:g} s.") from None
        except ExceptionGroup as group_error:
            # Callers expect a `Problem`. The task group is an implementation detail.
            raise group_error.exceptions[0] from None
        return tuple(waiter.result() for waiter in waiters)

    # -- changes ---------------------------------------------------------------------------------------------------

    async def patch(self, task_id: str, **changes: Unpack[TaskChanges]) -> Task:
        """Change the given fields. `estimated_completion_at=None` removes the estimate."""
        return await self._patch(task_id, encode_camel_options(TaskChanges, changes, keep_none=True))

    async def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        """Cancel the task. It is not retried. The response to its agent's next heartbeat names it."""
        return await self._post_action(task_id, "cancel", without_none({"reason": reason}))

    async def retry(self, task_id: str) -> Task:
        """Restart a task that failed or was canceled. This call is not retried after a lost response."""
        return await self._call(ApiCall("POST", self._path("agent-tasks", task_id, "retry"), body={}), Task)

    async def pause(self, task_id: str) -> Task:
        """Pause the task: no agent works on it until it is resumed. Its checkpoint is kept."""
        return await self._patch(task_id, {"status": "PAUSED"})

    async def resume(self, task_id: str) -> Task:
        return await self._patch(task_id, {"status": "PENDING"})

    async def archive(self, task_id: str) -> Task:
        """Archive a task that has ended."""
        return await self._post_action(task_id, "archive", {})

    async def _patch(self, task_id: str, body: Mapping[str, object]) -> Task:
        # A retry finds the task with these values and changes nothing, unless another caller changed it in between.
        return await self._change("PATCH", self._path("agent-tasks", task_id), Task, body)

    async def _post_action(self, task_id: str, action: str, body: Mapping[str, object]) -> Task:
        return await self._change("POST", self._path("agent-tasks", task_id, action), Task, body)

    # -- for workers -----------------------------------------------------------------------------------------------

    async def claim(
        self,
        agent_id: str,
        claim_id: str,
        *,
        most: int = 1,
        wait_seconds: float = 0.0,
        task_types: Sequence[str] | None = None,
    ) -> tuple[TaskLease, ...]:
        """Claim up to `most` ready tasks. If there are none, wait up to `wait_seconds` for new ones.

        The same `claim_id` returns the same tasks, so a claim whose response was lost can be repeated.
        """
        fields = {"max": most, "waitMs": int(wait_seconds * 1000), "claimId": claim_id, "taskTypes": task_types}
        path = self._path("agents", agent_id, "claim")
        response = await self._call(
            ApiCall("POST", path, body=without_none(fields), is_idempotent=True, wait_seconds=wait_seconds), TaskLeases
        )
        return tuple(response.tasks)

    async def progress(self, updates: Sequence[TaskProgress]) -> tuple[TaskItem, ...]:
        """Report the progress of up to 1,000 attempts.

        Costs are charged once, even if the SDK retries the call after a lost response. To repeat a report yourself
        without charging its costs twice, give it a `progress_id`.
        """
        return await self._send_items("progress", [_with_progress_id(update) for update in updates])

    async def complete(self, completions: Sequence[TaskCompletion]) -> tuple[TaskItem, ...]:
        """Report the completion of up to 1,000 attempts. A repeated report gets the same reply."""
        return await self._send_items("complete", completions)

    async def fail(self, failures: Sequence[TaskFailure]) -> tuple[TaskItem, ...]:
        """Report the failure of up to 1,000 attempts."""
        return await self._send_items("fail", failures)

    async def release(self, returns: Sequence[TaskReturn]) -> tuple[TaskItem, ...]:
        """Give back up to 1,000 tasks. Their attempts do not count."""
        return await self._send_items("release", returns)

    async def say(
        self, task_id: str, lines: Sequence[Mapping[str, object]], *, attempt_token: str | None = None
    ) -> None:
        """Add up to 100 lines to a task's log. Not retried after a lost response.

        A line has the fields `message`, `level`, `event`, `details` and `stackTrace`.
        """
        body = without_none({"lines": lines, "attemptToken": attempt_token})
        await self._send(ApiCall("POST", self._path("agent-tasks", task_id, "logs"), body=body))

    async def _send_items(
        self,
        action: str,
        items: Sequence[TaskProgress] | Sequence[TaskCompletion] | Sequence[TaskFailure] | Sequence[TaskReturn],
    ) -> tuple[TaskItem, ...]:
        path = self._path("agent-tasks", action)
        return tuple((await self._change("POST", path, Items[TaskItem], {"items": items})).items)


def _decode_task_or_problem(item: dict[str, object]) -> Task | Problem:
    if "error" in item and "taskType" not in item:
        status = item.get("status")
        return problem_from_document(status if isinstance(status, int) else 400, item)
    return msgspec.convert(item, Task)


def _with_progress_id(update: TaskProgress) -> TaskProgress:
    if update.progress_id is not None or not update.costs:
        return update
    return msgspec.structs.replace(update, progress_id=new_id())


def _build_query(filters: TaskFilter) -> Query:
    options = encode_options(TaskFilter, filters)
    created_after = options.get("created_after")
    query: dict[str, str | int | bool | None] = {
        # The query `priority>=8` is the parameter `priority>` with the value 8.
        "priority>": filters.get("min_priority"),
        "priority": filters.get("priority"),
        "status": filters.get("status"),
        "tags": ",".join(filters.get("tags", ())) or None,
        "taskType": filters.get("task_type"),
        "agentId": filters.get("agent_id"),
        "createdAfter": created_after.isoformat() if isinstance(created_after, datetime) else None,
    }
    return query
