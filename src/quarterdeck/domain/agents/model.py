"""What is asked for, what is stored, and what is shown of agents: three different types."""

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
"""Tasks that one heartbeat names."""
METADATA_MAX = 8_192
"""Bytes of a heartbeat's metadata: a row of it is kept every ten seconds, for an hour."""
RECENT_MAX = 20
"""Heartbeats that the health of an agent shows."""
HISTORY_INTERVAL = 10 * SECOND
"""How old the last kept heartbeat of an agent must be for one that tells nothing new to be kept."""
HISTORY_RETENTION = 60 * MINUTE
TOKEN_TTL = 3_600
TOKEN_TTL_MAX = 30 * 86_400
"""Seconds."""
ShortText = Annotated[str, Meta(min_length=1, max_length=255)]
Capability = Annotated[str, Meta(min_length=1, max_length=100)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class State(StrEnum):
    """How an agent stands, as it is stored. One that is alive and holds tasks is shown as WORKING."""

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
    """What an agent says of itself."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


# -- asked for ---------------------------------------------------------------------------------------------------


class RegisterBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What may be said of an agent. What is not said stays as it is, or as a new agent has it."""

    name: Annotated[ShortText, Meta(description="for people; of a new one: its id")] | UnsetType = UNSET
    model: Annotated[ShortText, Meta(description="the model it works with")] | UnsetType | None = UNSET
    description: Annotated[str, Meta(max_length=4_096)] | UnsetType | None = UNSET
    capabilities: (
        Annotated[
            list[Capability], Meta(max_length=CAPABILITIES_MAX, description="it is given tasks that require no others")
        ]
        | UnsetType
    ) = UNSET
    max_concurrent_tasks: Annotated[int, Meta(ge=1, le=10_000, description="of a new one: 1")] | UnsetType = UNSET
    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=86_400, description="of a new one: 30")] | UnsetType = (
        UNSET
    )
    stale_threshold_seconds: (
        Annotated[int, Meta(ge=1, le=604_800, description="how long it may be silent; of a new one: 180")] | UnsetType
    ) = UNSET
    coordinator_enabled: (
        Annotated[bool, Meta(description="whether tasks are matched to it; of a new one: true")] | UnsetType
    ) = UNSET
    launcher: (
        Annotated[
            PathId,
            Meta(
                description="an entry of the server's own `[launchers]`, by which a session is started for each task; "
                "only an OWNER or ADMIN changes it"
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
    labels: (
        Annotated[dict[Capability, Annotated[str, Meta(max_length=255)]], Meta(max_length=LABELS_MAX)] | UnsetType
    ) = UNSET
    pool: Annotated[ShortText, Meta(description="the pool it belongs to")] | UnsetType | None = UNSET
    run_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                description="of the process that works as it, each time another: said for the first time, what the "
                "agent holds was lost with the process before, and goes to another attempt",
            ),
        ]
        | None
    ) = None


class HeartbeatBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Empty is fine: that it came is what counts."""

    status: AgentHealth = AgentHealth.HEALTHY
    current_task_id: PathId | None = None
    progress_percent: Annotated[Percent | None, Meta(description="of the current task")] = None
    current_step: Annotated[str, Meta(max_length=1_000)] | None = None
    memory_mb: Amount | None = None
    cpu_percent: Amount | None = None
    checkpoint_data: Annotated[
        dict[str, object] | None, Meta(description="of the current task: from where another attempt may go on")
    ] = None
    metadata: Annotated[dict[str, object], Meta(description=f"anything, up to {METADATA_MAX} bytes")] = {}
    task_ids: (
        Annotated[
            list[PathId],
            Meta(
                max_length=TASK_IDS_MAX,
                description="all that it works on: what runs in its name and is not among them is taken back",
            ),
        ]
        | None
    ) = None
    attempt_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(
            description="of the current task: without it, and without a token that was made for the attempt, progress "
            "and checkpoint are not kept with the task"
        ),
    ] = None


class TerminateBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)] = "requested"
    graceful: Annotated[bool, Meta(description="it takes no new tasks, and ends when the last it holds has")] = False


class TokenBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_MAX)] = TOKEN_TTL
    attempt_token: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="the attempt it is for: it need not be said again")
        ]
        | None
    ) = None


class ListAgentsQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None
    status: AgentStatus | None = None
    capability: Capability | None = None
    coordinator_enabled: bool | None = None


# -- on its way through a lane -----------------------------------------------------------------------------------


class AgentRef(Command, frozen=True, kw_only=True):
    """About one agent; by itself, it asks for how that stands."""

    agent_id: str

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.agent_id


class AgentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an agent, as it is stored: JSON as text. What is unset is not said."""

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
    """Of the process that begins to work as this agent."""
    awaits_first_contact: bool = False
    """By the server, of one that has not spoken: it is not missed before it has."""


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
    """By the retention: who was terminated before a time, and nobody needs."""

    before: Millis


