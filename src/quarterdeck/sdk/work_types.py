"""Work-plane types: agents, tasks, their logs and costs, members, webhooks.

The wire uses camel case (`taskType`) and some different names (`workspaceId` for `zone_id`). Unknown fields, which a
newer server may send, are ignored. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from quarterdeck.sdk.types import ItemProblem

T = TypeVar("T")
TaskStatus = Literal["PENDING", "ASSIGNED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "ABORTED", "ARCHIVED"]
AgentStatus = Literal["IDLE", "WORKING", "DEGRADED", "ERROR", "TERMINATED"]
Level = Literal["DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"]
Role = Literal["OWNER", "ADMIN", "MEMBER", "AGENT"]
Strategy = Literal["priority", "sjf", "fair"]
GroupBy = Literal["task", "agent", "model", "taskType", "day", "workspace"]
Scope = Literal["workspace", "taskType", "task"]
Period = Literal["day", "week", "month", "total"]
COMPLETED_STATUSES = frozenset({"COMPLETED", "ARCHIVED"})


class WorkPage(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


# -- tasks -------------------------------------------------------------------------------------------------------


class Spent(msgspec.Struct, frozen=True, rename="camel"):
    """What a task has cost."""

    usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class Task(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    title: str
    description: str | None = None
    task_type: str
    status: TaskStatus
    priority: int
    agent_id: str | None = None
    session_key: str | None = None
    progress_percent: int = 0
    current_step: str | None = None
    estimated_duration_minutes: int | None = None
    estimated_completion_at: datetime | None = None
    retry_count: int = 0
    max_retries: int = 0
    retry_backoff_seconds: int = 0
    last_error: str | None = None
    depends_on: list[str] = []
    """In a list of tasks, only the first 100."""
    depends_on_count: int = 0
    blocks: list[str] = []
    """The tasks that depend on this one. In a list of tasks, at most 100."""
    more_blocks: bool = False
    """Whether more tasks depend on this one than `blocks` lists."""
    on_dependency_failure: str = "fail"
    input_context: dict[str, object] = {}
    output_result: object = None
    summary: str | None = None
    checkpoint_data: dict[str, object] = {}
    metadata: dict[str, object] = {}
    tags: list[str] = []
    required_capabilities: list[str] = []
    available_at: datetime
    timeout_seconds: int | None = None
    attempt: int = 0
    reason: str | None = None
    is_final: bool = False
    costs: Spent = Spent()
    created_by: str = ""
    created_at: datetime
    updated_at: datetime
    assigned_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether the task has ended for good. A FAILED or ABORTED task may still be retried automatically."""
        return self.status in COMPLETED_STATUSES or self.is_final

    def result_as(self, kind: type[T]) -> T:
        """The result, converted to this type. Raises `msgspec.ValidationError` if it does not match."""
        return msgspec.convert(self.output_result, kind)


