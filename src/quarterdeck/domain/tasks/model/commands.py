"""What is asked of the lane: by callers, and by the server itself."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, Content, CreatedTask, Task


class BaseCommand(Command, frozen=True, kw_only=True):
    """What everything that is asked of the lane has."""

    leader_term: tuple[str, int] | None = None
    """The lease, and its term, under which the server asks; over, nothing is done."""


class Cost(msgspec.Struct, frozen=True):
    model: str
    input_tokens: int
    output_tokens: int
    usd_micros: int


class Create(BaseCommand, frozen=True, kw_only=True):
    id: str
    has_requested_id: bool
    """The id is the caller's, and may be taken."""
    idempotency_key: str | None
    request_digest: str
    content: Content
    task_type: str
    priority: int
    depends_on: tuple[str, ...]
    on_dependency_failure: Literal["fail", "run"]
    max_retries: int
    retry_backoff_seconds: int
    estimated_duration_minutes: int | None
    run_at: Millis | None
    timeout_seconds: int | None
    required_capabilities: tuple[str, ...]
    class_id: str
    tags: tuple[str, ...]


class Claim(BaseCommand, frozen=True, kw_only=True):
    agent_id: str
    limit: int
    attempt_tokens: tuple[str, ...]
    """One for each task it may get, made before: what is tried again asks for the same."""
    task_types: frozenset[str] | None = None
    capabilities: frozenset[str] | None = None
    claim_id: str | None = None
    waiter: object = None
    not_before: float = 0.0
    """Of one who waits, by this process's clock: there is work, but none that it may be given now (its agent is full, a
    budget is spent). It need not ask for a while."""


class TaskUpdate(BaseCommand, frozen=True, kw_only=True):
    id: str


class Start(TaskUpdate, frozen=True, kw_only=True):
    attempt_token: str | None


class Progress(TaskUpdate, frozen=True, kw_only=True):
    attempt_token: str | None
    percent: int | None
    step: str | None
    checkpoint: str | None
    costs: tuple[Cost, ...] = ()
    is_reset: bool = False
    idempotency_key: str | None = None
    """By which it is known again when it is repeated: what it cost is charged once."""
    request_digest: str = ""


class Complete(TaskUpdate, frozen=True, kw_only=True):
    attempt_token: str | None
    output: str
    summary: str | None
    costs: tuple[Cost, ...] = ()


class Fail(TaskUpdate, frozen=True, kw_only=True):
    attempt_token: str | None
    error: str
    stack_trace: str | None
    retryable: bool
    jitter: float
    costs: tuple[Cost, ...] = ()


class Release(TaskUpdate, frozen=True, kw_only=True):
    """Given back, or never reached whoever claimed it: the attempt does not count."""

    attempt_token: str | None


class Cancel(TaskUpdate, frozen=True, kw_only=True):
    reason: str


class Retry(TaskUpdate, frozen=True, kw_only=True):
    """By hand: whatever retries there were, it begins anew."""


class Pause(TaskUpdate, frozen=True, kw_only=True):
    pass


class Resume(TaskUpdate, frozen=True, kw_only=True):
    pass


class Patch(TaskUpdate, frozen=True, kw_only=True):
    """What is not named stays. All of it is done, or nothing."""

    status_change: Literal["pause", "resume"] | None = None
    priority: int | None = None
    tags: tuple[str, ...] | None = None
    tags_json: str | None = None
    metadata: str | None = None
    estimated_completion_at: Millis | UnsetType | None = UNSET
    depends_on: tuple[str, ...] | None = None

    @property
    def has_field_changes(self) -> bool:
        """Whether it asks for more than to pause or to resume."""
        fields = (self.priority, self.tags, self.metadata, self.depends_on)
        return any(value is not None for value in fields) or self.estimated_completion_at is not UNSET


class Assign(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator: this agent is to have it, and is launched for it."""

    agent_id: str
    attempt_token: str
    launch_timeout_ms: Millis = 60_000
    """How long the launch may take: if nobody has begun by then, whoever was to launch it is gone."""


class RecordLaunch(TaskUpdate, frozen=True, kw_only=True):
    attempt_token: str
    session_key: str


AbortCondition = Literal["not_begun", "out_of_time", "hung"]
"""What was seen of an attempt."""


class Abort(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator, of an attempt: its agent is gone, its time is over, it makes no progress."""

    attempt_token: str | None
    """The attempt's. Its number would not do: that of one which was given back is given out again."""
    reason: str
    condition: AbortCondition | None = None
    """Nothing is done unless it is still so."""
    jitter: float
    raises_priority: bool = False


class MakeAvailable(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator: its moment may have come."""


class Warn(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator: it is long past its estimate."""


class UnblockDependents(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator: what depends on it must hear that it has failed for good."""


class FailForCycle(TaskUpdate, frozen=True, kw_only=True):
    """By the coordinator: it waits for itself."""

    cycle: tuple[str, ...]


class Archive(TaskUpdate, frozen=True, kw_only=True):
    pass


TaskCommand = (
    Create
    | Claim
    | Start
    | Progress
    | Complete
    | Fail
    | Release
    | Cancel
    | Retry
    | Pause
    | Resume
    | Patch
    | Assign
    | RecordLaunch
    | Abort
    | MakeAvailable
    | Warn
    | UnblockDependents
    | FailForCycle
    | Archive
)
TaskResult = CreatedTask | ClaimedTasks | Task
