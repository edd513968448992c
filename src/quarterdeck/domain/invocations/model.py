"""What is asked for, what is stored, and what is shown of invocations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.routing import PathId

Ref = tuple[str, str]
"""(zone, invocation)"""
ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
Reason = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(min_length=1, max_length=128)]
BULK_MAX = 100


class State(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"
    DEAD = "dead"


class Verb(StrEnum):
    BEGIN = "begin"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    TIME_OUT = "time_out"
    EXHAUST = "exhaust"
    CANCEL = "cancel"


class AttemptOrigin(StrEnum):
    """How an attempt began, which decides who may speak of it."""

    CLAIM = "claim"
    START = "start"
    PUSH = "push"


class OwnerKind(StrEnum):
    """Whom calls belong to, and go with."""

    SESSION = "session"
    SERVICE = "service"


class InvocationSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    lease_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="how long a claimed invocation is leased to its holder")
    ] = 30_000
    claim_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="how long a claim may wait for work at most")
    ] = 60_000
    claim_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="how often waiting claims look by themselves if no wake comes")
    ] = 1_000
    deadline_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often deadlines and leases that passed are looked for")
    ] = 5_000
    invocation_orphan_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often invocations whose session is gone are looked for")
    ] = 60_000
    invocation_settle_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400_000,
            description="how often calls are looked for that were too many to be settled with their session or service",
        ),
    ] = 5_000
    invocation_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long ended invocations are kept")
    ] = 30.0
    push_concurrency: Annotated[int, Meta(ge=1, le=100_000, description="pushes under way at once in one server")] = 256
    push_zone_concurrency: Annotated[int, Meta(ge=1, le=100_000, description="of which for one zone at most")] = 64
    push_service_concurrency: Annotated[int, Meta(ge=1, le=100_000, description="of which to one service at most")] = 16


# -- bodies ------------------------------------------------------------------------------------------------------


class RetryPolicy(msgspec.Struct, frozen=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    backoff_ms: Annotated[int, Meta(ge=0, le=300_000)] = 1_000
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_backoff_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 300_000


class EnqueueBody(msgspec.Struct, frozen=True):
    service_id: Annotated[PathId, Meta(description="the service that is called")]
    method: Annotated[ShortText, Meta(description="what of it is called")]
    idempotency_key: Annotated[str, Meta(description="required, here or as the Idempotency-Key header")] | None = None
    params: Annotated[object, Meta(description="anything; handed to the worker as given")] = None
    metadata: Annotated[dict[str, object], Meta(description="anything; kept and shown as given")] = {}
    source_session_id: (
        Annotated[PathId, Meta(description="who calls; default: the session the token speaks for")] | None
    ) = None
    target_session_id: Annotated[PathId, Meta(description="the session it is for")] | None = None
    timeout_ms: Annotated[int, Meta(ge=1, le=900_000, description="for one attempt")] = 30_000
    retry_policy: RetryPolicy = RetryPolicy()


class ClaimInvocationsBody(msgspec.Struct, frozen=True):
    max: Annotated[int, Meta(ge=1, le=BULK_MAX, description="how many at most")] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=300_000, description="how long to wait for work if there is none")] = 0
    claim_id: (
        Annotated[ShortText, Meta(description="the same id gives the same leases again, while they run")] | None
    ) = None


class StartInvocationBody(msgspec.Struct, frozen=True):
    claim_id: (
        Annotated[ShortText, Meta(description="the same id gives the same attempt again, while it runs")] | None
    ) = None


class CompleteInvocationBody(msgspec.Struct, frozen=True):
    status: Literal["succeeded", "failed", "canceled"]
    result: object = None
    error: object = None
    retryable: Annotated[bool, Meta(description="whether a failed attempt may be followed by another")] = True
    attempt_token: Token | None = None


class CancelInvocationBody(msgspec.Struct, frozen=True):
    reason: Reason = "requested"


class InvocationHeartbeatBody(msgspec.Struct, frozen=True):
    attempt_token: Token | None = None


class CompleteInvocationItem(msgspec.Struct, frozen=True):
    id: PathId
    status: Literal["succeeded", "failed", "canceled"]
    attempt_token: Token
    result: object = None
    error: object = None
    retryable: bool = True


class TokenItem(msgspec.Struct, frozen=True):
    id: PathId
    attempt_token: Token


class CompleteInvocationsBody(msgspec.Struct, frozen=True):
    items: Annotated[list[CompleteInvocationItem], Meta(min_length=1, max_length=BULK_MAX)]


class TokensBody(msgspec.Struct, frozen=True):
    items: Annotated[list[TokenItem], Meta(min_length=1, max_length=BULK_MAX)]


class ListInvocationsQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    status: State | None = None
    service_id: PathId | None = None
    source_session_id: PathId | None = None
    target_session_id: PathId | None = None


# -- asked for ---------------------------------------------------------------------------------------------------


class Enqueue(Command, frozen=True, kw_only=True):
    id: str
    service_id: str
    idempotency_key: str
    request_digest: str
    method: str
    params: str
    metadata: str
    source_session_id: str | None
    target_session_id: str | None
    timeout_ms: int
    retry_policy: RetryPolicy


class Claim(Command, frozen=True, kw_only=True):
    service_id: str
    limit: int
    attempt_tokens: tuple[str, ...]
    """One for each invocation it may get, made before: what is tried again asks for the same."""
    claim_id: str | None = None
    is_push: bool = False
    """By the server itself, for a service that is pushed to."""
    waiter: object = None
    """Who is to be told later if there is nothing now."""


class Start(Command, frozen=True, kw_only=True):
    id: str
    attempt_token: str
    claim_id: str | None = None
    """Of the request: the same one, repeated, is given the same attempt."""


class Complete(Command, frozen=True, kw_only=True):
    id: str
    status: Literal["succeeded", "failed", "canceled"]
    result: str | None
    error: str | None
    retryable: bool
    attempt_token: str | None


class Heartbeat(Command, frozen=True, kw_only=True):
    id: str
    attempt_token: str | None


class Cancel(Command, frozen=True, kw_only=True):
    id: str
    reason: str


class Release(Command, frozen=True, kw_only=True):
    """Leases that never reached whoever claimed them, or that a worker gives back."""

    id: str
    attempt_token: str
    lease_expires_at: Millis | None = None
    """As it was given, by the server that could not deliver it. Whoever was given it again, or keeps it, has another by
    then, and loses nothing. None: the holder itself gives it back, whatever its lease is by now."""


class CheckOverdue(Command, frozen=True, kw_only=True):
    """By a sweep: something about this one has passed, or its session is gone."""

    id: str


class ProcessBacklog(msgspec.Struct, frozen=True):
    """By a sweep: go on with the calls of a session or a service, which were too many for one transaction."""

    zone_id: str
    kind: OwnerKind
    owner_id: str


class BacklogResult(msgspec.Struct, frozen=True):
    is_finished: bool


InvocationCommand = Enqueue | Claim | Start | Complete | Heartbeat | Cancel | Release | CheckOverdue


class InvocationRef(msgspec.Struct, frozen=True):
    zone_id: str
    id: str
    bearer: Bearer | None = None


class InvocationFilter(msgspec.Struct, frozen=True):
    zone_id: str
    limit: int
    before: str | None = None
    status: State | None = None
    service_id: str | None = None
    source_session_id: str | None = None
    target_session_id: str | None = None
    bearer: Bearer | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_invocations`, in the order of the `columns` lines of `queries.sql`."""

    id: str
    zone_id: str
    service_id: str
    application_id: str
    """The service's."""
    source_session_id: str | None
    target_session_id: str | None
    idempotency_key: str
    digest: str
    method: str
    params_json: str
    metadata_json: str
    status: State
    attempts: int
    max_attempts: int
    timeout_ms: int
    retry_policy_json: str
    result_json: str | None
    error_json: str | None
    parked: int
    """Put aside because a session of it sleeps, so that those who claim need not pass it by. A help, not the truth:
    whether one sleeps is asked when it is handed out (`Standing`)."""
    available_at: Millis
    deadline_at: Millis | None
    lease_expires_at: Millis | None
    attempt_token: str | None
    """Of the last attempt that began."""
    begun_by: AttemptOrigin | None
    holder: str | None
    claim_id: str | None
    cancel_requested_at: Millis | None
    cancel_reason: str | None
    invoker: str
    """The client that asked for it."""
    trace: str | None
    started_at: Millis | None
    completed_at: Millis | None
    created_at: Millis
    updated_at: Millis


