"""Commands of the task lane, from callers and from the server itself."""

from __future__ import annotations

from typing import Generic, Literal

from msgspec import UNSET, UnsetType

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command, R_co
from quarterdeck.domain.costs.model import Cost
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, Content, CreatedTask, Task


class LeaderCommand(Command, frozen=True, kw_only=True):
    leader_term: tuple[str, int] | None = None
    """(lease name, term) of the leader that sent the command. The command is refused if the term has ended."""


class BaseTaskCommand(LeaderCommand, Generic[R_co], frozen=True, kw_only=True):
    """A command of the lane `task`. `R_co` is the type of its result."""


class Create(BaseTaskCommand[CreatedTask], frozen=True, kw_only=True):
    id: str
    has_requested_id: bool
    """The caller chose the id, so it may already be in use."""
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


class Claim(BaseTaskCommand[ClaimedTasks], frozen=True, kw_only=True):
    agent_id: str
    limit: int
    attempt_tokens: tuple[str, ...]
    """One token per task to claim, generated before the batch, so that a retried batch uses the same tokens."""
    task_types: frozenset[str] | None = None
    capabilities: frozenset[str] | None = None
    """If set, only these of the agent's capabilities are used."""
    claim_id: str | None = None
    waiter: object = None
    """The long poll behind this claim, if there is one."""
    not_before: float = 0.0
    """Offer no tasks to this long poll before this time, in seconds on the monotonic clock of the process. Set if tasks
    are ready but cannot be claimed, because the agent has no free slot or a budget is spent."""


class TaskUpdate(BaseTaskCommand[Task], frozen=True, kw_only=True):
    """A command for an existing task."""

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
    """Identifies a repeated report, so that its costs are charged once."""
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
    """Random number in [0, 1) for the backoff."""
    costs: tuple[Cost, ...] = ()


class Release(TaskUpdate, frozen=True, kw_only=True):
    """Give the attempt back, or undo a claim whose response was not delivered. The attempt does not count."""

    attempt_token: str | None


class Cancel(TaskUpdate, frozen=True, kw_only=True):
    reason: str


class Retry(TaskUpdate, frozen=True, kw_only=True):
    """Sent by a user: queue a FAILED or ABORTED task again and reset its retry count."""


class Pause(TaskUpdate, frozen=True, kw_only=True):
    pass


class Resume(TaskUpdate, frozen=True, kw_only=True):
    pass


class Patch(TaskUpdate, frozen=True, kw_only=True):
    """Change the fields that are set. Either all changes are made, or none."""

    status_change: Literal["pause", "resume"] | None = None
    priority: int | None = None
    tags: tuple[str, ...] | None = None
    tags_json: str | None = None
    metadata: str | None = None
    estimated_completion_at: Millis | UnsetType | None = UNSET
    depends_on: tuple[str, ...] | None = None

    @property
    def has_field_changes(self) -> bool:
        """Whether the patch does more than pause or resume."""
        fields = (self.priority, self.tags, self.metadata, self.depends_on)
        return any(value is not None for value in fields) or self.estimated_completion_at is not UNSET


class Assign(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the coordinator: assign the task to an agent that a launcher will start for it."""

    agent_id: str
    attempt_token: str
    launch_timeout_ms: Millis = 60_000
    """If the attempt has not started after this time, it is aborted."""


class RecordLaunch(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the launcher: a session was started for the attempt."""

    attempt_token: str
    session_key: str


AbortCondition = Literal["not_started", "timed_out", "hung"]
"""Why the coordinator aborts an attempt. The decider checks that the condition still holds."""


class Abort(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the server: end an attempt that has timed out, is making no progress or has lost its agent."""

    attempt_token: str | None
    """Identifies the attempt. The attempt number does not, because the number of a released attempt is used again."""
    reason: str
    condition: AbortCondition | None = None
    """The attempt is aborted only if this condition still holds."""
    jitter: float
    raises_priority: bool = False


class MakeAvailable(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the coordinator: the task's `available_at` may have passed."""


class Warn(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the coordinator: the attempt has exceeded its estimate by `task_overdue_minutes`."""


class UnblockDependents(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the coordinator for an ended task whose dependents have not all been unblocked or failed."""


class FailForCycle(TaskUpdate, frozen=True, kw_only=True):
    """Sent by the coordinator: the task is part of a dependency cycle."""

    cycle: tuple[str, ...]


class Archive(TaskUpdate, frozen=True, kw_only=True):
    pass


TaskCommand = Create | Claim | TaskUpdate
TaskResult = CreatedTask | ClaimedTasks | Task
