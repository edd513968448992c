"""Commands, rows and views of agents."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.command import Command
from quarterdeck.core.routing import PathId
from quarterdeck.domain.agents.heartbeat_port import HeartbeatWarning

Ref = tuple[str, str]
"""(zone, agent)"""
CAPABILITIES_MAX = 64
LABELS_MAX = 64
TASK_IDS_MAX = 1_000
"""Maximum tasks that one heartbeat names."""
METADATA_MAX = 8_192
"""Bytes of a heartbeat's metadata: one row is stored every ten seconds and kept for an hour."""
RECENT_MAX = 20
"""Heartbeats in the health view of an agent."""
HISTORY_INTERVAL = 10 * SECOND
"""A heartbeat without a change is stored if the last stored one is at least this old."""
HISTORY_RETENTION = 60 * MINUTE
TOKEN_TTL = 3_600
TOKEN_TTL_MAX = 30 * 86_400
"""Seconds."""
ShortText = Annotated[str, Meta(min_length=1, max_length=255)]
Capability = Annotated[str, Meta(min_length=1, max_length=100)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class State(StrEnum):
    """The stored status of an agent. An IDLE agent that holds tasks is displayed as WORKING."""

    IDLE = "IDLE"
    DEGRADED = "DEGRADED"
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"


class Verb(StrEnum):
    REGISTER = "register"
    DEGRADE = "degrade"
    RECOVER = "recover"
    LOSE = "lose"
    REVIVE = "revive"
    REVIVE_DEGRADED = "revive degraded"
    TERMINATE = "terminate"


class AgentStatus(StrEnum):
    IDLE = "IDLE"
    WORKING = "WORKING"
    DEGRADED = "DEGRADED"
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"


class AgentHealth(StrEnum):
    """The health that an agent reports."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


# -- request bodies ----------------------------------------------------------------------------------------------


class RegisterBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Settings of an agent. An omitted field keeps its value; a new agent gets the default."""

    name: Annotated[ShortText, Meta(description="display name; default: the id")] | UnsetType = UNSET
    model: Annotated[ShortText, Meta(description="the model that the agent uses")] | UnsetType | None = UNSET
    description: Annotated[str, Meta(max_length=4_096)] | UnsetType | None = UNSET
    capabilities: (
        Annotated[
            list[Capability], Meta(max_length=CAPABILITIES_MAX, description="it gets only tasks that require no others")
        ]
        | UnsetType
    ) = UNSET
    max_concurrent_tasks: Annotated[int, Meta(ge=1, le=10_000, description="default: 1")] | UnsetType = UNSET
    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=86_400, description="default: 30")] | UnsetType = UNSET
    stale_threshold_seconds: (
        Annotated[
            int,
            Meta(ge=1, le=604_800, description="the agent is stale after this time without a heartbeat; default: 180"),
        ]
        | UnsetType
    ) = UNSET
    coordinator_enabled: (
        Annotated[bool, Meta(description="whether the coordinator assigns tasks to it; default: true")] | UnsetType
    ) = UNSET
    launcher: (
        Annotated[
            PathId,
            Meta(
                description="an entry of `[launchers]` in the server's configuration, which starts a session for each "
                "task; only an OWNER or ADMIN may change it"
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
    labels: (
        Annotated[dict[Capability, Annotated[str, Meta(max_length=255)]], Meta(max_length=LABELS_MAX)] | UnsetType
    ) = UNSET
    pool: Annotated[ShortText, Meta(description="the pool that the agent belongs to")] | UnsetType | None = UNSET
    run_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                description="id of the agent's process, new at each start; at its first use, tasks that the agent "
                "still holds from its previous process are retried",
            ),
        ]
        | None
    ) = None


class HeartbeatBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """All fields are optional: an empty heartbeat counts."""

    status: AgentHealth = AgentHealth.HEALTHY
    current_task_id: PathId | None = None
    progress_percent: Annotated[Percent | None, Meta(description="progress of the current task")] = None
    current_step: Annotated[str, Meta(max_length=1_000)] | None = None
    memory_mb: Amount | None = None
    cpu_percent: Amount | None = None
    checkpoint_data: Annotated[
        dict[str, object] | None, Meta(description="checkpoint of the current task, for the next attempt")
    ] = None
    metadata: Annotated[dict[str, object], Meta(description=f"any JSON object of up to {METADATA_MAX} bytes")] = {}
    task_ids: (
        Annotated[
            list[PathId],
            Meta(
                max_length=TASK_IDS_MAX,
                description="all tasks that the agent works on; a running task of the agent that is missing here is "
                "taken from it",
            ),
        ]
        | None
    ) = None
    attempt_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(
            description="attempt token of the current task; without it, and without a bearer token for the attempt, "
            "progress and checkpoint are not stored"
        ),
    ] = None


class TerminateBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)] = "requested"
    graceful: Annotated[bool, Meta(description="the agent takes no new tasks and ends with its last one")] = False


class TokenBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_MAX)] = TOKEN_TTL
    attempt_token: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="attempt of the token; its requests need not repeat it")
        ]
        | None
    ) = None


class ListAgentsQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None
    status: AgentStatus | None = None
    capability: Capability | None = None
    coordinator_enabled: bool | None = None


# -- commands ----------------------------------------------------------------------------------------------------


class AgentRef(Command, frozen=True, kw_only=True):
    """A command about one agent. By itself, it reads the agent."""

    agent_id: str

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.agent_id


class AgentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `RegisterBody` as stored, with JSON as text. An unset field keeps its value."""

    name: str | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    capabilities: str | UnsetType = UNSET
    max_concurrent_tasks: int | UnsetType = UNSET
    heartbeat_interval_seconds: int | UnsetType = UNSET
    stale_threshold_seconds: int | UnsetType = UNSET
    coordinator_enabled: int | UnsetType = UNSET
    launcher: str | UnsetType | None = UNSET
    labels: str | UnsetType = UNSET
    pool: str | UnsetType | None = UNSET


class Register(AgentRef, frozen=True, kw_only=True):
    update: AgentUpdate = AgentUpdate()
    run_id: str | None = None
    """Id of the process that starts to work as this agent."""
    awaits_first_contact: bool = False
    """Set by the server: the agent cannot become stale before it is seen for the first time."""


class RecordHeartbeat(AgentRef, frozen=True, kw_only=True):
    status: AgentHealth = AgentHealth.HEALTHY
    current_task_id: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None
    memory_mb: int | None = None
    cpu_percent: int | None = None
    metadata: str = "{}"


class Terminate(AgentRef, frozen=True, kw_only=True):
    reason: str = "requested"
    graceful: bool = False


class IssueToken(AgentRef, frozen=True, kw_only=True):
    ttl_seconds: int
    for_attempt: bool = False


class DeleteAgent(AgentRef, frozen=True, kw_only=True):
    """Sent by retention: delete an agent if it was terminated before a time."""

    before: Millis


class RefreshStatus(AgentRef, frozen=True, kw_only=True):
    """Sent by the server: update the status of an agent from its last heartbeat."""


class AgentFilter(Command, frozen=True, kw_only=True):
    """Filter for a page of the agents of a zone, ordered by id. A filter that is None matches all."""

    limit: int
    after: str | None = None
    status: AgentStatus | None = None
    capability: str | None = None
    coordinator_enabled: bool | None = None


# -- rows --------------------------------------------------------------------------------------------------------


class Agent(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agents` and its row of `agent_pulses`, in the order of the `columns` lines in `queries.sql`."""

    zone_id: str
    id: str
    name: str
    model: str | None
    description: str | None
    capabilities: str
    """A JSON list without duplicates, in the given order."""
    max_concurrent_tasks: int
    heartbeat_interval_seconds: int
    stale_threshold_seconds: int
    coordinator_enabled: int
    launcher: str | None
    labels: str
    pool: str | None
    status: State
    status_reason: str | None
    draining: int
    look_at: Millis | None
    """When to check whether it is stale. The check moves it forward; heartbeats do not."""
    terminated_at: Millis | None
    created_by: str
    created_at: Millis
    updated_at: Millis
    pulse_status: AgentHealth
    held: int
    """Tasks that are assigned to it or that it runs."""
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    last_seen_at: Millis
    kept_at: Millis
    """Time of its last heartbeat that was stored in the history."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_heartbeats`."""

    id: str
    zone_id: str
    agent_id: str
    status: AgentHealth
    current_task_id: str | None
    progress_percent: int | None
    memory_mb: int | None
    cpu_percent: int | None
    last_seen_at: Millis
    next_expected_at: Millis
    metadata_json: str


