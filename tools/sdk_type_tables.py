"""What `generate_sdk_types.py` needs to know beyond the OpenAPI document: names, and the types of JSON fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StructType:
    """A msgspec struct from the schema of a response, or of an item of a bulk request."""

    name: str
    schema: str
    doc: str = ""
    bases: tuple[str, ...] = ("msgspec.Struct",)
    only: tuple[str, ...] = ()
    """The fields to take, in this order. Empty: all."""
    omit: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    """Types, with defaults, that replace those of the document."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    omits_defaults: bool = False


@dataclass(frozen=True, slots=True)
class OptionsType:
    """A typed dictionary from the schema of a request body, or from the query of a list (a path)."""

    name: str
    schema: str
    doc: str = ""
    base: str = ""
    only: tuple[str, ...] = ()
    omit: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    doc: str
    types: tuple[StructType | OptionsType, ...]
    aliases: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    """Names of `type_mixins` that programs import from this module."""
    is_response: bool = True
    has_defaults: bool = False
    """Whether lists, nullable fields and those in `DEFAULTS` may be missing, as in responses of an older server."""


MIXIN_NAMES = (
    *("BULK_MAX", "COMPLETED_STATUSES", "FINAL_STATUSES"),
    *("InvocationMixin", "ItemProblem", "Items", "Page", "SessionMixin", "TaskMixin", "WorkPage"),
)
ALIASES = {
    "SessionStatus": "quarterdeck.domain.sessions.model.State",
    "InvocationStatus": "quarterdeck.domain.invocations.model.State",
    "DelegationStatus": "EdgeState",
    "Health": "ServiceHealth",
    "Delivery": "DeliveryMode",
    "TaskStatus": "quarterdeck.domain.tasks.model.rows.State",
    "AgentStatus": "AgentStatus",
    "Level": "Level",
    "Role": "Role",
    "Strategy": "Strategy",
    "GroupBy": "/api/v1/costs?groupBy",
    "Scope": "Scope",
    "Period": "Period",
}
"""Names of enumerations, by their schema or query parameter."""
FIELD_NAMES = {
    "workspaceId": "zone_id",
    "workspaces": "zones",
    "from": "from_state",
    "to": "to_state",
    "priority>": "min_priority",
}
"""SDK names of fields that are not the wire name in snake case."""
ALTERNATIVE_NAMES = frozenset({"agent_session_id", "delegation_edge_id", "source_agent_id", "target_agent_id"})
"""Second names of fields on the wire, kept for compatibility. The SDK omits them."""
TIME_FIELDS = frozenset({"at", "until", "last_heartbeat", "failing_since", "created_after"})
"""Times whose names do not end in `_at`."""
DEFAULTS = {
    **dict.fromkeys(("progress_percent", "retry_count", "max_retries", "retry_backoff_seconds", "attempt"), "0"),
    **dict.fromkeys(
        ("depends_on_count", "held_tasks", "attempts", "input_tokens", "output_tokens", "used_tokens"), "0"
    ),
    **dict.fromkeys(
        ("stale_agents", "timed_out", "overdue", "requeued", "spread", "in_cycles", "unmet", "before"), "0"
    ),
    **dict.fromkeys(("more_blocks", "is_final", "draining", "is_spent", "truncated"), "False"),
    **dict.fromkeys(("usd", "used_usd"), "0.0"),
    **dict.fromkeys(("created_by", "added_by"), '""'),
    "on_dependency_failure": '"fail"',
    "coordinator_enabled": "True",
}
"""Defaults of work-plane fields that a response may lack."""
_OBJECT, _TEXTS, _COUNTS = "dict[str, object]", "list[str]", "dict[str, int]"
JSON_TYPES = {
    **dict.fromkeys(("metadata", "metadata_json", "retry_policy", "constraints", "constraints_json", "data"), _OBJECT),
    **dict.fromkeys(("details", "input_context", "checkpoint_data"), _OBJECT),
    **dict.fromkeys(("capabilities", "protocol_versions", "tags", "required_capabilities"), _TEXTS),
    **dict.fromkeys(("limits", "ceilings", "Limits", "Overrides"), _COUNTS),
    "labels": "dict[str, str]",
}
"""Types of JSON fields, by field or schema. The document says only that they are JSON."""

_ONCE = "The secret that signs {}. Present only in the response to the request that creates it."
_ATTEMPT = {"attempt_token": "str"}
_COSTS = {"costs": "Sequence[Cost] = ()"}

