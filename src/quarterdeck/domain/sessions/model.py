"""What is asked for, what is stored, and what is shown of sessions: three different types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.routing import PathId

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
    """What this room can be told."""

    ttl_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often expired sessions are ended")
    ] = 60_000
    ttl_sweep_batch: Annotated[int, Meta(ge=1, le=10_000, description="expired sessions ended in one pass")] = 500
    orphan_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often sessions without a living parent are looked for")
    ] = 60_000
    cascade_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often endings that were left half-way are finished")
    ] = 3_000
    reconcile_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often counts are compared with what they count")
    ] = 300_000
    session_retention_days: Annotated[
        float, Meta(gt=1, le=36_500, description="how long ended sessions and idempotency keys are kept")
    ] = 30.0
    cascade_chunk: Annotated[int, Meta(ge=1, le=10_000, description="sessions settled in one transaction at most")] = (
        1_000
    )


# -- asked for ---------------------------------------------------------------------------------------------------


class SpawnBody(msgspec.Struct, frozen=True):
    application_id: Annotated[PathId, Meta(description="the application that will own the session")]
    session_sid: (
        Annotated[str, Meta(min_length=1, max_length=256, description="default: the sid of the token")] | None
    ) = None
    parent_id: Annotated[PathId, Meta(description="spawn under this session; without it, a new tree")] | None = None
    kind: Annotated[
        Literal["instance", "service", "ephemeral"], Meta(description="kept as given, for whoever reads it")
    ] = "instance"
    capabilities: Annotated[list[ShortText], Meta(max_length=256, description="what the session says it can do")] = []
    ttl_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="how long it may live; never longer than its parent")
    ] = 3_600
    metadata: Annotated[dict[str, object], Meta(description="anything; kept and shown as given")] = {}
    idempotency_key: (
        Annotated[str, Meta(description="as the Idempotency-Key header; if both are given they must agree")] | None
    ) = None


class Spawn(msgspec.Struct, frozen=True):
    """A spawn on its way through the lane. The id is made before, so that a batch tried again asks for the same."""

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
    digest: str = ""
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class Terminate(msgspec.Struct, frozen=True):
    """Asked for: the end of a session and of everything under it."""

    zone_id: str
    session_id: str
    reason: str
    caller: Caller | None = None
    """None: a sweep, which answers to nobody, or a room that has judged already whether it may be."""
    trace: str | None = None
    system_actor: str = "sweep"
    """Who is told to have ended it, where there is no caller to be judged."""
    also_terminate: tuple[str, ...] = ()
    """Others that end because it does, with everything under them: one ending, however many they are."""

    @property
    def actor(self) -> str:
        return self.caller.subject if self.caller else self.system_actor

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class StopZone(msgspec.Struct, frozen=True):
    """Asked for: the end of every session of a zone, and of the zone itself if it `ends`."""

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
    """Asked for: one more chunk on the way to the end of this cascade."""

    zone_id: str
    cascade_id: str


class RepairCounts(msgspec.Struct, frozen=True):
    """Asked for: a zone's counts, set right by its rows."""

    zone_id: str


class Suspend(msgspec.Struct, frozen=True):
    """Asked for: the flag of a suspension, set (suspend) or cleared (resume)."""

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


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions of a zone are wanted, newest first."""

    zone_id: str
    limit: int
    before: str | None = None
    status: State | None = None
    application_id: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    bearer: Bearer | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Session(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_sessions`, in the order of the `columns` lines of `queries.sql`."""

    id: str
    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_sid: str
    kind: str
    status: State
    depth: int
    capabilities: str
    metadata: str
    ttl_seconds: int
    limits: str
    spawned_at: Millis
    expires_at: Millis
    suspended_at: Millis | None
    terminated_at: Millis | None
    termination_reason: str | None
    created_at: Millis
    updated_at: Millis
    held: int
    """The flag of a suspension. The session is suspended while it or an ancestor bears one."""
    cascade_id: str | None
    """The ending it was stamped by, if that was one of many transactions."""


class TreeNode(msgspec.Struct, frozen=True, array_like=True):
    """What the end or the suspension of a tree must know of each session in it."""

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
    """A row of `cascades`: an ending that takes more than one transaction."""

    zone_id: str
    id: str
    target_id: str | None
    """None: the whole zone."""
    reason: str
    actor: str
    trace: str | None
    stamped: int
    settled: int
    started_at: Millis
    finished_at: Millis | None


