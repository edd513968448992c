"""The object that a task's function gets for one attempt.

The task's JSON fields are decoded when they are read, and `asyncio` and thread events are created when the function
waits for a cancellation. An attempt that uses neither has little overhead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from quarterdeck.core.ids import new_id
from quarterdeck.sdk.errors import Canceled
from quarterdeck.sdk.work_types import Cost, Level, TaskLease, TaskProgress

T = TypeVar("T")


class AttemptReporter(Protocol):
    """Sends progress and log lines of an attempt."""

    async def progress(self, update: TaskProgress) -> None: ...

    async def log(self, lease: TaskLease, line: Mapping[str, object]) -> None: ...


class Done:
    """A result with costs and a human-readable summary. A function may return it instead of a plain result."""

    def __init__(self, result: object = None, *, summary: str | None = None, costs: Sequence[Cost] = ()) -> None:
        self.result = result
        self.summary = summary
        self.costs = costs


class _Attempt:
    __slots__ = ("_cancel_event", "_cancel_reason", "_input", "_reporter", "_thread_cancel_event", "lease")

    def __init__(self, lease: TaskLease, reporter: AttemptReporter) -> None:
        self.lease = lease
        self._reporter = reporter
        self._input: dict[str, object] | None = None
        self._cancel_reason: str | None = None
        self._cancel_event: asyncio.Event | None = None
        self._thread_cancel_event: threading.Event | None = None

    @property
    def id(self) -> str:
        return self.lease.id

    @property
    def title(self) -> str:
        return self.lease.title

    @property
    def task_type(self) -> str:
        return self.lease.task_type

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.lease.attempt

    @property
    def input(self) -> dict[str, object]:
        """The task's `inputContext`, with decrypted secrets."""
        if self._input is None:
            self._input = msgspec.json.decode(self.lease.input_context, type=dict[str, object])
        return self._input

    def input_as(self, kind: type[T]) -> T:
        """The input, converted to this type. Raises `msgspec.ValidationError` if it does not match."""
        return msgspec.json.decode(self.lease.input_context, type=kind)

    @property
    def checkpoint(self) -> dict[str, object]:
        """The last checkpoint of an earlier attempt. Empty if there is none."""
        return msgspec.json.decode(self.lease.checkpoint_data, type=dict[str, object])

    @property
    def metadata(self) -> dict[str, object]:
        return msgspec.json.decode(self.lease.metadata, type=dict[str, object])

    @property
    def tags(self) -> list[str]:
        return msgspec.json.decode(self.lease.tags, type=list[str])

    # -- cancellation ----------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was canceled.

        A long function should check this from time to time and raise `Canceled` to stop. A function that does not
        check runs to completion, and its result is ignored.
        """
        return self._cancel_reason is not None

    @property
    def why_cancelled(self) -> str | None:
        """`canceled`, `paused` or `stopping` (the worker is stopping). None if this attempt was not canceled."""
        return self._cancel_reason

    def check(self) -> None:
        """Raise `Canceled` if this attempt was canceled."""
        if self._cancel_reason is not None:
            raise Canceled(f"this attempt was canceled: {self._cancel_reason}")

    def cancel(self, reason: str) -> None:
        """Mark the attempt as canceled. The worker calls this on its event loop."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if self._thread_cancel_event is not None:
            self._thread_cancel_event.set()

    def _build_progress(
        self, percent: int | None, step: str | None, checkpoint: Mapping[str, object] | None, costs: Sequence[Cost]
    ) -> TaskProgress:
        return TaskProgress(
            id=self.lease.id,
            attempt_token=self.lease.attempt_token,
            progress_percent=percent,
            current_step=step,
            checkpoint_data=None if checkpoint is None else msgspec.Raw(msgspec.json.encode(checkpoint)),
            costs=costs,
            progress_id=new_id() if costs else None,
        )


class Attempt(_Attempt):
    """The attempt that a coroutine function gets."""

    __slots__ = ()

    async def progress(
        self,
        percent: int | None = None,
        step: str | None = None,
        *,
        checkpoint: Mapping[str, object] | None = None,
        costs: Sequence[Cost] = (),
    ) -> None:
        """Report progress, and return when the server has stored it. The next attempt gets the last `checkpoint`.

        Raises `Canceled` if this attempt no longer counts.
        """
        await self._reporter.progress(self._build_progress(percent, step, checkpoint, costs))

    async def log(self, level: Level, message: str, **details: object) -> None:
        """Add a line to the task's log."""
        await self._reporter.log(self.lease, {"level": level, "message": message, "details": details})

    async def until_cancelled(self) -> None:
        """Wait until this attempt is canceled."""
        if self._cancel_event is None:
            self._cancel_event = asyncio.Event()
        if self._cancel_reason is None:
            await self._cancel_event.wait()


class ThreadAttempt(_Attempt):
    """The attempt that a plain function gets. It has the calls of `Attempt`, but they block the function's thread."""

    __slots__ = ("_loop",)

    def __init__(self, lease: TaskLease, reporter: AttemptReporter, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lease, reporter)
        self._loop = loop

    def progress(
        self,
        percent: int | None = None,
        step: str | None = None,
        *,
        checkpoint: Mapping[str, object] | None = None,
        costs: Sequence[Cost] = (),
    ) -> None:
        """Report progress, and return when the server has stored it. The next attempt gets the last `checkpoint`.

        Raises `Canceled` if this attempt no longer counts.
        """
        self._wait_for(self._reporter.progress(self._build_progress(percent, step, checkpoint, costs)))

    def log(self, level: Level, message: str, **details: object) -> None:
        """Add a line to the task's log."""
        self._wait_for(self._reporter.log(self.lease, {"level": level, "message": message, "details": details}))

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait up to `seconds`. Returns whether this attempt was canceled."""
        event = self._thread_cancel_event
        if event is None:
            event = self._thread_cancel_event = threading.Event()
        # Check the reason after the event is stored: a concurrent `cancel` then either sets the event or is seen here.
        return self._cancel_reason is not None or event.wait(seconds)

    def _wait_for(self, coroutine: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
