"""Commands, rows and views of agents."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.command import Command
from quarterdeck.core.ids import Ref
from quarterdeck.core.paging import Cursor, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.core.views import JsonText

CAPABILITIES_MAX = 64
LABELS_MAX = 64
TASK_IDS_MAX = 1_000
"""Maximum number of task ids in one heartbeat."""
METADATA_BYTES_MAX = 8_192
"""Small, because a heartbeat may be stored for each agent every ten seconds, and is kept for an hour."""
HEALTH_HEARTBEATS_MAX = 20
"""Maximum number of heartbeats in the health view of an agent."""
HISTORY_INTERVAL_MS = 10 * SECOND
"""A heartbeat that changes nothing is stored only if the last stored one is at least this old."""
HISTORY_RETENTION_MS = 60 * MINUTE
TOKEN_TTL_SECONDS = 3_600
TOKEN_TTL_SECONDS_MAX = 30 * 86_400
ShortText = Annotated[str, Meta(min_length=1, max_length=255)]
Capability = Annotated[str, Meta(min_length=1, max_length=100)]
LabelKey = Annotated[str, Meta(min_length=1, max_length=100)]
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
    MARK_STALE = "mark stale"
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
    """Settings of an agent. An omitted field keeps its value. A new or terminated agent gets the default instead."""

    name: Annotated[ShortText, Meta(description="display name; default: the id")] | UnsetType = UNSET
    model: Annotated[ShortText, Meta(description="the model that the agent uses")] | UnsetType | None = UNSET
    description: Annotated[str, Meta(max_length=4_096)] | UnsetType | None = UNSET
    capabilities: (
        Annotated[
            list[Capability],
            Meta(
                max_length=CAPABILITIES_MAX,
                description="the agent gets a task only if it has all capabilities that the task requires",
            ),
        ]
        | UnsetType
    ) = UNSET
    max_concurrent_tasks: Annotated[int, Meta(ge=1, le=10_000, description="default: 1")] | UnsetType = UNSET
    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=86_400, description="default: 30")] | UnsetType = UNSET
    stale_threshold_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=604_800,
                description="the agent becomes stale after this many seconds without contact; default: 180",
            ),
        ]
        | UnsetType
    ) = UNSET
    coordinator_enabled: (
        Annotated[bool, Meta(description="whether the coordinator may assign tasks to the agent; default: true")]
        | UnsetType
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
    labels: Annotated[dict[LabelKey, Annotated[str, Meta(max_length=255)]], Meta(max_length=LABELS_MAX)] | UnsetType = (
        UNSET
    )
    pool: Annotated[ShortText, Meta(description="the pool that the agent belongs to")] | UnsetType | None = UNSET
    run_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                description="id of the agent's process, new at each start; with a new id, tasks that the agent still "
                "holds from its previous process are retried; ignored for an agent with a launcher",
            ),
        ]
        | None
    ) = None


class TerminateBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)] = "requested"
    graceful: Annotated[
        bool, Meta(description="let the agent finish its tasks; it gets no new ones and is terminated after the last")
    ] = False


class TokenBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_SECONDS_MAX)] = TOKEN_TTL_SECONDS
    attempt_token: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                description="the attempt that the token is issued for; requests with the token need no `attemptToken`",
            ),
        ]
        | None
    ) = None


class ListAgentsQuery(PageQuery, frozen=True, rename="camel", forbid_unknown_fields=True):
    cursor: Cursor | None = None
    status: AgentStatus | None = None
    capability: Capability | None = None
    coordinator_enabled: bool | None = None


# -- commands ----------------------------------------------------------------------------------------------------


class AgentCommand(Command, frozen=True, kw_only=True):
    """The base of commands for one agent."""

    agent_id: str

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.agent_id


class ShowAgent(AgentCommand, frozen=True, kw_only=True):
    pass


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


class Register(AgentCommand, frozen=True, kw_only=True):
    update: AgentUpdate = AgentUpdate()
    run_id: str | None = None
    """Id of the process that now works as this agent."""
    awaits_first_contact: bool = False
    """Set by the server: the agent cannot become stale before it is seen for the first time."""


class RecordHeartbeat(AgentCommand, frozen=True, kw_only=True):
    status: AgentHealth = AgentHealth.HEALTHY
    current_task_id: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None
    memory_mb: int | None = None
    cpu_percent: int | None = None
    metadata: str = "{}"


class Terminate(AgentCommand, frozen=True, kw_only=True):
    reason: str = "requested"
    graceful: bool = False


class IssueToken(AgentCommand, frozen=True, kw_only=True):
    ttl_seconds: int
    for_attempt: bool = False


class DeleteAgent(AgentCommand, frozen=True, kw_only=True):
    """Sent by retention: delete an agent if it was terminated before the given time."""

    before: Millis


class RefreshStatus(AgentCommand, frozen=True, kw_only=True):
    """Sent by the server: update the status of an agent from its last heartbeat."""


class AgentFilter(Command, frozen=True, kw_only=True):
    """Requests a page of a zone's agents, ordered by id. A filter that is None matches every agent."""

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
    capabilities: JsonText
    """A JSON list without duplicates, in the order of the request."""
    max_concurrent_tasks: int
    heartbeat_interval_seconds: int
    stale_threshold_seconds: int
    coordinator_enabled: int
    launcher: str | None
    labels: JsonText
    pool: str | None
    status: State
    status_reason: str | None
    draining: int
    look_at: Millis | None
    """When to check next whether the agent is stale. Set by checks and registrations, but not by heartbeats."""
    terminated_at: Millis | None
    created_by: str
    created_at: Millis
    updated_at: Millis
    pulse_status: AgentHealth
    held: int
    """Number of tasks that are assigned to the agent or that it is running."""
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    last_seen_at: Millis
    kept_at: Millis
    """Time of the last heartbeat that was stored in the history."""

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
    metadata_json: JsonText