class RefreshStatus(AgentRef, frozen=True, kw_only=True):
    """By the server: does how an agent is said to stand agree with when, and how, it was heard of?"""


class AgentFilter(Command, frozen=True, kw_only=True):
    """Which agents of a zone are wanted, in the order of their ids."""

    limit: int
    after: str | None = None
    status: AgentStatus | None = None
    capability: str | None = None
    coordinator_enabled: bool | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Agent(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agents` and its row of `agent_pulses`, in the order of the `columns` lines of `queries.sql`."""

    zone_id: str
    id: str
    name: str
    model: str | None
    description: str | None
    capabilities: str
    """JSON, each once, in the order given."""
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
    """When to look whether it is still heard of; put forward by whoever looks, not by the agent."""
    terminated_at: Millis | None
    created_by: str
    created_at: Millis
    updated_at: Millis
    pulse_status: AgentHealth
    held: int
    """Tasks that it is assigned to or works on."""
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    last_seen_at: Millis
    kept_at: Millis
    """When the last of its heartbeats came that was kept."""

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
    """What of an agent matters while it waits for work."""

    zone_id: str
    id: str
    status: State
    draining: int
    stale_threshold_seconds: int
    last_seen_at: Millis


class LivenessDue(msgspec.Struct, frozen=True, array_like=True):
    """An agent that may have been silent for too long."""

    zone_id: str
    id: str
    last_seen_at: Millis


# -- outcomes ----------------------------------------------------------------------------------------------------


class RegisterResult(msgspec.Struct, frozen=True):
    agent: Agent
    created: bool
    at: Millis


class HeartbeatResult(msgspec.Struct, frozen=True):
    """An agent was heard of."""

    agent: Agent
    needs_refresh: bool
    """It stands otherwise than is stored of it: somebody has to look."""


class IssueTokenResult(msgspec.Struct, frozen=True):
    agent: Agent
    expires_at: Millis


class AgentAt(msgspec.Struct, frozen=True):
    """An agent, and the moment at which it was so."""

    agent: Agent
    at: Millis


class DeleteAgentResult(msgspec.Struct, frozen=True):
    is_deleted: bool
    """If not, it was registered again meanwhile."""


class AgentHistory(msgspec.Struct, frozen=True):
    """How an agent fares, and what was heard of it lately."""

    agent: Agent
    at: Millis
    recent: tuple[Heartbeat, ...]


# -- shown -------------------------------------------------------------------------------------------------------


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
    status_reason: Annotated[str | None, Meta(description="`stale`: it was not heard of for too long")]
    draining: Annotated[bool, Meta(description="it takes no tasks any more, and ends with its last")]
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
    age_seconds: Annotated[float, Meta(description="since it was last heard of")]
    is_stale: bool
    held_tasks: int
    current_task_id: str | None
    progress_percent: int | None
    current_step: str | None
    memory_mb: int | None
    cpu_percent: int | None
    heartbeats: Annotated[
        list[HeartbeatRowView], Meta(description=f"the last {RECENT_MAX} that were kept, newest first")
    ]


class HeartbeatView(msgspec.Struct, frozen=True):
    """What the agent must know."""

    cancel: Annotated[tuple[str, ...], Meta(description="tasks to stop working on: they are its no more")]
    pause: Annotated[tuple[str, ...], Meta(description="tasks that were paused")]
    warnings: tuple[HeartbeatWarning, ...]
    next: Annotated[int, Meta(description="in how many seconds to be heard of again")]


class TokenView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    token: Annotated[str, Meta(description="shown this once; it acts as this agent alone, while that lives")]
    expires_at: str
