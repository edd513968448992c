"""Types of the session plane's responses.

Unknown fields, which a newer server may send, are ignored. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec

from quarterdeck.core.errors import Unavailable

T = TypeVar("T")
SessionStatus = Literal["active", "suspended", "terminated"]
InvocationStatus = Literal["pending", "running", "succeeded", "failed", "timed_out", "canceled", "dead"]
DelegationStatus = Literal["active", "revoked", "expired"]
Health = Literal["starting", "healthy", "degraded", "unhealthy"]
Delivery = Literal["pull", "push"]
FINAL_STATUSES = frozenset({"succeeded", "failed", "timed_out", "canceled", "dead"})
"""Statuses of an invocation that has ended."""
BULK_MAX = 100
"""The maximum number of invocations that a worker may name in one call."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


class Items(msgspec.Struct, Generic[T], frozen=True):
    """A complete list."""

    items: list[T]


# -- zones -------------------------------------------------------------------------------------------------------


class Zone(msgspec.Struct, frozen=True):
    id: str
    name: str
    frozen: bool
    quotas: dict[str, int]
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None


class Used(msgspec.Struct, frozen=True):
    sessions: int
    concurrent: int


class Quotas(msgspec.Struct, frozen=True):
    """The limits of a zone and their current use."""

    zone_id: str
    limits: dict[str, int]
    overrides: dict[str, int]
    ceilings: dict[str, int]
    used: Used
    frozen: bool


# -- sessions ----------------------------------------------------------------------------------------------------


class Session(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_sid: str
    kind: str
    status: SessionStatus
    depth: int
    capabilities: list[str]
    metadata: dict[str, object]
    ttl_seconds: int
    spawned_at: datetime
    expires_at: datetime
    suspended_at: datetime | None
    terminated_at: datetime | None
    termination_reason: str | None
    created_at: datetime
    updated_at: datetime
    limits: dict[str, int]

    @property
    def is_live(self) -> bool:
        return self.status != "terminated"


class Left(msgspec.Struct, frozen=True):
    """A session that a termination did not end."""

    session_id: str
    reason: str


class Receipt(msgspec.Struct, frozen=True):
    """The result of a termination. Its counts are read from the database afterwards."""

    zone_id: str
    session_id: str | None
    cascade_id: str | None
    reason: str
    asked: int
    stopped: int
    already_stopped: int
    duration_ms: int
    joined: bool
    left: list[Left]


# -- services ----------------------------------------------------------------------------------------------------


class Service(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    application_id: str
    agent_id: str | None
    endpoint_url: str
    protocol_versions: list[str]
    framework_name: str | None
    framework_version: str | None
    capabilities: list[str]
    health: Health
    metadata_json: dict[str, object]
    delivery: Delivery
    active_invocations: int
    last_heartbeat_at: datetime | None
    created_at: datetime
    updated_at: datetime
    secret: str | None = None
    """The secret that signs pushes. Present only in the response to the request that creates it."""


class Beaten(msgspec.Struct, frozen=True):
    """The response to a service's heartbeat."""

    services: int
    last_heartbeat_at: datetime


# -- invocations -------------------------------------------------------------------------------------------------


class Invocation(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    service_id: str
    application_id: str
    source_session_id: str | None
    target_session_id: str | None
    idempotency_key: str
    method: str
    params: object
    metadata: dict[str, object]
    status: InvocationStatus
    attempts: int
    max_attempts: int
    timeout_ms: int
    retry_policy: dict[str, object]
    result: object
    error: object
    available_at: datetime
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def is_over(self) -> bool:
        return self.status in FINAL_STATUSES

    def result_as(self, kind: type[T]) -> T:
        """The result, converted to this type. Raises `msgspec.ValidationError` if it does not match."""
        return msgspec.convert(self.result, kind)


class Lease(Invocation, frozen=True, kw_only=True):
    """A claimed invocation. Only the holder of the token may report on this attempt."""

    attempt: int
    attempt_token: str
    lease_expires_at: datetime


class ItemProblem(msgspec.Struct, frozen=True):
    """Why one item of a bulk call was refused."""

    error: str = "unknown"
    detail: str = ""
    status: int | None = None

    @property
    def is_temporary(self) -> bool:
        """Whether the problem is temporary: nothing was decided, and the item can be sent again."""
        return self.status == Unavailable.status


class Item(msgspec.Struct, frozen=True):
    """The result of one item of a bulk call."""

    id: str
    status: str | None = None
    cancel: bool = False
    lease_expires_at: datetime | None = None
    error: ItemProblem | None = None


class Token(msgspec.Struct, frozen=True):
    """Identifies an attempt."""

    id: str
    attempt_token: str


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of an attempt."""

    id: str
    attempt_token: str
    status: Literal["succeeded", "failed", "canceled"]
    result: msgspec.Raw | None = None
    error: dict[str, object] | None = None
    retryable: bool = True


# -- delegations -------------------------------------------------------------------------------------------------


class Delegation(msgspec.Struct, frozen=True):
    """An edge by which one session lends authority to another."""

    id: str
    zone_id: str
    source_session_id: str
    target_session_id: str
    issuer_application_id: str
    receiver_application_id: str
    scopes: list[str]
    resource_id: str | None
    resources: list[str] | None
    """The resources that the authority is limited to. None: all."""
    max_hops: int | None
    constraints_json: dict[str, object]
    parent_edge_id: str | None
    status: DelegationStatus
    expires_at: datetime
    edge_version: int
    created_by: str
    ended_at: datetime | None
    ended_reason: str | None
    created_at: datetime
    updated_at: datetime


class Revoked(msgspec.Struct, frozen=True):
    revoked_edges: int
    affected_sessions: int
    terminated_agents: int


class Authority(msgspec.Struct, frozen=True):
    """A session's current authority, and the edges that grant it."""

    session_id: str
    zone_id: str
    epoch: int
    scopes: list[str]
    resources: list[str] | None
    edges: list[Delegation]
    why_none: str | None = None


# -- the log -----------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """One event in the log."""

    pos: int
    id: str
    zone_id: str
    type: str
    subject: str
    actor: str
    data: dict[str, object]
    at: datetime
    from_state: str | None = msgspec.field(default=None, name="from")
    to_state: str | None = msgspec.field(default=None, name="to")
    trace: str | None = None


class EventPage(msgspec.Struct, frozen=True):
    items: list[Event]
    next_after: int | None = None
