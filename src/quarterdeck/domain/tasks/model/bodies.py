"""Request bodies and queries. Fields are camelCase on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.paging import Cursor, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.domain.tasks.model.rows import State

BULK_MAX = 1_000
CLAIM_MAX = 500
DEPENDENCIES_MAX = 10_000
"""Maximum number of dependencies per task."""
REQUEST_DEPENDENCIES_MAX = 20_000
"""Maximum total number of dependencies of the tasks in one bulk request. Each dependency is read and written while the
zone is locked."""
Name = Annotated[str, Meta(min_length=1, max_length=100)]
Title = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=65_536)]
Reason = Annotated[str, Meta(min_length=1, max_length=1_000)]
Token = Annotated[str, Meta(min_length=1, max_length=128)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Priority = Annotated[int, Meta(ge=1, le=10)]
Capabilities = Annotated[list[Name], Meta(max_length=64)]
Tag = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        pattern="^[^,]*$",
        description="without commas: `tags` in a list query is comma-separated",
    ),
]
Tags = Annotated[list[Tag], Meta(max_length=64)]


class CostItem(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    model: Name
    input_tokens: Annotated[int, Meta(ge=0, le=10**12)] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=10**12)] = 0
    usd: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


Costs = Annotated[list[CostItem], Meta(max_length=100)]


class TaskFields(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The optional fields of a new task."""

    id: Annotated[PathId, Meta(description="lets other tasks of the same request depend on it")] | None = None
    description: Text | None = None
    priority: Annotated[Priority, Meta(description="1 (low) to 10 (high)")] = 5
    input_context: Annotated[dict[str, object], Meta(description="for the agent; secrets in it are encrypted")] = {}
    depends_on: Annotated[
        list[PathId],
        Meta(max_length=DEPENDENCIES_MAX, description="tasks that must be COMPLETED before this one starts"),
    ] = []
    on_dependency_failure: Literal["fail", "run"] = "fail"
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    retry_backoff_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 300
    estimated_duration_minutes: Annotated[int, Meta(ge=1, le=525_600)] | None = None
    run_at: Annotated[datetime, Meta(tz=True, description="earliest start time")] | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=2_592_000, description="maximum duration of an attempt")] | None = (
        None
    )
    required_capabilities: Capabilities = []
    metadata: dict[str, object] = {}
    tags: Tags = []


class CreateItem(TaskFields, frozen=True, rename="camel", kw_only=True):
    title: Title
    task_type: Annotated[Name, Meta(description="the kind of work, for example development or research")]


class CreateBody(TaskFields, frozen=True, rename="camel", kw_only=True):
    """One task, or several in `tasks`."""

    title: Title | UnsetType = UNSET
    task_type: Name | UnsetType = UNSET
    tasks: Annotated[list[CreateItem], Meta(min_length=1, max_length=BULK_MAX)] | UnsetType = UNSET


class PatchBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    priority: Priority | UnsetType = UNSET
    status: Annotated[Literal["PAUSED", "PENDING"], Meta(description="PAUSED pauses, PENDING resumes")] | UnsetType = (
        UNSET
    )
    tags: Tags | UnsetType = UNSET
    metadata: dict[str, object] | UnsetType = UNSET
    estimated_completion_at: Annotated[datetime, Meta(tz=True)] | UnsetType | None = UNSET
    depends_on: Annotated[list[PathId], Meta(max_length=DEPENDENCIES_MAX)] | UnsetType = UNSET


class ClaimBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX, description="maximum number of tasks")] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=300_000, description="how long to wait if no task is ready")] = 0
    task_types: Annotated[list[Name], Meta(max_length=64, description="claim only tasks of these types")] | None = None
    capabilities: (
        Annotated[list[Name], Meta(max_length=64, description="the agent's capabilities to use; default: all")] | None
    ) = None
    claim_id: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="idempotency key: the same id returns the same tasks")
        ]
        | None
    ) = None


class ProgressBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    progress_percent: Percent | None = None
    current_step: Annotated[str, Meta(max_length=1_000)] | None = None
    checkpoint_data: dict[str, object] | None = None
    costs: Costs = []
    attempt_token: Token | None = None
    reset: Annotated[bool, Meta(description="allow progress to decrease, for an attempt that starts over")] = False
    progress_id: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="idempotency key: its costs are charged once per task")
        ]
        | None
    ) = None


class CompleteBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    output_result: object = None
    summary: Annotated[str, Meta(max_length=65_536)] | None = None
    costs: Costs = []
    attempt_token: Token | None = None


class FailBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    error: Annotated[str, Meta(min_length=1, max_length=65_536)]
    stack_trace: Annotated[str, Meta(max_length=262_144)] | None = None
    retryable: Annotated[bool, Meta(description="whether another attempt may follow")] = True
    costs: Costs = []
    attempt_token: Token | None = None


class CancelBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    reason: Reason = "requested"


class StartBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    attempt_token: Token | None = None


class ProgressItem(ProgressBody, frozen=True, rename="camel", kw_only=True):
    id: PathId


class CompleteItem(CompleteBody, frozen=True, rename="camel", kw_only=True):
    id: PathId


class FailItem(FailBody, frozen=True, rename="camel", kw_only=True):
    id: PathId


class ReleaseItem(StartBody, frozen=True, rename="camel", kw_only=True):
    id: PathId


class ProgressManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[ProgressItem], Meta(min_length=1, max_length=BULK_MAX)]


class CompleteManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[CompleteItem], Meta(min_length=1, max_length=BULK_MAX)]


class FailManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[FailItem], Meta(min_length=1, max_length=BULK_MAX)]


class ReleaseManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[ReleaseItem], Meta(min_length=1, max_length=BULK_MAX)]


class ListQuery(PageQuery, frozen=True, rename="camel", forbid_unknown_fields=True):
    cursor: Cursor | None = None
    status: State | None = None
    priority: Priority | None = None
    min_priority: Annotated[Priority | None, Meta(description="minimum priority, written as `priority>=8`")] = (
        msgspec.field(default=None, name="priority>")
    )
    tags: (
        Annotated[
            str, Meta(min_length=1, max_length=2_000, description="comma-separated; a task must have all of them")
        ]
        | None
    ) = None
    task_type: Name | None = None
    agent_id: PathId | None = None
    created_after: Annotated[datetime, Meta(tz=True)] | None = None