class InvocationContext(msgspec.Struct, frozen=True, array_like=True):
    """What of its sessions and its service decides about an invocation, read with its row."""

    sessions_expire_at: Millis | None = None
    """Until when its sessions live; 0: one of them has ended. None: it belongs to none."""
    is_suspended: int = 0
    """Whether one of them is suspended."""
    service_gone: int = 0
    """Whether its service was unregistered since it was called, and may have been registered again."""


class OpenInvocation(msgspec.Struct, frozen=True, array_like=True):
    """What of an invocation that waits or runs its settling needs: never what was said in it, which may be large."""

    id: str
    zone_id: str
    service_id: str
    application_id: str
    source_session_id: str | None
    target_session_id: str | None
    method: str
    status: State
    attempts: int


class Backlog(msgspec.Struct, frozen=True, array_like=True):
    """A row of `invocation_backlogs`: whose calls were too many to be settled at once."""

    zone_id: str
    kind: OwnerKind
    owner_id: str
    since: Millis


class EnqueuedInvocation(msgspec.Struct, frozen=True):
    invocation: Invocation
    created: bool


class ClaimedInvocations(msgspec.Struct, frozen=True):
    """What a claim was given."""

    items: tuple[Invocation, ...]


InvocationResult = EnqueuedInvocation | ClaimedInvocations | Invocation


