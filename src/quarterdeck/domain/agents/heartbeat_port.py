"""What this room and that of tasks tell each other when an agent is heard of. Tasks are above agents, so the
composition root lends the one to the other, in these terms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from quarterdeck.core.caller import Caller


class ReportedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says it works on, for whoever knows about tasks."""

    zone_id: str
    agent_id: str
    caller: Caller
    task_ids: tuple[str, ...]
    is_complete: bool
    """It works on no others."""
    holds_tasks: bool
    """It is known to have tasks, whether it names them or not."""


class ReportedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat says of its current task, under the token of an attempt."""

    zone_id: str
    agent_id: str
    caller: Caller
    task_id: str
    attempt_token: str | None
    """None: the caller's own token was made for the attempt."""
    progress_percent: int | None
    current_step: str | None
    checkpoint_data: dict[str, object] | None
    trace: str | None = None


class HeartbeatWarning(msgspec.Struct, frozen=True, rename="camel"):
    """What an agent should know, and nobody refuses it anything for."""

    code: str
    detail: str
    task_id: str | None = None


SaveProgress = Callable[[], Awaitable[HeartbeatWarning | None]]
"""Keeps with the current task what a heartbeat says of it; or tells why not, where the attempt is over."""


class TaskFeedback(msgspec.Struct, frozen=True):
    """What an agent must know of the tasks it has, or has named."""

    cancel: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    warnings: tuple[HeartbeatWarning, ...] = ()