class WaitingAgent(msgspec.Struct, frozen=True, array_like=True):
    """The columns of an agent that its waiting claim needs."""

    zone_id: str
    id: str
    status: State
    draining: int
    stale_threshold_seconds: int
    last_seen_at: Millis


class LivenessDue(msgspec.Struct, frozen=True, array_like=True):
    """An agent that may be stale."""

    zone_id: str
    id: str
    last_seen_at: Millis


# -- results -----------------------------------------------------------------------------------------------------


class RegisterResult(msgspec.Struct, frozen=True):
    agent: Agent
    created: bool
    at: Millis


class HeartbeatResult(msgspec.Struct, frozen=True):
    agent: Agent
    needs_refresh: bool
    """Its stored status is out of date: submit a `RefreshStatus`."""


class IssueTokenResult(msgspec.Struct, frozen=True):
    agent: Agent
    expires_at: Millis


class AgentAt(msgspec.Struct, frozen=True):
    """An agent, and the time at which it was read."""

    agent: Agent
    at: Millis


class DeleteAgentResult(msgspec.Struct, frozen=True):
    is_deleted: bool
    """False if it was registered again in the meantime."""


class AgentHistory(msgspec.Struct, frozen=True):
    agent: Agent
    at: Millis
    recent: tuple[Heartbeat, ...]


# -- views -------------------------------------------------------------------------------------------------------


class AgentView(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    name: str
    model: str | None
    description: str | None
    capabilities: msgspec.Raw
    max_concurrent_tasks: int
    heartbeat_interval_seconds: int
    stale_threshold_seconds: int
    coordinator_enabled: bool
    launcher: str | None
    labels: msgspec.Raw
    pool: str | None
    status: AgentStatus
    status_reason: Annotated[str | None, Meta(description="`stale`: no heartbeat for too long")]
    draining: Annotated[bool, Meta(description="it takes no new tasks and ends with its last one")]
    held_tasks: int
    current_task_id: str | None
    last_seen_at: str
    terminated_at: str | None
    created_by: str
    created_at: str
    updated_at: str


class AgentList(msgspec.Struct, frozen=True, rename="camel"):
    items: list[AgentView]
    next_cursor: str | None


class HeartbeatRowView(msgspec.Struct, frozen=True, rename="camel"):
    status: AgentHealth
    current_task_id: str | None
    progress_percent: int | None
    memory_mb: int | None
    cpu_percent: int | None
    last_seen_at: str
    next_expected_at: str
    metadata: msgspec.Raw


class HealthView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    status: AgentStatus
    status_reason: str | None
    last_seen_at: str
    next_expected_at: str
    age_seconds: Annotated[float, Meta(description="time since `lastSeenAt`")]
    is_stale: bool
    held_tasks: int
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    heartbeats: Annotated[
        list[HeartbeatRowView], Meta(description=f"the last {RECENT_MAX} stored heartbeats, newest first")
    ]


class HeartbeatView(msgspec.Struct, frozen=True):
    """Feedback for the agent."""

    cancel: Annotated[tuple[str, ...], Meta(description="tasks to stop: the agent no longer holds them")]
    pause: Annotated[tuple[str, ...], Meta(description="tasks that were paused")]
    warnings: tuple[HeartbeatWarning, ...]
    next: Annotated[int, Meta(description="seconds until the next heartbeat is due")]


class TokenView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    token: Annotated[str, Meta(description="shown only in this response; acts for this agent until it is terminated")]
    expires_at: str
