"""Commands, rows and views of sessions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.paging import PageFilter, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.core.views import JsonText

ShortText = Annotated[str, Meta(min_length=1, max_length=256)]


class State(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINATED = "terminated"


class Verb(StrEnum):
    SUSPEND = "suspend"
    RESUME = "resume"
    TERMINATE = "terminate"


class SessionSettings(msgspec.Struct, frozen=True):
    ttl_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="interval of the sweep that terminates expired sessions")
    ] = 60_000
    ttl_sweep_batch: Annotated[int, Meta(ge=1, le=10_000, description="expired sessions terminated per pass")] = 500
    orphan_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="interval of the sweep that terminates orphaned sessions")
    ] = 60_000
    cascade_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="interval of the sweep that finishes interrupted cascades")
    ] = 3_000
    reconcile_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="interval of the sweep that repairs session counts")
    ] = 300_000
    session_retention_days: Annotated[
        float, Meta(gt=1, le=36_500, description="days to keep terminated sessions and idempotency keys")
    ] = 30.0
    cascade_chunk: Annotated[
        int, Meta(ge=1, le=10_000, description="maximum sessions terminated in one transaction")
    ] = 1_000


# -- commands ----------------------------------------------------------------------------------------------------


class SpawnBody(msgspec.Struct, frozen=True):
    application_id: Annotated[PathId, Meta(description="application that owns the session")]
    session_sid: (
        Annotated[str, Meta(min_length=1, max_length=256, description="default: the `sid` of the token")] | None
    ) = None
    parent_id: Annotated[PathId, Meta(description="parent session; default: the session starts a new tree")] | None = (
        None
    )
    kind: Annotated[
        Literal["instance", "service", "ephemeral"], Meta(description="stored as given; the server does not use it")
    ] = "instance"
    capabilities: Annotated[
        list[ShortText], Meta(max_length=256, description="declared capabilities of the session")
    ] = []
    ttl_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="time to live; the session never outlives its parent")
    ] = 3_600
    metadata: Annotated[dict[str, object], Meta(description="any JSON object; stored and returned as given")] = {}
    idempotency_key: (
        Annotated[str, Meta(description="like the Idempotency-Key header; if both are given, they must be equal")]
        | None
    ) = None


class Spawn(msgspec.Struct, frozen=True):
    """Spawn a session. The id is generated before the batch, so that a retried batch uses the same id."""

    id: str
    zone_id: str
    caller: Caller
    application_id: str
    session_sid: str
    parent_id: str | None = None
    kind: str = "instance"
    capabilities: str = "[]"
    metadata: str = "{}"
    ttl_seconds: int = 3_600
    key: str | None = None
    """The idempotency key."""
    digest: str = ""
    """The digest of the request. A repeat with the same key must have the same digest."""
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class Terminate(msgspec.Struct, frozen=True):
    """Terminate a session and its subtree."""

    zone_id: str
    session_id: str
    reason: str
    caller: Caller | None = None
    """None for a sweep, or for a component that has already checked the permission."""
    trace: str | None = None
    system_actor: str = "sweep"
    """The actor in the event if there is no caller."""
    also_terminate: tuple[str, ...] = ()
    """Further sessions to terminate with their subtrees, in the same cascade."""

    @property
    def actor(self) -> str:
        return self.caller.subject if self.caller else self.system_actor

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class StopZone(msgspec.Struct, frozen=True):
    """Freeze a zone and terminate all its sessions. `ends_zone` also ends the zone."""

    zone_id: str
    reason: str
    caller: Caller
    ends_zone: bool = False
    trace: str | None = None

    session_id: None = None

    @property
    def actor(self) -> str:
        return self.caller.subject

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class FinishCascade(msgspec.Struct, frozen=True):
    """Run one more chunk of a cascade."""

    zone_id: str
    cascade_id: str


class RepairCounts(msgspec.Struct, frozen=True):
    """Recompute the counts of a zone from its sessions."""

    zone_id: str


class Suspend(msgspec.Struct, frozen=True):
    """Set (suspend) or clear (resume) the suspend flag of a session."""

    zone_id: str
    session_id: str
    verb: Literal[Verb.SUSPEND, Verb.RESUME]
    caller: Caller
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class SessionRef(msgspec.Struct, frozen=True):
    zone_id: str
    session_id: str
    bearer: Bearer | None = None


class SessionFilter(PageFilter, frozen=True, kw_only=True):
    status: State | None = None
    application_id: str | None = None
    parent_id: str | None = None
    root_id: str | None = None


# -- rows --------------------------------------------------------------------------------------------------------


class Session(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_sessions`, in the order of the `columns` lines in `queries.sql`."""

    id: str
    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_sid: str
    kind: str
    status: State
    depth: int
    capabilities: JsonText
    metadata: JsonText
    ttl_seconds: int
    limits: JsonText
    spawned_at: Millis
    expires_at: Millis
    suspended_at: Millis | None
    terminated_at: Millis | None
    termination_reason: str | None
    created_at: Millis
    updated_at: Millis
    held: int
    """The suspend flag. The session is suspended while it or an ancestor has the flag."""
    cascade_id: str | None
    """The cascade that marked the session, if its termination took several transactions."""


