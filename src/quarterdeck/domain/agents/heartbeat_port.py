"""Types of the functions through which `domain.agents` passes the task part of a heartbeat to `domain.tasks`.

Tasks are a layer above agents, so agents cannot import them. `quarterdeck.wiring` injects the functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from quarterdeck.core.caller import Caller


class ReportedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a heartbeat names."""

    zone_id: str
    agent_id: str
    caller: Caller
    task_ids: tuple[str, ...]
    is_complete: bool
    """Whether the heartbeat names all tasks that the agent works on."""
    holds_tasks: bool
    """Whether the agent holds any task, named or not."""


class ReportedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat's report on the agent's current task."""

    zone_id: str
    agent_id: str
    caller: Caller
    task_id: str
    attempt_token: str | None
    """None if the caller's bearer token was issued for the attempt."""
    progress_percent: int | None
    current_step: str | None
    checkpoint_data: dict[str, object] | None
    trace: str | None = None


class HeartbeatWarning(msgspec.Struct, frozen=True, rename="camel"):
    """A remark for the agent in the response to a heartbeat that succeeded."""

    code: str
    detail: str
    task_id: str | None = None


SaveProgress = Callable[[], Awaitable[HeartbeatWarning | None]]
"""Stores a checked report with the task. Returns a warning if the report was not stored."""


class TaskFeedback(msgspec.Struct, frozen=True):
    """What an agent must know about the tasks that it holds or that its heartbeat names."""

    cancel: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    warnings: tuple[HeartbeatWarning, ...] = ()
