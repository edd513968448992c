"""An agent that is written with the SDK's worker, as a user would write it; every call that the worker makes about
tasks is written down on its way."""

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
from quarterdeck.sdk.worker_core.signals import run_until_signal
from tests.support.labouring.agent import Post
from tests.support.labouring.labour import Broken, Job, Saved, labour
from tests.support.labouring.ledger import Entry, Ledger

Word = TypeVar("Word", TaskProgress, TaskCompletion, TaskFailure, TaskReturn)
CONCURRENCY = 2


async def work(post: Post, ledger: Ledger) -> None:
    # What could not be told is told again by the worker itself; a client that did so unseen would hide an outcome.
    options = Options(timeout=5.0, patience=0)
    client = Quarterdeck.connect(post.urls[0], post.token, post.zone, options=options)
    client.tasks = Recorded(client.tasks, ledger)
    chance = random.Random(f"{post.seed} {post.client}")
    worker = TaskWorker(
        client,
        post.agent,
        capabilities=["hands"],
        concurrency=CONCURRENCY,
        options=WorkerOptions(
            prefetch=1,
            grace=5.0,
            described={
                "heartbeat_interval_seconds": post.interval_seconds,
                "stale_threshold_seconds": post.threshold_seconds,
            },
        ),
    )

    @worker.task()
    async def do(attempt: Attempt) -> dict[str, object]:
        saved = msgspec.convert(attempt.checkpoint, Saved)
        try:
            return await labour(attempt.input_as(Job), saved, _Bench(attempt), chance)
        except Broken as broken:
            raise Fail(str(broken)) from broken

    await run_until_signal(worker, client)


class _Bench:
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

    async def save(self, percent: int, step: str, saved: Saved) -> None:
        await self._attempt.progress(percent, step, checkpoint=msgspec.to_builtins(saved))


class Recorded(Tasks):
    """The same calls, written down."""

    def __init__(self, tasks: Tasks, ledger: Ledger) -> None:
        super().__init__(tasks._transport, tasks._zone)
        self._ledger = ledger

    async def claim(
        self,
        agent_id: str,
        claim_id: str,
        *,
        most: int = 1,
        wait_seconds: float = 0.0,
        task_types: Sequence[str] | None = None,
    ) -> tuple[TaskLease, ...]:
        entry = self._ledger.begin("task.claim", {"agentId": agent_id, "claimId": claim_id})
        try:
            leases = await super().claim(
                agent_id, claim_id, most=most, wait_seconds=wait_seconds, task_types=task_types
            )
        except Problem as problem:
            self._refused([entry], problem)
            raise
        self._ledger.end(entry, 200, {"tasks": [_lease(lease) for lease in leases]})
        return leases

    async def progress(self, updates: Sequence[TaskProgress]) -> tuple[TaskItem, ...]:
        return await self._each("task.progress", updates, super().progress)

    async def complete(self, completions: Sequence[TaskCompletion]) -> tuple[TaskItem, ...]:
        return await self._each("task.complete", completions, super().complete)

    async def fail(self, failures: Sequence[TaskFailure]) -> tuple[TaskItem, ...]:
        return await self._each("task.fail", failures, super().fail)

    async def release(self, returns: Sequence[TaskReturn]) -> tuple[TaskItem, ...]:
        return await self._each("task.release", returns, super().release)

    async def _each(
        self, op: str, said: Sequence[Word], tell: Callable[[Sequence[Word]], Awaitable[tuple[TaskItem, ...]]]
    ) -> tuple[TaskItem, ...]:
        saves = op == "task.progress"
        entries = [self._ledger.begin(op, _asked(word), before=saves) for word in said]
        try:
            items = await tell(said)
        except Problem as problem:
            self._refused(entries, problem)
            raise
        for entry, item in zip(entries, items, strict=True):
            if item.error is None:
                self._ledger.end(entry, 200, {"id": item.id, "status": item.status})
            else:
                self._ledger.end(entry, item.error.status, {"error": item.error.error})
        return items

    def _refused(self, entries: Sequence[Entry], problem: Problem) -> None:
        status = problem.status if isinstance(problem, Refusal) else None
        for entry in entries:
            self._ledger.end(entry, status, {"error": problem.code})


def _lease(lease: TaskLease) -> dict[str, object]:
    return {
        "id": lease.id,
        "attempt": lease.attempt,
        "attemptToken": lease.attempt_token,
        "checkpointData": lease.checkpoint_data,
    }


def _asked(word: TaskProgress | TaskCompletion | TaskFailure | TaskReturn) -> dict[str, object]:
    asked: dict[str, object] = {"id": word.id, "attemptToken": word.attempt_token}
    if isinstance(word, TaskProgress):
        asked |= {"currentStep": word.current_step, "checkpointData": word.checkpoint_data}
    return asked