class WaitingAgent(msgspec.Struct, frozen=True, array_like=True):
    """The columns from which `rules.ms_until_contact` is computed, for an agent with a waiting claim."""

    zone_id: str
    id: str
    status: State
    draining: int
    stale_threshold_seconds: int
    last_seen_at: Millis


class DueLivenessCheck(msgspec.Struct, frozen=True, array_like=True):
    """An agent whose liveness check is due."""

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
    """Whether the caller must submit a `RefreshStatus`."""


class IssueTokenResult(msgspec.Struct, frozen=True):
    agent: Agent
    expires_at: Millis


class AgentResult(msgspec.Struct, frozen=True):
    """An agent as read, or as changed by a command."""

    agent: Agent
    at: Millis
    """Time of the transaction."""


class DeleteAgentResult(msgspec.Struct, frozen=True):
    is_deleted: bool
    """False if the agent was registered again or is already deleted."""


class AgentHistory(msgspec.Struct, frozen=True):
    agent: Agent
    at: Millis
    """Time of the read."""
    heartbeats: tuple[Heartbeat, ...]
    """The last stored heartbeats, newest first."""


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
    status_reason: Annotated[str | None, Meta(description="`stale` if the agent has not been seen for too long")]
    draining: Annotated[bool, Meta(description="the agent gets no new tasks and is terminated after its last one")]
    held_tasks: int
    current_task_id: str | None
    last_seen_at: str
    terminated_at: str | None
    created_by: str
    created_at: str
    updated_at: str


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
    age_seconds: Annotated[float, Meta(description="seconds since `lastSeenAt`")]
    is_stale: bool
    held_tasks: int
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    heartbeats: Annotated[
        list[HeartbeatRowView], Meta(description=f"the last {HEALTH_HEARTBEATS_MAX} stored heartbeats, newest first")
    ]


class TokenView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    token: Annotated[
        str, Meta(description="returned only once; valid until `expiresAt` or until the agent is terminated")
    ]
    expires_at: str


class AgentTokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token that acts for one agent."""

    zone_id: str
    agent_id: str
    client_id: str
    ttl_seconds: int
    registered_at: Millis
    """When the agent was registered. The token is valid only for that registration."""
    attempt: str | None = None
    """The token of the attempt that the bearer works on."""


MintAgentToken = Callable[[AgentTokenClaims], str]
"""Creates and signs a token. Passed in, because the signing key belongs to the HTTP layer."""