class Spawned(msgspec.Struct, frozen=True):
    """The outcome of an admitted spawn: the session, and whether this request made it."""

    session: Session
    created: bool


class TerminateResult(msgspec.Struct, frozen=True):
    """The outcome of an ending. With a `cascade_id` all of it reads as terminated, and is still to be settled."""

    zone_id: str
    session_id: str | None
    reason: str
    stopped: int
    cascade_id: str | None = None
    joined: bool = False
    """Somebody else had begun it."""


class FinishCascadeResult(msgspec.Struct, frozen=True):
    finished: bool


class RepairCountsResult(msgspec.Struct, frozen=True):
    """How many counts were wrong, and are not any more."""

    repaired: int


class SuspendResult(msgspec.Struct, frozen=True):
    """How many sessions fell asleep or woke."""

    changed: int


# -- shown -------------------------------------------------------------------------------------------------------


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


class SessionList(msgspec.Struct, frozen=True):
    items: list[SessionView]
    next_cursor: str | None


class SessionTree(msgspec.Struct, frozen=True):
    """A whole subtree, parents before their children."""

    root: str
    items: list[SessionView]


class Suspended(msgspec.Struct, frozen=True):
    suspended: int


class Resumed(msgspec.Struct, frozen=True):
    resumed: int


class RemainingSession(msgspec.Struct, frozen=True):
    """A session that an ending has not ended."""

    session_id: str
    reason: str


class Receipt(msgspec.Struct, frozen=True):
    """What became of an ending, counted from the rows after it."""

    zone_id: str
    session_id: Annotated[str, Meta(description="null: the whole zone")] | None
    cascade_id: Annotated[str, Meta(description="null: it took one transaction")] | None
    reason: str
    asked: Annotated[int, Meta(description="sessions it was about")]
    stopped: Annotated[int, Meta(description="ended by it")]
    already_stopped: Annotated[int, Meta(description="had ended before")]
    duration_ms: int
    joined: Annotated[bool, Meta(description="somebody else had begun it")]
    left: Annotated[list[RemainingSession], Meta(description="not ended, with the reason; at most 100 are named")]


class BoundUse(msgspec.Struct, frozen=True):
    """One bound a spawn is judged by."""

    bound: str
    limit: int
    used: int
    left: int
    counts: Annotated[str, Meta(description="what is counted")]
    frees: Annotated[str, Meta(description="what would free it")]


class SpawnRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal that a spawn would meet now."""

    error: str
    detail: str
    bound: str | None = None
    limit: int | None = None
    used: int | None = None
    frees: str | None = None


class SpawnExplanation(msgspec.Struct, frozen=True):
    """What a spawn would meet now. Not a promise: another spawn may come first."""

    zone_id: str
    application_id: str
    parent_id: str | None
    admitted: Annotated[bool, Meta(description="whether it would be admitted now")]
    refused_by: Annotated[
        list[SpawnRefusal], Meta(description="everything that would refuse it, the one it would be told first")
    ]
    bounds: list[BoundUse]


class SessionExplanation(msgspec.Struct, frozen=True):
    """Why a session is in the state it is in, and what a spawn under it would meet."""

    session: SessionView
    why: Annotated[list[str], Meta(description="sentences, the most telling first")]
    held_by: Annotated[list[str], Meta(description="sessions whose flag keeps it suspended, nearest first")]
    ended_by: Annotated[dict[str, object], Meta(description="who ended it, and with what")] | None
    spawn: Annotated[SpawnExplanation, Meta(description="of the same application, under this session")]


class ExplainSpawnQuery(msgspec.Struct, frozen=True):
    application_id: PathId
    parent_id: PathId | None = None


class ListQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    status: State | None = None
    application_id: PathId | None = None
    parent_id: PathId | None = None
    root_id: PathId | None = None


class ChildrenQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    status: State | None = None


class StopQuery(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(min_length=1, max_length=256)] = "requested"


class TerminateQuery(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(min_length=1, max_length=256)] = "requested"
    receipt: bool = False
