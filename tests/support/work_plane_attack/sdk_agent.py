"""An agent that uses the SDK's worker, as a user would write it. Every call of the worker about tasks is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from quarterdeck.sdk import Quarterdeck
from quarterdeck.sdk.errors import Fail, Problem, Refusal
from quarterdeck.sdk.task_worker import Attempt, TaskWorker, WorkerOptions
from quarterdeck.sdk.tasks import Tasks
from quarterdeck.sdk.transport import Options
from quarterdeck.sdk.work_types import TaskCompletion, TaskFailure, TaskItem, TaskLease, TaskProgress, TaskReturn
from quarterdeck.sdk.worker_core.lifecycle import run_until_signal
from tests.support.work_plane_attack.agent_main import AgentConfig
from tests.support.work_plane_attack.history_writer import HistoryWriter, PendingCall
from tests.support.work_plane_attack.task_execution import AttemptFailed, Checkpoint, TaskInput, run_task

Report = TypeVar("Report", TaskProgress, TaskCompletion, TaskFailure, TaskReturn)
CONCURRENCY = 2


async def run_agent(config: AgentConfig, history: HistoryWriter) -> None:
    # The worker retries reports itself. Retries inside the client would hide outcomes from the history.
    options = Options(timeout=5.0, patience=0)
    client = Quarterdeck.connect(config.urls[0], config.token, config.zone, options=options)
    client.tasks = RecordingTasks(client.tasks, history)
    rng = random.Random(f"{config.seed} {config.client}")
    worker = TaskWorker(
        client,
        config.agent,
        capabilities=["build"],
        concurrency=CONCURRENCY,
        options=WorkerOptions(
            prefetch=1,
            grace=5.0,
            described={
                "heartbeat_interval_seconds": config.interval_seconds,
                "stale_threshold_seconds": config.threshold_seconds,
            },
        ),
    )

    @worker.task()
    async def handle(attempt: Attempt) -> dict[str, object]:
        checkpoint = msgspec.convert(attempt.checkpoint, Checkpoint)
        try:
            return await run_task(attempt.input_as(TaskInput), checkpoint, _SdkAttemptContext(attempt), rng)
        except AttemptFailed as error:
            raise Fail(str(error)) from error

    await run_until_signal(worker, client)


class _SdkAttemptContext:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def attempt(self) -> int:
        return self._attempt.attempt

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._attempt.until_cancelled()
        self._attempt.check()

    async def save(self, percent: int, step: str, checkpoint: Checkpoint) -> None:
        await self._attempt.progress(percent, step, checkpoint=msgspec.to_builtins(checkpoint))


class RecordingTasks(Tasks):
    """Records every call."""

    def __init__(self, tasks: Tasks, history: HistoryWriter) -> None:
        super().__init__(tasks._transport, tasks._zone)
        self._history = history

    async def claim(
        self,
        agent_id: str,
        claim_id: str,
        *,
        most: int = 1,
        wait_seconds: float = 0.0,
        task_types: Sequence[str] | None = None,
    ) -> tuple[TaskLease, ...]:
        entry = self._history.begin("task.claim", {"agentId": agent_id, "claimId": claim_id})
        try:
            leases = await super().claim(
                agent_id, claim_id, most=most, wait_seconds=wait_seconds, task_types=task_types
            )
        except Problem as problem:
            self._record_refusal([entry], problem)
            raise
        self._history.end(entry, 200, {"tasks": [_lease_fields(lease) for lease in leases]})
        return leases

    async def progress(self, updates: Sequence[TaskProgress]) -> tuple[TaskItem, ...]:
        return await self._record_each("task.progress", updates, super().progress)

    async def complete(self, completions: Sequence[TaskCompletion]) -> tuple[TaskItem, ...]:
        return await self._record_each("task.complete", completions, super().complete)

    async def fail(self, failures: Sequence[TaskFailure]) -> tuple[TaskItem, ...]:
        return await self._record_each("task.fail", failures, super().fail)

    async def release(self, returns: Sequence[TaskReturn]) -> tuple[TaskItem, ...]:
        return await self._record_each("task.release", returns, super().release)

    async def _record_each(
        self, op: str, reports: Sequence[Report], send: Callable[[Sequence[Report]], Awaitable[tuple[TaskItem, ...]]]
    ) -> tuple[TaskItem, ...]:
        is_progress = op == "task.progress"
        entries = [self._history.begin(op, _report_fields(report), write_ahead=is_progress) for report in reports]
        try:
            items = await send(reports)
        except Problem as problem:
            self._record_refusal(entries, problem)
            raise
        for entry, item in zip(entries, items, strict=True):
            if item.error is None:
                self._history.end(entry, 200, {"id": item.id, "status": item.status})
            else:
                self._history.end(entry, item.error.status, {"error": item.error.error})
        return items

    def _record_refusal(self, entries: Sequence[PendingCall], problem: Problem) -> None:
        status = problem.status if isinstance(problem, Refusal) else None
        for entry in entries:
            self._history.end(entry, status, {"error": problem.code})


def _lease_fields(lease: TaskLease) -> dict[str, object]:
    return {
        "id": lease.id,
        "attempt": lease.attempt,
        "attemptToken": lease.attempt_token,
        "checkpointData": lease.checkpoint_data,
    }


def _report_fields(report: TaskProgress | TaskCompletion | TaskFailure | TaskReturn) -> dict[str, object]:
    fields: dict[str, object] = {"id": report.id, "attemptToken": report.attempt_token}
    if isinstance(report, TaskProgress):
        fields |= {"currentStep": report.current_step, "checkpointData": report.checkpoint_data}
    return fields
