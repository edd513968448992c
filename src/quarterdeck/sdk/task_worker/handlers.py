"""Finds the function for a task type, calls it, and turns its result or exception into an outcome."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

import msgspec
from msgspec import UNSET

from quarterdeck.sdk.errors import Canceled, Fail, Fatal, Release
from quarterdeck.sdk.task_worker.attempt import Attempt, AttemptReporter, Done, ThreadAttempt
from quarterdeck.sdk.work_types import TaskCompletion, TaskFailure, TaskLease, TaskReturn
from quarterdeck.sdk.worker_core.in_flight import HeldAttempt
from quarterdeck.sdk.worker_core.reports import storable_text
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

Function = Callable[..., object]
Outcome = TaskCompletion | TaskFailure | TaskReturn | None
"""None: the attempt was canceled, and there is nothing to report."""
RESULT_MAX_BYTES = 1024 * 1024
_ERROR_MAX_CHARS = 60_000
_TRACE_MAX_CHARS = 200_000


class Handler:
    """The function for one task type."""

    def __init__(self, name: str, function: Function) -> None:
        parameters = [*inspect.signature(function).parameters.values()]
        if len(parameters) != 1 or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"the function for {name} must take exactly one parameter, the attempt")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)

    def create_attempt(self, lease: TaskLease, reporter: AttemptReporter) -> Attempt | ThreadAttempt:
        if self._is_async:
            return Attempt(lease, reporter)
        return ThreadAttempt(lease, reporter, asyncio.get_running_loop())

    async def run(self, attempt: Attempt | ThreadAttempt, threads: DaemonThreadPool) -> Outcome:
        """Run the function and return the outcome. If the asyncio task is cancelled, the CancelledError propagates."""
        lease = attempt.lease
        try:
            if self._is_async:
                # A cast, because `__init__` checked the function. An isinstance check costs as much as the call.
                result = await cast(Awaitable[object], self._function(attempt))
            else:
                result = await threads.call(self._function, attempt)
        except Canceled as canceled:
            return None if attempt.cancelled else build_failure(lease, str(canceled))
        except Release:
            return TaskReturn(lease.id, lease.attempt_token)
        except Fail as fail:
            return TaskFailure(*_attempt_key(lease), _error_text(fail), None, fail.retryable, fail.costs)
        except Fatal as fatal:
            return build_failure(lease, str(fatal), retryable=False)
        except Exception as error:
            # An exception in a function is the outcome of its attempt, not an error in the worker.
            message = f"{type(error).__name__}: {_error_text(error)}"
            trace = storable_text("".join(traceback.format_exception(error)))
            return TaskFailure(*_attempt_key(lease), message, trace[-_TRACE_MAX_CHARS:])
        return build_completion(lease, result)


class HeldTask(HeldAttempt):
    __slots__ = ("attempt", "handler")

    def __init__(self, attempt: Attempt | ThreadAttempt, handler: Handler) -> None:
        super().__init__(attempt.lease.id, attempt.lease.attempt_token)
        self.attempt = attempt
        self.handler = handler

    def cancel(self, reason: str) -> None:
        self.attempt.cancel(reason)


class Handlers:
    def __init__(self) -> None:
        self._by_type: dict[str, Handler] = {}
        self._default: Handler | None = None
        self.capabilities: dict[str, None] = {}

    def add(self, task_type: str | None, function: Function, capabilities: Iterable[str]) -> None:
        if task_type in self._by_type or (task_type is None and self._default is not None):
            raise ValueError(f"a function for {task_type or 'all other types'} is already declared")
        handler = Handler(task_type or "all other types", function)
        if task_type is None:
            self._default = handler
        else:
            self._by_type[task_type] = handler
        self.capabilities.update(dict.fromkeys(capabilities))

    @property
    def task_types(self) -> list[str] | None:
        """The task types to claim. None means all types."""
        return None if self._default is not None else sorted(self._by_type)

    def find(self, task_type: str) -> Handler | None:
        return self._by_type.get(task_type, self._default)


def build_completion(lease: TaskLease, result: object) -> Outcome:
    if result is None:
        return TaskCompletion(lease.id, lease.attempt_token)
    done = result if isinstance(result, Done) else Done(result)
    try:
        encoded = msgspec.json.encode(done.result)
    except (TypeError, ValueError, RecursionError) as error:
        return build_failure(lease, f"the result cannot be encoded as JSON: {error}", retryable=False)
    if len(encoded) > RESULT_MAX_BYTES:
        message = f"the result has {len(encoded)} bytes; the limit is {RESULT_MAX_BYTES}"
        return build_failure(lease, message, retryable=False)
    output = UNSET if done.result is None else msgspec.Raw(encoded)
    return TaskCompletion(lease.id, lease.attempt_token, output, done.summary, done.costs)


def build_failure(lease: TaskLease, error: str, *, retryable: bool = True) -> TaskFailure:
    return TaskFailure(*_attempt_key(lease), storable_text(error)[:_ERROR_MAX_CHARS] or "failed", None, retryable)


def _attempt_key(lease: TaskLease) -> tuple[str, str]:
    return lease.id, lease.attempt_token


def _error_text(error: Exception) -> str:
    return storable_text(str(error))[:_ERROR_MAX_CHARS] or type(error).__name__