class TaskLease(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A claimed task, with the fields that a worker needs. JSON fields are decoded only when they are read."""

    id: str
    attempt_token: str
    attempt: int
    title: str
    task_type: str
    priority: int = 5
    retry_count: int = 0
    max_retries: int = 0
    description: str | None = None
    timeout_seconds: int | None = None
    input_context: Raw = Raw(b"{}")
    checkpoint_data: Raw = Raw(b"{}")
    metadata: Raw = Raw(b"{}")
    tags: Raw = Raw(b"[]")
    lease_expires_at: Raw = Raw(b"null")


class TaskLeases(msgspec.Struct, frozen=True):
    tasks: list[TaskLease]


class Cost(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an attempt has spent on one model."""

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


class TaskProgress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Progress of an attempt."""

    id: str
    attempt_token: str
    progress_percent: int | None = None
    current_step: str | None = None
    checkpoint_data: Raw | None = None
    costs: Sequence[Cost] = ()
    reset: bool = False
    progress_id: str | None = None
    """Identifies this report, so that the server charges its costs once even if it is repeated."""


class TaskCompletion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A completed attempt."""

    id: str
    attempt_token: str
    output_result: Raw | UnsetType = UNSET
    summary: str | None = None
    costs: Sequence[Cost] = ()


class TaskFailure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A failed attempt."""

    id: str
    attempt_token: str
    error: str
    stack_trace: str | None = None
    retryable: bool = True
    costs: Sequence[Cost] = ()


class TaskReturn(msgspec.Struct, frozen=True, rename="camel"):
    """An attempt that is given back and does not count."""

    id: str
    attempt_token: str


class TaskItem(msgspec.Struct, frozen=True):
    """The result of one item of a bulk call."""

    id: str | None = None
    status: TaskStatus | None = None
    error: ItemProblem | None = None


class LogLine(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A line of a task's log: a transition, or a line that an agent wrote."""

    id: str
    task_id: str
    agent_id: str | None = None
    level: Level
    event: str
    message: str | None = None
    details: dict[str, object] = {}
    previous_status: str | None = None
    new_status: str | None = None
    session_key: str | None = None
    stack_trace: str | None = None
    created_at: datetime


class TaskNode(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    title: str
    task_type: str
    status: TaskStatus
    progress_percent: int
    is_final: bool
    depth: int
    """Negative for dependencies, positive for dependents."""
    depends_on: list[str]


class TaskTree(msgspec.Struct, frozen=True):
    items: list[TaskNode]
    truncated: bool = False


class TaskExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is in its current state, and what would change that."""

    task: dict[str, object]
    code: str
    why: list[str]
    next: list[str]
    until: datetime | None = None


# -- agents ------------------------------------------------------------------------------------------------------


class Agent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    name: str
    model: str | None = None
    description: str | None = None
    capabilities: list[str] = []
    max_concurrent_tasks: int
    heartbeat_interval_seconds: int
    stale_threshold_seconds: int
    coordinator_enabled: bool = True
    launcher: str | None = None
    labels: dict[str, str] = {}
    pool: str | None = None
    status: AgentStatus
    status_reason: str | None = None
    draining: bool = False
    held_tasks: int = 0
    current_task_id: str | None = None
    last_seen_at: datetime
    terminated_at: datetime | None = None
    created_by: str = ""
    created_at: datetime
    updated_at: datetime


class AgentHealth(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    agent_id: str
    status: AgentStatus
    status_reason: str | None = None
    last_seen_at: datetime
    next_expected_at: datetime
    age_seconds: float
    is_stale: bool
    held_tasks: int = 0
    current_task_id: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None
    memory_mb: int | None = None
    cpu_percent: int | None = None
    heartbeats: list[dict[str, object]] = []


class Warned(msgspec.Struct, frozen=True, rename="camel"):
    code: str
    detail: str
    task_id: str | None = None


class AgentBeaten(msgspec.Struct, frozen=True):
    """The response to an agent's heartbeat: tasks to cancel or pause, and warnings."""

    cancel: list[str] = []
    pause: list[str] = []
    warnings: list[Warned] = []
    next: float = 30.0
    """Seconds until the next heartbeat is due."""


class AgentToken(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    token: str
    expires_at: datetime


# -- members, coordinator ----------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    subject: str
    zone_id: str = msgspec.field(name="workspaceId")
    role: Role
    added_by: str = ""
    created_at: datetime
    updated_at: datetime


class CoordinatorStats(msgspec.Struct, frozen=True, rename="camel"):
    pending_tasks: int
    running_tasks: int
    healthy_agents: int
    stale_agents: int


class CoordinatorStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    active: bool
    instance_id: str
    zones: list[str] = msgspec.field(default_factory=list, name="workspaces")
    last_heartbeat: datetime | None = None
    stats: CoordinatorStats
    launchers: list[str] = []
    """Names of the launchers in the server's configuration, which can start agents."""


class Recovered(msgspec.Struct, frozen=True, rename="camel"):
    """How many items of each kind recovery found and repaired."""

    stale_agents: int = 0
    timed_out: int = 0
    overdue: int = 0
    requeued: int = 0
    spread: int = 0
    in_cycles: int = 0


class CoordinatorLine(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pos: int
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    level: Level
    event: str
    subject: str
    message: str
    details: dict[str, object] = {}
    previous_status: str | None = None
    new_status: str | None = None
    created_at: datetime


class StrategyChosen(msgspec.Struct, frozen=True):
    strategy: Strategy


# -- costs and budgets -------------------------------------------------------------------------------------------


class CostSum(msgspec.Struct, frozen=True, rename="camel"):
    key: str
    usd: float
    input_tokens: int
    output_tokens: int


class Budget(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    scope: Scope
    key: str | None = None
    period: Period
    usd: float | None = None
    tokens: int | None = None
    used_usd: float = 0.0
    used_tokens: int = 0
    is_spent: bool = False
    period_began_at: datetime
    period_ends_at: datetime | None = None
    created_by: str = ""
    created_at: datetime
    updated_at: datetime


# -- webhooks ----------------------------------------------------------------------------------------------------


class Webhook(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    url: str
    description: str | None = None
    types: list[str] = []
    enabled: bool
    disabled_reason: str | None = None
    failing_since: datetime | None = None
    rotated_at: datetime | None = None
    created_by: str = ""
    created_at: datetime
    updated_at: datetime
    secret: str | None = None
    """The secret that signs deliveries. Present only in the response to the request that creates it."""


class WebhookDelivery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    webhook_id: str
    event: str
    status: Literal["pending", "delivered", "failed"]
    attempts: int = 0
    next_at: datetime | None = None
    answer_status: int | None = None
    error: str | None = None
    body: object = None
    created_at: datetime
    updated_at: datetime
    delivered_at: datetime | None = None
