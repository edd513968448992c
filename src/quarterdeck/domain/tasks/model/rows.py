"""What is stored of tasks, and what they can be told."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis

TABLE = "agent_tasks"
"""Part of what the secrets of a task are sealed with: another name would not open them."""
TaskRef = tuple[str, str]
"""(zone, task)"""
AgentRef = tuple[str, str]
"""(zone, agent)"""


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
    """What a task waits for besides an agent: one number, because an index must be able to say it."""

    NOTHING = 0
    TIME = 1
    """`available_at`: it was asked to begin later, or its backoff runs."""
    DEPENDENCIES = 2
    """`unmet` tasks that it depends on."""


class Strategy(StrEnum):
    """In what order tasks are handed out."""

    PRIORITY = "priority"
    SJF = "sjf"
    FAIR = "fair"


class TaskSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    task_claim_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="how long a claim of tasks may wait at most")
    ] = 60_000
    task_claim_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="how often waiting claims of tasks look by themselves if no wake comes")
    ] = 1_000
    task_backoff_max_seconds: Annotated[
        int, Meta(ge=0, le=2_592_000, description="the longest backoff between two attempts of a task")
    ] = 86_400
    task_overdue_minutes: Annotated[
        float, Meta(gt=0, le=525_600, description="past its estimate by so much, a task's agent is warned")
    ] = 30.0
    task_hung_minutes: Annotated[
        float, Meta(gt=0, le=525_600, description="without progress for so long after that, a task is aborted")
    ] = 10.0
    task_archive_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long after its end a task is put away by itself")
    ] = 30.0
    task_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long ended tasks are kept after they were archived")
    ] = 90.0


class Content(msgspec.Struct, frozen=True, array_like=True):
    """What a task says, which decides nothing: a row's columns in the order of `columns content` in `queries.sql`. Its
    JSON is as it is stored, with secrets sealed."""

    title: str
    description: str | None
    last_error: str | None
    input_context: str
    output_result: str | None
    summary: str | None
    checkpoint_data: str
    metadata_json: str
    tags: str
    required_capabilities: str

    @property
    def size(self) -> int:
        """How much it says, of what has no small bound."""
        texts = (self.input_context, self.checkpoint_data, self.metadata_json, self.output_result)
        others = (self.description, self.last_error, self.summary)
        return sum(len(text) for text in (*texts, *others) if text is not None)


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What of a task decides: a row's columns in the order of `columns` in `queries.sql`. The rest is its `Content`."""

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
    ranked_by: Strategy
    waits_for: int
    dependency_count: int
    """How many tasks it was said to depend on, done or not."""
    unmet_dependencies: int
    """How many of those are not done."""
    available_at: Millis
    timeout_seconds: int | None
    timeout_at: Millis | None
    attempt: int
    attempt_token: str | None
    """Of the last attempt that began."""
    claim_id: str | None
    final: int
    """It has failed, or was aborted, for good."""
    reason: str | None
    dependents_pending: int
    """Others that depend on it are still to hear of its end."""
    warned_at: Millis | None
    progress_at: Millis | None
    overdue_at: Millis | None
    """When somebody is to look whether it is hung."""
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


class ContentUpdate(msgspec.Struct, frozen=True):
    """What of a task's content a batch has changed; None is as it was."""

    last_error: str | None = None
    output_result: str | None = None
    summary: str | None = None
    checkpoint_data: str | None = None
    metadata_json: str | None = None
    tags: str | None = None


class FullTask(msgspec.Struct, frozen=True):
    """A task with what it says, as it is shown."""

    task: Task
    content: Content
    depends_on: tuple[str, ...] = ()
    """As many as are shown; how many there are, its row says."""
    blocks: tuple[str, ...] = ()
    has_more_blocks: bool = False


class CreatedTask(msgspec.Struct, frozen=True):
    task: Task
    created: bool
    content: Content | None = None
    """What it says, if it was made."""


class ClaimedTask(msgspec.Struct, frozen=True):
    """A task that an agent was given. What it says is read when the batch is decided."""

    task: Task
    content: Content | None = None
    depends_on: tuple[str, ...] = ()
    lease_expires_at: Millis = 0


class ClaimedTasks(msgspec.Struct, frozen=True):
    """What a claim was given."""

    items: tuple[ClaimedTask, ...]
    stop_waiting: bool = False
    """There will be nothing for it, however long it waits."""


# -- what the coordinator is shown, across zones


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