# -- shown -------------------------------------------------------------------------------------------------------


class InvocationView(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    service_id: str
    application_id: str
    source_session_id: str | None
    target_session_id: str | None
    idempotency_key: str
    method: str
    params: msgspec.Raw
    metadata: msgspec.Raw
    status: str
    attempts: int
    max_attempts: int
    timeout_ms: int
    retry_policy: msgspec.Raw
    result: msgspec.Raw
    error: msgspec.Raw
    available_at: str
    deadline_at: str | None
    cancel_requested_at: str | None
    cancel_reason: str | None
    started_at: str | None
    completed_at: str | None
    created_at: str
    updated_at: str


class LeaseView(InvocationView, frozen=True, kw_only=True):
    """An invocation as its holder sees it."""

    attempt: int
    attempt_token: str
    lease_expires_at: str


class PushPayload(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation as the endpoint that is pushed to sees it."""

    id: str
    zone_id: str
    service_id: str
    method: str
    params: msgspec.Raw
    metadata: msgspec.Raw
    attempt: int
    deadline_at: str | None
    source_session_id: str | None
    target_session_id: str | None


class InvocationList(msgspec.Struct, frozen=True):
    items: list[InvocationView]
    next_cursor: str | None


class LeaseList(msgspec.Struct, frozen=True):
    items: list[LeaseView]


class InvocationHeartbeatView(msgspec.Struct, frozen=True):
    cancel: Annotated[bool, Meta(description="whether its cancellation was asked for")]
    lease_expires_at: str


class ItemView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one item of many."""

    id: str
    status: str | None = None
    cancel: bool | None = None
    lease_expires_at: str | None = None
    error: dict[str, object] | None = None


class ItemList(msgspec.Struct, frozen=True):
    items: list[ItemView]


class InvocationExplanation(msgspec.Struct, frozen=True):
    """Why an invocation is in the state it is in, and what would move it."""

    invocation: InvocationView
    why: Annotated[list[str], Meta(description="sentences, the most telling first")]
    next: Annotated[list[str], Meta(description="what would move it")]
