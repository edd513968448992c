"""Optional arguments for calls that take many of them. The names are the wire names in snake case.

They are typed dictionaries, so that a type checker checks `spawn("app", parent_id=…)`. At run time `encode_options`
checks the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypedDict

from quarterdeck.sdk.types import Delivery, Health
from quarterdeck.sdk.work_types import AgentStatus, TaskStatus


class SpawnOptions(TypedDict, total=False):
    session_sid: str | None
    parent_id: str | None
    kind: Literal["instance", "service", "ephemeral"]
    capabilities: Sequence[str]
    ttl_seconds: int
    metadata: Mapping[str, object]


class ServiceOptions(TypedDict, total=False):
    protocol_versions: Sequence[str]
    framework_name: str | None
    framework_version: str | None
    capabilities: Sequence[str]
    health: Health
    metadata: Mapping[str, object]
    delivery: Delivery


class RetryPolicy(TypedDict, total=False):
    max_attempts: int
    backoff_ms: int
    multiplier: float
    max_backoff_ms: int


class EnqueueOptions(TypedDict, total=False):
    metadata: Mapping[str, object]
    source_session_id: str | None
    target_session_id: str | None
    timeout_ms: int
    retry_policy: RetryPolicy


class DelegateOptions(TypedDict, total=False):
    scopes: Sequence[str]
    resource_id: str | None
    constraints: Mapping[str, object]
    expires_at: datetime
    ttl_seconds: int
    parent_edge_id: str | None


class TaskOptions(TypedDict, total=False):
    id: str
    description: str | None
    priority: int
    input_context: Mapping[str, object]
    depends_on: Sequence[str]
    on_dependency_failure: Literal["fail", "run"]
    max_retries: int
    retry_backoff_seconds: int
    estimated_duration_minutes: int | None
    run_at: datetime | None
    timeout_seconds: int | None
    required_capabilities: Sequence[str]
    metadata: Mapping[str, object]
    tags: Sequence[str]


class NewTask(TaskOptions):
    """One task for `create_many`: the required fields and the options."""

    title: str
    task_type: str


class TaskChanges(TypedDict, total=False):
    priority: int
    tags: Sequence[str]
    metadata: Mapping[str, object]
    estimated_completion_at: datetime | None
    depends_on: Sequence[str]


class TaskFilter(TypedDict, total=False):
    status: TaskStatus | None
    priority: int | None
    min_priority: int | None
    tags: Sequence[str]
    task_type: str | None
    agent_id: str | None
    created_after: datetime | None


class AgentOptions(TypedDict, total=False):
    name: str
    model: str | None
    description: str | None
    capabilities: Sequence[str]
    max_concurrent_tasks: int
    heartbeat_interval_seconds: int
    stale_threshold_seconds: int
    coordinator_enabled: bool
    launcher: str | None
    labels: Mapping[str, str]
    pool: str | None
    run_id: str


class AgentFilter(TypedDict, total=False):
    status: AgentStatus | None
    capability: str | None
    coordinator_enabled: bool | None


class BeatOptions(TypedDict, total=False):
    status: Literal["healthy", "degraded"]
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: float | None
    cpu_percent: float | None
    checkpoint_data: Mapping[str, object]
    metadata: Mapping[str, object]
    task_ids: Sequence[str]
    attempt_token: str | None


class WebhookOptions(TypedDict, total=False):
    description: str | None
    types: Sequence[str]


class WebhookChanges(WebhookOptions, total=False):
    url: str
    enabled: bool


def encode_options(options_type: type, options: Mapping[str, object]) -> dict[str, object]:
    """The options that are not None. Raises TypeError for an unknown name, as Python does for a keyword argument."""
    unknown_names = options.keys() - options_type.__annotations__.keys()
    if unknown_names:
        allowed = ", ".join(sorted(options_type.__annotations__))
        raise TypeError(f"unexpected options: {', '.join(sorted(unknown_names))} (allowed: {allowed})")
    return {name: value for name, value in options.items() if value is not None}


def encode_camel_options(
    options_type: type, options: Mapping[str, object], *, keep_none: bool = False
) -> dict[str, object]:
    """Like `encode_options`, but with work-plane names: `task_type` becomes `taskType`.

    With `keep_none`, None values are kept, because None clears a field.
    """
    encoded = {
        **encode_options(options_type, options),
        **({name: None for name in options if options[name] is None} if keep_none else {}),
    }
    return {to_camel(name): value for name, value in encoded.items()}


def to_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
