"""Written by `make sdk` from `sdk/tasks.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from quarterdeck.sdk import tasks
from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import NewTask, TaskChanges, TaskFilter, TaskOptions
from quarterdeck.sdk.work_types import (
    Level,
    LogLine,
    Task,
    TaskCompletion,
    TaskExplanation,
    TaskFailure,
    TaskItem,
    TaskLease,
    TaskProgress,
    TaskReturn,
    TaskTree,
)


class Tasks:
    def __init__(self, inner: tasks.Tasks, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def create(self, title: str, task_type: str, *, key: str | None = None, **options: Unpack[TaskOptions]) -> Task:
        """Makes a task: durably, and once for each `key`. Those that several ask for at once go together."""
        return self._loop_thread.run(self._inner.create(title, task_type, key=key, **options))

    def create_many(self, tasks: Sequence[NewTask], *, key: str | None = None) -> tuple[Task | Problem, ...]:
        """Makes up to 1,000 at once, which may depend on each other by the ids they are given. One outcome for each, in
        order: a task, or why it was refused."""
        return self._loop_thread.run(self._inner.create_many(tasks, key=key))

    def get(self, task_id: str) -> Task:
        return self._loop_thread.run(self._inner.get(task_id))

    def list(self, **filters: Unpack[TaskFilter]) -> Iterator[Task]:
        """Newest first."""
        return self._loop_thread.iterate(self._inner.list(**filters))

    def logs(self, task_id: str, *, level: Level | None = None, event: str | None = None) -> Iterator[LogLine]:
        """What happened to it and what its agents said, oldest first."""
        return self._loop_thread.iterate(self._inner.logs(task_id, level=level, event=event))

    def explain(self, task_id: str) -> TaskExplanation:
        """Why it is as it is, and what would move it."""
        return self._loop_thread.run(self._inner.explain(task_id))

    def tree(self, task_id: str, *, depth: int | None = None) -> TaskTree:
        """What it depends on and what depends on it, directly or not."""
        return self._loop_thread.run(self._inner.tree(task_id, depth=depth))

    def wait(self, task_ids: Sequence[str], *, timeout: float | None = None) -> tuple[Task, ...]:
        """These tasks, once all of them are over, however they ended. If they are not within `timeout` seconds,
        `TimedOut` is raised, and they go on."""
        return self._loop_thread.run(self._inner.wait(task_ids, timeout=timeout))

    def patch(self, task_id: str, **changes: Unpack[TaskChanges]) -> Task:
        """Changes what is named. `estimated_completion_at=None` takes an estimate away."""
        return self._loop_thread.run(self._inner.patch(task_id, **changes))

    def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        """Ends it for good. Whoever works on it is told with its next heartbeat."""
        return self._loop_thread.run(self._inner.cancel(task_id, reason=reason))

    def retry(self, task_id: str) -> Task:
        """Begins a task anew that has failed or was canceled. Not repeated after a lost answer."""
        return self._loop_thread.run(self._inner.retry(task_id))

    def pause(self, task_id: str) -> Task:
        """Nobody works on it until it is resumed; its checkpoint stays."""
        return self._loop_thread.run(self._inner.pause(task_id))

    def resume(self, task_id: str) -> Task:
        return self._loop_thread.run(self._inner.resume(task_id))

    def archive(self, task_id: str) -> Task:
        """Puts away a task that is over."""
        return self._loop_thread.run(self._inner.archive(task_id))

    def claim(
        self,
        agent_id: str,
        claim_id: str,
        *,
        most: int = 1,
        wait_seconds: float = 0.0,
        task_types: Sequence[str] | None = None,
    ) -> tuple[TaskLease, ...]:
        """Tasks that wait, or come within the time. The same `claim_id` gives the same tasks again, so a claim whose
        answer was lost is made once more with its own."""
        return self._loop_thread.run(
            self._inner.claim(agent_id, claim_id, most=most, wait_seconds=wait_seconds, task_types=task_types)
        )

    def progress(self, updates: Sequence[TaskProgress]) -> tuple[TaskItem, ...]:
        """How far attempts are, up to 1,000 at once. What they cost is charged once, also if an answer is lost and this
        is repeated; and if it is called again, where they have a `progress_id` of their own."""
        return self._loop_thread.run(self._inner.progress(updates))

    def complete(self, completions: Sequence[TaskCompletion]) -> tuple[TaskItem, ...]:
        """Attempts that have done their tasks, up to 1,000 at once. What is said twice is answered twice."""
        return self._loop_thread.run(self._inner.complete(completions))

    def fail(self, failures: Sequence[TaskFailure]) -> tuple[TaskItem, ...]:
        """Attempts that have failed, up to 1,000 at once."""
        return self._loop_thread.run(self._inner.fail(failures))

    def release(self, returns: Sequence[TaskReturn]) -> tuple[TaskItem, ...]:
        """Gives tasks back, up to 1,000 at once: their attempts do not count."""
        return self._loop_thread.run(self._inner.release(returns))

    def say(self, task_id: str, lines: Sequence[Mapping[str, object]], *, attempt_token: str | None = None) -> None:
        """Adds up to 100 lines to a task's log: `message`, `level`, `event`, `details`, `stackTrace`. Not repeated
        after a lost answer."""
        self._loop_thread.run(self._inner.say(task_id, lines, attempt_token=attempt_token))