SESSION_TYPES = (
    StructType("Zone", "ZoneView", types={"ended_at": "datetime | None = None"}),
    StructType("Used", "QuotaUsage"),
    StructType("Quotas", "QuotasView", "The limits of a zone and their current use."),
    StructType("Session", "SessionView", bases=("SessionMixin", "msgspec.Struct"), types={"status": "SessionStatus"}),
    StructType("Left", "RemainingSession", "A session that a termination did not end."),
    StructType("Receipt", "Receipt", "The result of a termination. Its counts are read from the database afterwards."),
    StructType("Suspended", "Suspended"),
    StructType("Resumed", "Resumed"),
    StructType("Service", "ServiceView", descriptions={"secret": _ONCE.format("pushes")}),
    StructType(
        "Invocation",
        "InvocationView",
        bases=("InvocationMixin", "msgspec.Struct"),
        types={"status": "InvocationStatus"},
    ),
    StructType(
        "Lease",
        "LeaseView",
        "A claimed invocation. Only the holder of the token may report on this attempt.",
        bases=("Invocation",),
    ),
    StructType(
        "Item",
        "ItemView",
        "The result of one item of a bulk call.",
        types={"cancel": "bool = False", "error": "ItemProblem | None = None"},
    ),
    StructType("Token", "TokenItem", "Identifies an attempt."),
    StructType(
        "Completion",
        "CompleteInvocationItem",
        "The outcome of an attempt.",
        only=("id", "attempt_token", "status", "result", "error", "retryable"),
        types={"result": "Raw | None = None", "error": "dict[str, object] | None = None"},
        omits_defaults=True,
    ),
    StructType(
        "Delegation",
        "EdgeView",
        "An edge by which one session lends authority to another.",
        types={"status": "DelegationStatus"},
        descriptions={"resources": "The resources that the authority is limited to. None: all."},
    ),
    StructType("Revoked", "RevokedView"),
    StructType(
        "Authority",
        "Authority",
        "A session's current authority, and the edges that grant it.",
        types={"why_none": "str | None = None"},
    ),
    StructType(
        "Event",
        "EventView",
        "One event in the log.",
        only=("pos", "id", "zone_id", "type", "subject", "actor", "data", "at", "from_state", "to_state", "trace"),
        types={"from_state": "str | None = None", "to_state": "str | None = None", "trace": "str | None = None"},
    ),
    StructType("EventPage", "EventList", types={"next_after": "int | None = None"}),
)

WORK_TYPES = (
    StructType("Spent", "CostsView", "What a task has cost."),
    StructType(
        "Task",
        "TaskView",
        bases=("TaskMixin", "msgspec.Struct"),
        omit=("attempt_token", "lease_expires_at"),
        types={"costs": "Spent = Spent()"},
        descriptions={
            "depends_on": "In a list of tasks, only the first 100.",
            "blocks": "The tasks that depend on this one. In a list of tasks, at most 100.",
            "more_blocks": "Whether more tasks depend on this one than `blocks` lists.",
        },
    ),
    StructType(
        "TaskLease",
        "TaskView",
        "A claimed task, with the fields that a worker needs. JSON fields are decoded only when they are read.",
        only=(
            "id",
            "attempt_token",
            "attempt",
            "title",
            "task_type",
            "priority",
            "retry_count",
            "max_retries",
            "description",
            "timeout_seconds",
            "input_context",
            "checkpoint_data",
            "metadata",
            "tags",
            "lease_expires_at",
        ),
        types={
            "attempt_token": "str",
            "attempt": "int",
            "priority": "int = 5",
            "input_context": 'Raw = Raw(b"{}")',
            "checkpoint_data": 'Raw = Raw(b"{}")',
            "metadata": 'Raw = Raw(b"{}")',
            "tags": 'Raw = Raw(b"[]")',
            "lease_expires_at": 'Raw = Raw(b"null")',
        },
    ),
    StructType("TaskLeases", "TaskLeases", types={"tasks": "list[TaskLease]"}),
    StructType("Cost", "CostItem", "What an attempt has spent on one model.", omits_defaults=True),
    StructType(
        "TaskProgress",
        "ProgressItem",
        "Progress of an attempt.",
        only=(
            "id",
            "attempt_token",
            "progress_percent",
            "current_step",
            "checkpoint_data",
            "costs",
            "reset",
            "progress_id",
        ),
        types={**_ATTEMPT, **_COSTS, "checkpoint_data": "Raw | None = None"},
        omits_defaults=True,
        descriptions={
            "progress_id": "Identifies this report, so that the server charges its costs once even if it is repeated."
        },
    ),
    StructType(
        "TaskCompletion",
        "CompleteItem",
        "A completed attempt.",
        only=("id", "attempt_token", "output_result", "summary", "costs"),
        types={**_ATTEMPT, **_COSTS, "output_result": "Raw | UnsetType = UNSET"},
        omits_defaults=True,
    ),
    StructType(
        "TaskFailure",
        "FailItem",
        "A failed attempt.",
        only=("id", "attempt_token", "error", "stack_trace", "retryable", "costs"),
        types={**_ATTEMPT, **_COSTS},
        omits_defaults=True,
    ),
    StructType(
        "TaskReturn",
        "ReleaseItem",
        "An attempt that is given back and does not count.",
        only=("id", "attempt_token"),
        types=_ATTEMPT,
    ),
    StructType(
        "TaskItem", "TaskItem", "The result of one item of a bulk call.", types={"error": "ItemProblem | None = None"}
    ),
    StructType("LogLine", "LogView", "A line of a task's log: a transition, or a line that an agent wrote."),
    StructType("TaskNode", "NodeView", descriptions={"depth": "Negative for dependencies, positive for dependents."}),
    StructType("TaskTree", "TaskTree"),
    StructType("TaskExplanation", "TaskExplanation", "Why a task is in its current state, and what would change that."),
    StructType("Agent", "AgentView"),
    StructType("AgentHealth", "HealthView"),
    StructType("Warned", "HeartbeatWarning"),
    StructType(
        "AgentBeaten",
        "HeartbeatView",
        "The response to an agent's heartbeat: tasks to cancel or pause, and warnings.",
        types={"next": "float = 30.0"},
        descriptions={"next": "Seconds until the next heartbeat is due."},
    ),
    StructType("AgentToken", "TokenView"),
    StructType("Member", "MemberView"),
    StructType("CoordinatorStats", "StatsView"),
    StructType(
        "CoordinatorStatus",
        "StatusView",
        descriptions={"launchers": "Names of the launchers in the server's configuration, which can start agents."},
    ),
    StructType("Recovered", "RecoverView", "How many items of each kind recovery found and repaired."),
    StructType("CoordinatorLine", "CoordinatorLogView"),
    StructType("StrategyChosen", "StrategyView"),
    StructType("CostSum", "CostView"),
    StructType("Budget", "BudgetView"),
    StructType("Webhook", "EndpointView", descriptions={"secret": _ONCE.format("deliveries")}),
    StructType("WebhookDelivery", "DeliveryView"),
)

