"""What is asked for, what is stored, and what is shown of sessions: three different types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis
from quarterdeck.core.wire import Caller, PathId

Word = Annotated[str, Meta(min_length=1, max_length=256)]


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
    ttl_sweep_batch: Annotated[
        int, Meta(ge=1, le=10_000, description="expired sessions ended in one pass")
    ] = 500


# -- asked for ---------------------------------------------------------------------------------------------------


class SpawnBody(msgspec.Struct, frozen=True):
    application_id: Annotated[PathId, Meta(description="the application that will own the session")]
    session_sid: (
        Annotated[str, Meta(min_length=1, max_length=256, description="default: the sid of the token")] | None
    ) = None
    parent_id: (
        Annotated[PathId, Meta(description="spawn under this session; without it, a new tree")] | None
    ) = None
    kind: Annotated[
        Literal["instance", "service", "ephemeral"], Meta(description="kept as given, for whoever reads it")
    ] = "instance"
    capabilities: Annotated[
        list[Word], Meta(max_length=256, description="what the session says it can do")
    ] = []
    ttl_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="how long it may live; never longer than its parent")
    ] = 3_600
    metadata: Annotated[dict[str, object], Meta(description="anything; kept and shown as given")] = {}
    idempotency_key: (
        Annotated[str, Meta(description="as the Idempotency-Key header; if both are given they must agree")]
        | None
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


class Terminate(msgspec.Struct, frozen=True):
    zone_id: str
    session_id: str
    reason: str
    caller: Caller | None = None
    """None: a sweep, which answers to nobody."""
    trace: str | None = None

    @property
    def actor(self) -> str:
        return self.caller.subject if self.caller else "sweep"

    @property
    def bearer(self) -> str | None:
        return self.caller.session_id if self.caller else None


class SessionRef(msgspec.Struct, frozen=True):
    zone_id: str
    session_id: str
    bearer: str | None = None


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions of a zone are wanted, newest first."""

    zone_id: str
    limit: int
    before: str | None = None
    status: State | None = None
    application_id: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    bearer: str | None = None


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


class Spawned(msgspec.Struct, frozen=True):
    """The outcome of an admitted spawn: the session, and whether this request made it."""

    session: Session
    created: bool


class Receipt(msgspec.Struct, frozen=True):
    """What became of a termination."""

    session_id: str
    reason: str
    asked: int
    stopped: int
    already_stopped: int
    duration_ms: int = 0
    left: list[str] = []


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


class TerminateQuery(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(min_length=1, max_length=256)] = "requested"
    receipt: bool = False
