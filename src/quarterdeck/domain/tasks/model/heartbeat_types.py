"""Bodies and views of heartbeats, and what a heartbeat reports about tasks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Caller
from quarterdeck.core.routing import PathId
from quarterdeck.domain.agents.model import METADATA_BYTES_MAX, TASK_IDS_MAX, AgentHealth, Amount, Percent


class HeartbeatBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """All fields are optional. An empty object is a valid heartbeat."""

    status: AgentHealth = AgentHealth.HEALTHY
    current_task_id: PathId | None = None
    progress_percent: Annotated[Percent | None, Meta(description="progress of the current task")] = None
    current_step: Annotated[str, Meta(max_length=1_000)] | None = None
    memory_mb: Amount | None = None
    cpu_percent: Amount | None = None
    checkpoint_data: Annotated[
        dict[str, object] | None, Meta(description="checkpoint of the current task, for the next attempt")
    ] = None
    metadata: Annotated[
        dict[str, object], Meta(description=f"any JSON object of up to {METADATA_BYTES_MAX} bytes")
    ] = {}
    task_ids: (
        Annotated[
            list[PathId],
            Meta(
                max_length=TASK_IDS_MAX,
                description="all tasks that the agent is working on; an attempt at a task that is not listed is "
                "aborted if the agent got it more than a minute ago",
            ),
        ]
        | None
    ) = None
    attempt_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(
            description="attempt token of the current task; needed to store progress and checkpoint with the task, "
            "unless the bearer token was issued for the attempt"
        ),
    ] = None


class HeartbeatWarning(msgspec.Struct, frozen=True, rename="camel"):
    """A remark for the agent in the response to a heartbeat that succeeded."""

    code: str
    detail: str
    task_id: str | None = None


class HeartbeatView(msgspec.Struct, frozen=True):
    """What the agent must do about its tasks, and when to send the next heartbeat."""

    cancel: Annotated[tuple[str, ...], Meta(description="tasks to stop: the agent no longer holds them")]
    pause: Annotated[tuple[str, ...], Meta(description="tasks that were paused")]
    warnings: tuple[HeartbeatWarning, ...]
    next: Annotated[int, Meta(description="seconds until the next heartbeat is due")]


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


class TaskFeedback(msgspec.Struct, frozen=True):
    """What an agent must know about the tasks that it holds or that its heartbeat names."""

    cancel: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    warnings: tuple[HeartbeatWarning, ...] = ()
