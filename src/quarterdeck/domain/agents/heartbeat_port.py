"""Types that agents and tasks exchange for a heartbeat.

Tasks are a layer above agents, so agents cannot import them. The composition root injects functions with these types.
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
    """The agent works on no other tasks."""
    holds_tasks: bool
    """The agent holds tasks, whether the heartbeat names them or not."""


class ReportedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a heartbeat on its current task, with an attempt token."""

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
    """Feedback for the agent that is not an error."""

    code: str
    detail: str
    task_id: str | None = None


SaveProgress = Callable[[], Awaitable[HeartbeatWarning | None]]
"""Stores the report with the current task. Returns a warning if the attempt has ended."""


class TaskFeedback(msgspec.Struct, frozen=True):
    """Feedback on the tasks that an agent holds or has named."""

    cancel: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    warnings: tuple[HeartbeatWarning, ...] = ()