class TreeNode(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a session that terminating or suspending a tree needs."""

    zone_id: str
    id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_sid: str
    status: State
    expires_at: Millis
    terminated_at: Millis | None
    cascade_id: str | None
    held: int


class Cascade(msgspec.Struct, frozen=True, array_like=True):
    """A row of `cascades`: a termination that takes several transactions."""

    zone_id: str
    id: str
    target_id: str | None
    """None for a whole zone."""
    reason: str
    actor: str
    trace: str | None
    stamped: int
    """Sessions that were marked."""
    settled: int
    """Marked sessions that chunks have terminated so far."""
    started_at: Millis
    finished_at: Millis | None


class Spawned(msgspec.Struct, frozen=True):
    session: Session
    created: bool
    """False if an earlier request with the same idempotency key created it."""


class TerminateResult(msgspec.Struct, frozen=True):
    """The result of a termination. With a `cascade_id`, chunks must still terminate the marked sessions."""

    zone_id: str
    session_id: str | None
    reason: str
    stopped: int
    cascade_id: str | None = None
    joined: bool = False
    """Another request had started the cascade."""


class FinishCascadeResult(msgspec.Struct, frozen=True):
    finished: bool


class RepairCountsResult(msgspec.Struct, frozen=True):
    repaired: int
    """Counts that were wrong."""


class SuspendResult(msgspec.Struct, frozen=True):
    changed: int
    """Sessions whose state changed."""


# -- views -------------------------------------------------------------------------------------------------------


class SessionView(msgspec.Struct, frozen=True):
    id: str
    agent_session_id: str
    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_sid: str
    kind: str
    status: str
    depth: int
    capabilities: msgspec.Raw
    metadata: msgspec.Raw
    ttl_seconds: int
    spawned_at: str
    expires_at: str
    suspended_at: str | None
    terminated_at: str | None
    termination_reason: str | None
    created_at: str
    updated_at: str
    limits: msgspec.Raw


class SessionTree(msgspec.Struct, frozen=True):
    """A subtree, parents before their children."""

    root: str
    items: list[SessionView]


class Suspended(msgspec.Struct, frozen=True):
    suspended: int


class Resumed(msgspec.Struct, frozen=True):
    resumed: int


class RemainingSession(msgspec.Struct, frozen=True):
    """A session that a termination did not terminate."""

    session_id: str
    reason: str


class Receipt(msgspec.Struct, frozen=True):
    """The result of a termination, counted from the rows after it."""

    zone_id: str
    session_id: Annotated[str, Meta(description="null for a whole zone")] | None
    cascade_id: Annotated[str, Meta(description="null if one transaction was enough")] | None
    reason: str
    asked: Annotated[int, Meta(description="sessions to terminate")]
    stopped: Annotated[int, Meta(description="terminated by this request")]
    already_stopped: Annotated[int, Meta(description="terminated before")]
    duration_ms: int
    joined: Annotated[bool, Meta(description="whether another request had started the termination")]
    left: Annotated[list[RemainingSession], Meta(description="not terminated, with the reason; at most 100")]


class BoundUse(msgspec.Struct, frozen=True):
    """One limit that a spawn is checked against."""

    bound: str
    limit: int
    used: int
    left: int
    counts: Annotated[str, Meta(description="what is counted")]
    frees: Annotated[str, Meta(description="what frees it")]


class SpawnRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason why a spawn would be refused now."""

    error: str
    detail: str
    bound: str | None = None
    limit: int | None = None
    used: int | None = None
    frees: str | None = None


class SpawnExplanation(msgspec.Struct, frozen=True):
    """Whether a spawn would be admitted now. Another spawn may be admitted first."""

    zone_id: str
    application_id: str
    parent_id: str | None
    admitted: Annotated[bool, Meta(description="whether it would be admitted now")]
    refused_by: Annotated[
        list[SpawnRefusal], Meta(description="all reasons for a refusal; a spawn would return the first")
    ]
    bounds: list[BoundUse]


class SessionExplanation(msgspec.Struct, frozen=True):
    """Why a session is in its state, and whether a spawn under it would be admitted."""

    session: SessionView
    why: Annotated[list[str], Meta(description="sentences, the most important first")]
    held_by: Annotated[list[str], Meta(description="sessions whose flag suspends it, nearest first")]
    ended_by: (
        Annotated[dict[str, object], Meta(description="the event that terminated it: actor, cause and reason")] | None
    )
    spawn: Annotated[SpawnExplanation, Meta(description="a spawn of the same application under this session")]


class ExplainSpawnQuery(msgspec.Struct, frozen=True):
    application_id: PathId
    parent_id: PathId | None = None


class ListQuery(PageQuery, frozen=True):
    status: State | None = None
    application_id: PathId | None = None
    parent_id: PathId | None = None
    root_id: PathId | None = None


class ChildrenQuery(PageQuery, frozen=True):
    status: State | None = None


class StopQuery(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(min_length=1, max_length=256)] = "requested"


class TerminateQuery(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(min_length=1, max_length=256)] = "requested"
    receipt: bool = False
