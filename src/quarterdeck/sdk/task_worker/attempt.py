"""One attempt at a task, as its function sees it.

What the task holds is read when it is looked at, and what waits for its cancellation is made when somebody waits: an
attempt that looks at nothing costs next to nothing.
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
    """Where an attempt's words go."""

    async def progress(self, update: TaskProgress) -> None: ...

    async def log(self, lease: TaskLease, line: Mapping[str, object]) -> None: ...


class Done:
    """What a function may return instead of a plain result: the same with a summary for people, and what it cost."""

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
        """Which it is, from 1."""
        return self.lease.attempt

    @property
    def input(self) -> dict[str, object]:
        """The task's `inputContext`, its secrets in clear."""
        if self._input is None:
            self._input = msgspec.json.decode(self.lease.input_context, type=dict[str, object])
        return self._input

    def input_as(self, kind: type[T]) -> T:
        """The same as this type; raises `msgspec.ValidationError` where it is none."""
        return msgspec.json.decode(self.lease.input_context, type=kind)

    @property
    def checkpoint(self) -> dict[str, object]:
        """What the last attempt left for this one; empty if none did."""
        return msgspec.json.decode(self.lease.checkpoint_data, type=dict[str, object])

    @property
    def metadata(self) -> dict[str, object]:
        return msgspec.json.decode(self.lease.metadata, type=dict[str, object])

    @property
    def tags(self) -> list[str]:
        return msgspec.json.decode(self.lease.tags, type=list[str])

    # -- its end, before its time ----------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is not wanted any more. A function that takes long looks now and then, and stops by
        raising `Canceled`; one that does not look runs to its end, and its result does not count."""
        return self._cancel_reason is not None

    @property
    def why_cancelled(self) -> str | None:
        """`canceled`, `paused`, `lost` (it was taken from this worker) or `stopping` (the worker is)."""
        return self._cancel_reason

    def check(self) -> None:
        """Raises `Canceled` if this attempt is not wanted any more."""
        if self._cancel_reason is not None:
            raise Canceled(f"this attempt is not wanted any more: {self._cancel_reason}")

    def cancel(self, reason: str) -> None:
        """By the worker, on its loop."""
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
    """For functions that are coroutines."""

    __slots__ = ()

    async def progress(
        self,
        percent: int | None = None,
        step: str | None = None,
        *,
        checkpoint: Mapping[str, object] | None = None,
        costs: Sequence[Cost] = (),
    ) -> None:
        """Tells how far it is; returns when the server has kept it. Another attempt goes on from the last `checkpoint`.
        Raises `Canceled` if this attempt does not count any more."""
        await self._reporter.progress(self._build_progress(percent, step, checkpoint, costs))

    async def log(self, level: Level, message: str, **details: object) -> None:
        """Adds a line to the task's log."""
        await self._reporter.log(self.lease, {"level": level, "message": message, "details": details})

    async def until_cancelled(self) -> None:
        """Returns when the attempt is not wanted any more."""
        if self._cancel_event is None:
            self._cancel_event = asyncio.Event()
        if self._cancel_reason is None:
            await self._cancel_event.wait()


class ThreadAttempt(_Attempt):
    """For plain functions, which run in a thread: the same calls, and they block."""

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
        """Tells how far it is; returns when the server has kept it. Another attempt goes on from the last `checkpoint`.
        Raises `Canceled` if this attempt does not count any more."""
        self._wait_for(self._reporter.progress(self._build_progress(percent, step, checkpoint, costs)))

    def log(self, level: Level, message: str, **details: object) -> None:
        """Adds a line to the task's log."""
        self._wait_for(self._reporter.log(self.lease, {"level": level, "message": message, "details": details}))

    def wait_cancelled(self, seconds: float) -> bool:
        """Waits so long, and tells whether the attempt is not wanted any more."""
        event = self._thread_cancel_event
        if event is None:
            event = self._thread_cancel_event = threading.Event()
        # Looked at after the bell hangs: whoever cancels in between has seen it, or is seen here.
        return self._cancel_reason is not None or event.wait(seconds)

    def _wait_for(self, coroutine: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