OPTION_TYPES = (
    OptionsType("SpawnOptions", "SpawnBody", omit=("application_id", "idempotency_key")),
    OptionsType(
        "ServiceOptions", "RegisterServiceBody", omit=("application_id", "endpoint_url", "agent_id", "metadata_json")
    ),
    OptionsType("RetryPolicy", "RetryPolicy"),
    OptionsType("EnqueueOptions", "EnqueueBody", omit=("service_id", "method", "params", "idempotency_key")),
    OptionsType(
        "DelegateOptions",
        "DelegateBody",
        only=("scopes", "resource_id", "constraints", "expires_at", "ttl_seconds", "parent_edge_id"),
    ),
    OptionsType("TaskOptions", "CreateItem", omit=("title", "task_type")),
    OptionsType(
        "NewTask",
        "CreateItem",
        "One task for `create_many`: the required fields and the options.",
        base="TaskOptions",
        only=("title", "task_type"),
        is_total=True,
    ),
    OptionsType("TaskChanges", "PatchBody", omit=("status",)),
    OptionsType("TaskFilter", "/api/v1/agent-tasks", types={"tags": "Sequence[str]"}),
    OptionsType("AgentOptions", "RegisterBody"),
    OptionsType("AgentFilter", "/api/v1/agents"),
    OptionsType("BeatOptions", "HeartbeatBody"),
    OptionsType("WebhookOptions", "CreateWebhookBody", omit=("url",), types={"types": "Sequence[str]"}),
    OptionsType("WebhookChanges", "UpdateWebhookBody", base="WebhookOptions", only=("url", "enabled")),
)

MODULES = (
    Module(
        "types",
        """Types of the session plane's responses.

Unknown fields, which a newer server may send, are ignored. Times are aware datetimes in UTC.
""",
        SESSION_TYPES,
        ("SessionStatus", "InvocationStatus", "DelegationStatus", "Health", "Delivery"),
        ("BULK_MAX", "FINAL_STATUSES", "ItemProblem", "Items", "Page"),
    ),
    Module(
        "work_types",
        """Work-plane types: agents, tasks, their logs and costs, members, webhooks.

The wire uses camel case (`taskType`) and some different names (`workspaceId` for `zone_id`). Unknown fields, which a
newer server may send, are ignored. Times are aware datetimes in UTC.
""",
        WORK_TYPES,
        ("TaskStatus", "AgentStatus", "Level", "Role", "Strategy", "GroupBy", "Scope", "Period"),
        ("COMPLETED_STATUSES", "WorkPage"),
        has_defaults=True,
    ),
    Module(
        "options",
        """Optional arguments for calls that take many of them. The names are the wire names in snake case.

They are typed dictionaries, so that a type checker checks `spawn("app", parent_id=…)`. At run time `resource`
checks the same names.
""",
        OPTION_TYPES,
        is_response=False,
    ),
)
