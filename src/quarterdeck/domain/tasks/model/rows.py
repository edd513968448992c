"""Stored tasks, the settings for tasks, and results of commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis
from quarterdeck.core.views import JsonText

TABLE = "agent_tasks"
"""Secrets are encrypted with this name as part of the associated data. If it changed, they could not be decrypted."""
TaskRef = tuple[str, str]
"""(zone id, task id)"""
AgentRef = tuple[str, str]
"""(zone id, agent id)"""


class State(StrEnum):
    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"
    ARCHIVED = "ARCHIVED"


class Verb(StrEnum):
    ASSIGN = "assign"
    CLAIM = "claim"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    FAIL_DEPENDENCY = "fail_dependency"
    RELEASE = "release"
    ABORT = "abort"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    ARCHIVE = "archive"


class WaitsFor:
    """What a PENDING task is waiting for before it can be claimed, or a FAILED or ABORTED task before its retry.

    The value is stored as an integer, which partial indexes use.
    """

    NOTHING = 0
    TIME = 1
    """The task is waiting for `available_at`: a requested start time, or the end of the backoff after an attempt."""
    DEPENDENCIES = 2


class Strategy(StrEnum):
    """The order in which ready tasks are claimed."""

    PRIORITY = "priority"
    SJF = "sjf"
    FAIR = "fair"


class TaskSettings(msgspec.Struct, frozen=True):
    task_claim_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="maximum wait of a task claim (`waitMs`)")
    ] = 60_000
    task_claim_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="how often waiting task claims poll the database without a wake-up")
    ] = 1_000
    task_backoff_max_seconds: Annotated[
        int, Meta(ge=0, le=2_592_000, description="longest backoff between two attempts of a task")
    ] = 86_400
    task_overdue_minutes: Annotated[
        float, Meta(gt=0, le=525_600, description="time past a task's estimate after which its agent is warned")
    ] = 30.0
    task_hung_minutes: Annotated[
        float,
        Meta(
            gt=0, le=525_600, description="time without progress after an overdue warning until an attempt is aborted"
        ),
    ] = 10.0
    task_archive_days: Annotated[
        float, Meta(gt=0, le=36_500, description="days after its end until a task is archived")
    ] = 30.0
    task_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="days that archived tasks are kept before they are deleted")
    ] = 90.0


class Content(msgspec.Struct, frozen=True, array_like=True):
    """The columns of `agent_tasks` that no decision reads, in the order of `columns content` in `queries.sql`.

    JSON columns are in their stored form, with secrets encrypted.
    """

    title: str
    description: str | None
    last_error: str | None
    input_context: JsonText
    output_result: JsonText | None
    summary: str | None
    checkpoint_data: JsonText
    metadata_json: JsonText
    tags: JsonText
    required_capabilities: JsonText

    @property
    def size(self) -> int:
        """The total length, in characters, of the fields that may be large. `bytes_of` in `queries.sql` counts their
        bytes, which is nearly the same."""
        texts = (self.input_context, self.checkpoint_data, self.metadata_json, self.output_result)
        others = (self.description, self.last_error, self.summary)
        return sum(len(text) for text in (*texts, *others) if text is not None)


class Task(msgspec.Struct, frozen=True, array_like=True):
    """The columns of `agent_tasks` that decisions read, in the order of `columns` in `queries.sql`.

    The other columns are in `Content`. If a field and its column have different names, the field's docstring names the
    column.
    """

    id: str
    zone_id: str
    task_type: str
    status: State
    priority: int
    agent_id: str | None
    session_key: str | None
    progress_percent: int
    current_step: str | None
    estimated_duration_minutes: int | None
    estimated_completion_at: Millis | None
    retry_count: int
    max_retries: int
    retry_backoff_seconds: int
    on_dependency_failure: str
    class_id: str
    rank: int
    """Column `turn`. Among ready tasks the lowest rank is claimed first."""
    ranked_by: Strategy
    waits_for: int
    """Column `waits`, see `WaitsFor`."""
    dependency_count: int
    """Column `depends`. Includes dependencies that are already met."""
    unmet_dependencies: int
    """Column `unmet`."""
    available_at: Millis
    timeout_seconds: int | None
    timeout_at: Millis | None
    attempt: int
    attempt_token: str | None
    """Token of the latest attempt. Kept after a completion or failure, to recognise a repeated report; None after a
    release, a pause, a requeue or the cancellation of an open attempt."""
    claim_id: str | None
    final: int
    """1 if the task failed or was canceled and no retry follows. Stays 1 when the task is archived."""
    reason: str | None
    dependents_pending: int
    """Column `spreads`. 1 if the task has ended and its dependents have not all been unblocked or failed."""
    warned_at: Millis | None
    progress_at: Millis | None
    overdue_at: Millis | None
    """When the coordinator warns the agent or, if the agent has been warned, aborts the attempt as hung."""
    usd_micros: int
    input_tokens: int
    output_tokens: int
    created_by: str
    application_id: str
    trace: str | None
    created_at: Millis
    updated_at: Millis
    assigned_at: Millis | None
    started_at: Millis | None
    completed_at: Millis | None
    failed_at: Millis | None

    @property
    def ref(self) -> TaskRef:
        return (self.zone_id, self.id)


class ContentUpdate(msgspec.Struct, frozen=True):
    """Changes to the content of a task. None leaves a field unchanged."""

    last_error: str | None = None
    output_result: str | None = None
    summary: str | None = None
    checkpoint_data: str | None = None
    metadata_json: str | None = None
    tags: str | None = None


class FullTask(msgspec.Struct, frozen=True):
    """A task with its content, for a view."""

    task: Task
    content: Content
    depends_on: tuple[str, ...] = ()
    """May be truncated; `task.dependency_count` is the total number."""
    blocks: tuple[str, ...] = ()
    has_more_blocks: bool = False


class CreatedTask(msgspec.Struct, frozen=True):
    task: Task
    created: bool
    """False if an earlier request with the same idempotency key created the task."""
    content: Content | None = None
    """None if this request did not create the task."""


class ClaimedTask(msgspec.Struct, frozen=True):
    task: Task
    content: Content | None = None
    """None until the batch has been decided; the content is then read or, for a new task, taken from the batch."""
    depends_on: tuple[str, ...] = ()
    lease_expires_at: Millis = 0


class ClaimedTasks(msgspec.Struct, frozen=True):
    items: tuple[ClaimedTask, ...]
    stop_waiting: bool = False
    """An earlier claim with the same claim id got tasks that have since ended, so this claim will never get any."""


# -- rows for the coordinator, across zones ----------------------------------------------------------------------


class TimedOutAttempt(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    id: str
    attempt_token: str | None
    status: State


class OverdueAttempt(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    id: str
    attempt_token: str | None
    was_warned: int
