"""Responses about tasks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.domain.tasks.model.rows import State


class CostsView(msgspec.Struct, frozen=True, rename="camel"):
    usd: float
    input_tokens: int
    output_tokens: int


class TaskView(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    title: str
    description: str | None
    task_type: str
    status: State
    priority: int
    agent_id: str | None
    session_key: str | None
    progress_percent: int
    current_step: str | None
    estimated_duration_minutes: int | None
    estimated_completion_at: str | None
    retry_count: int
    max_retries: int
    retry_backoff_seconds: int
    last_error: str | None
    depends_on: Annotated[
        list[str], Meta(description="in lists and claims the first 100; `dependsOnCount` is the total")
    ]
    depends_on_count: int
    blocks: Annotated[list[str], Meta(description="tasks that depend on this one; in lists at most 100")]
    more_blocks: Annotated[bool, Meta(description="more tasks depend on it than `blocks` names")]
    on_dependency_failure: str
    input_context: msgspec.Raw
    output_result: msgspec.Raw | None
    summary: str | None
    checkpoint_data: msgspec.Raw
    metadata: msgspec.Raw
    tags: msgspec.Raw
    required_capabilities: msgspec.Raw
    available_at: str
    timeout_seconds: int | None
    attempt: int
    reason: str | None
    is_final: bool
    costs: CostsView
    created_by: str
    created_at: str
    updated_at: str
    assigned_at: str | None
    started_at: str | None
    completed_at: str | None
    failed_at: str | None
    attempt_token: str | UnsetType = UNSET
    lease_expires_at: str | UnsetType = UNSET


class TaskLeases(msgspec.Struct, frozen=True):
    tasks: list[TaskView]


class TaskItem(msgspec.Struct, frozen=True, rename="camel"):
    """Outcome of one item of a bulk request: the new status or an error."""

    id: str | None
    status: State | UnsetType = UNSET
    error: dict[str, object] | UnsetType = UNSET


class TaskItems(msgspec.Struct, frozen=True):
    items: list[TaskItem]


class CreatedItems(msgspec.Struct, frozen=True):
    """One outcome per task of the request, in request order: the task or a problem."""

    items: list[TaskView | msgspec.Raw]
