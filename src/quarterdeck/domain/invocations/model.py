"""The structs of invocations: settings, request bodies, commands, stored rows and responses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Generic, Literal

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command, R_co
from quarterdeck.core.ids import Ref
from quarterdeck.core.paging import PageFilter, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.core.views import JsonText

ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
Reason = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(min_length=1, max_length=128)]
BULK_MAX = 100
"""Maximum items in a bulk request, and maximum invocations per claim."""


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
    """How an attempt was started. Determines the first lease, and whether a report may omit the attempt's token."""

    CLAIM = "claim"
    START = "start"
    PUSH = "push"


class OwnerKind(StrEnum):
    """The kind of object that owns invocations. When the object ends, its open invocations are canceled."""

    SESSION = "session"
    SERVICE = "service"


class InvocationSettings(msgspec.Struct, frozen=True):
    lease_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="how long a claimed invocation is leased to its holder")
    ] = 30_000
    claim_wait_max_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="maximum time that a claim may wait for work")
    ] = 60_000
    claim_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="how often waiting claims and pushes check for work without a wake-up")
    ] = 1_000
    deadline_sweep_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400_000,
            description="how often the server looks for attempts whose deadline has passed or lease has expired",
        ),
    ] = 5_000
    invocation_orphan_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400_000,
            description="how often the server looks for open invocations of ended or deleted sessions",
        ),
    ] = 60_000
    invocation_settle_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400_000,
            description="how often the remaining invocations of ended sessions and services are canceled",
        ),
    ] = 5_000
    invocation_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long ended invocations are kept")
    ] = 30.0
    push_concurrency: Annotated[int, Meta(ge=1, le=100_000, description="maximum concurrent pushes in one server")] = (
        256
    )
    push_zone_concurrency: Annotated[
        int, Meta(ge=1, le=100_000, description="maximum concurrent pushes for one zone in one server")
    ] = 64
    push_service_concurrency: Annotated[
        int, Meta(ge=1, le=100_000, description="maximum concurrent pushes to one service in one server")
    ] = 16


# -- bodies ------------------------------------------------------------------------------------------------------


class RetryPolicy(msgspec.Struct, frozen=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    backoff_ms: Annotated[int, Meta(ge=0, le=300_000)] = 1_000
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_backoff_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 300_000


class EnqueueBody(msgspec.Struct, frozen=True):
    service_id: Annotated[PathId, Meta(description="the service to call")]
    method: Annotated[ShortText, Meta(description="the method to call")]
    idempotency_key: Annotated[str, Meta(description="required, here or as the Idempotency-Key header")] | None = None
    params: Annotated[object, Meta(description="any JSON; passed to the worker unchanged")] = None
    metadata: Annotated[dict[str, object], Meta(description="any JSON object; stored and returned unchanged")] = {}
    source_session_id: (
        Annotated[PathId, Meta(description="the calling session; default: the session that the token acts for")] | None
    ) = None
    target_session_id: Annotated[PathId, Meta(description="the session that the invocation is for")] | None = None
    timeout_ms: Annotated[int, Meta(ge=1, le=900_000, description="maximum duration of one attempt")] = 30_000
    retry_policy: RetryPolicy = RetryPolicy()


class ClaimInvocationsBody(msgspec.Struct, frozen=True):
    max: Annotated[int, Meta(ge=1, le=BULK_MAX, description="maximum number of invocations")] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=300_000, description="how long to wait if there is no work")] = 0
    claim_id: (
        Annotated[
            ShortText, Meta(description="a repeat with the same id returns the same attempts while they are running")
        ]
        | None
    ) = None


class StartInvocationBody(msgspec.Struct, frozen=True):
    claim_id: (
        Annotated[ShortText, Meta(description="a repeat with the same id returns the same attempt while it is running")]
        | None
    ) = None


class CompleteInvocationBody(msgspec.Struct, frozen=True):
    status: Literal["succeeded", "failed", "canceled"]
    result: object = None
    error: object = None
    retryable: Annotated[bool, Meta(description="whether a failed attempt may be retried")] = True
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


class ListInvocationsQuery(PageQuery, frozen=True):
    status: State | None = None
    service_id: PathId | None = None
    source_session_id: PathId | None = None
    target_session_id: PathId | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_invocations`, in the order of the `columns` lines of `queries.sql`."""

    id: str
    zone_id: str
    service_id: str
    application_id: str
    """The application of the service."""
    source_session_id: str | None
    target_session_id: str | None
    idempotency_key: str
    digest: str
    method: str
    params_json: JsonText
    metadata_json: JsonText
    status: State
    attempts: int
    max_attempts: int
    timeout_ms: int
    retry_policy_json: JsonText
    result_json: JsonText | None
    error_json: JsonText | None
    parked: int
    """1 if one of its sessions is suspended, so that claims do not load the row. Only an optimization, which may be out
    of date: claims check the sessions themselves (`InvocationContext`)."""
    available_at: Millis
    deadline_at: Millis | None
    lease_expires_at: Millis | None
    attempt_token: str | None
    """Token of the latest attempt. Kept after a report or a timeout ends the attempt, to recognise a repeat."""
    begun_by: AttemptOrigin | None
    holder: str | None
    claim_id: str | None
    cancel_requested_at: Millis | None
    cancel_reason: str | None
    invoker: str
    """The client id of the caller that created the invocation."""
    trace: str | None
    started_at: Millis | None
    completed_at: Millis | None
    created_at: Millis
    updated_at: Millis

    @property
    def ref(self) -> Ref:
        return (self.zone_id, self.id)


class InvocationContext(msgspec.Struct, frozen=True, array_like=True):
    """The state of an invocation's sessions and service, read with its row."""

    sessions_expire_at: Millis | None = None
    """When the first of its sessions expires; 0 if one has ended or was deleted. None if it names no session."""
    is_suspended: int = 0
    """1 if one of its sessions is suspended."""
    service_gone: int = 0
    """1 if its service was unregistered after the invocation was created, even if it was registered again."""


class OpenInvocation(msgspec.Struct, frozen=True, array_like=True):
    """A pending or running invocation, with only the columns that canceling needs: the others may be large."""

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
    """A row of `invocation_backlogs`: a session or service with more open invocations than one transaction handles."""

    zone_id: str
    kind: OwnerKind
    owner_id: str
    since: Millis


class EnqueuedInvocation(msgspec.Struct, frozen=True):
    invocation: Invocation
    created: bool
    """False if an earlier request with the same idempotency key created it."""


class ClaimedInvocations(msgspec.Struct, frozen=True):
    items: tuple[Invocation, ...]


# -- commands ----------------------------------------------------------------------------------------------------


class BaseInvocationCommand(Command, Generic[R_co], frozen=True, kw_only=True):
    """A command of the lane `invocation`. `R_co` is the type of its result."""


class Enqueue(BaseInvocationCommand[EnqueuedInvocation], frozen=True, kw_only=True):
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


class Claim(BaseInvocationCommand[ClaimedInvocations], frozen=True, kw_only=True):
    service_id: str
    limit: int
    attempt_tokens: tuple[str, ...]
    """One per invocation that the claim may get. Generated before the batch: a retried batch uses the same tokens."""
    claim_id: str | None = None
    is_push: bool = False
    """Whether the server itself sent the claim, for a push service."""
    waiter: object = None
    """The long poll behind this claim, if there is one."""


class Start(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    id: str
    attempt_token: str
    claim_id: str | None = None
    """A repeat with the same id returns the same attempt while it is running."""


class Complete(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    id: str
    status: Literal["succeeded", "failed", "canceled"]
    result: str | None
    error: str | None
    retryable: bool
    attempt_token: str | None


class Heartbeat(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    id: str
    attempt_token: str | None


class Cancel(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    id: str
    reason: str


class Release(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    """Give back, without counting it, an attempt that did not reach its worker or that the worker does not want."""

    id: str
    attempt_token: str
    lease_expires_at: Millis | None = None
    """If the server gives the attempt back: the expiry of the lease that did not reach its worker. If the row now has a
    different expiry, a repeated claim or a heartbeat has renewed the lease, and the release does nothing. None if the
    worker itself gives the attempt back."""


class CheckOverdue(BaseInvocationCommand[Invocation], frozen=True, kw_only=True):
    """Cancel the invocation if its service or a session has ended. Otherwise, fail the attempt if its deadline has
    passed or its lease has expired. Sent by sweeps and by push delivery."""

    id: str


class ProcessBacklog(msgspec.Struct, frozen=True):
    """Process the next invocations of a session or service that has too many for one transaction. Sent by a sweep."""

    zone_id: str
    kind: OwnerKind
    owner_id: str


class BacklogResult(msgspec.Struct, frozen=True):
    is_finished: bool


InvocationCommand = Enqueue | Claim | Start | Complete | Heartbeat | Cancel | Release | CheckOverdue
InvocationResult = EnqueuedInvocation | ClaimedInvocations | Invocation


class ShowInvocation(msgspec.Struct, frozen=True):
    """A request to show or to explain an invocation."""

    zone_id: str
    id: str
    bearer: Bearer | None = None


class InvocationFilter(PageFilter, frozen=True, kw_only=True):
    status: State | None = None
    service_id: str | None = None
    source_session_id: str | None = None
    target_session_id: str | None = None


# -- returned ----------------------------------------------------------------------------------------------------


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
    """An invocation with its lease, for the holder of the attempt."""

    attempt: int
    attempt_token: str
    lease_expires_at: str


class PushPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a push to an endpoint."""

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


class LeaseList(msgspec.Struct, frozen=True):
    items: list[LeaseView]


class InvocationHeartbeatView(msgspec.Struct, frozen=True):
    cancel: Annotated[bool, Meta(description="whether cancellation was requested")]
    lease_expires_at: str


class ItemView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one item of a bulk request."""

    id: str
    status: str | None = None
    cancel: bool | None = None
    lease_expires_at: str | None = None
    error: dict[str, object] | None = None


class ItemList(msgspec.Struct, frozen=True):
    items: list[ItemView]


class InvocationExplanation(msgspec.Struct, frozen=True):
    """Why an invocation is in its state, and what changes that state next."""

    invocation: InvocationView
    why: Annotated[list[str], Meta(description="sentences, the most important first")]
    next: Annotated[list[str], Meta(description="what changes its state next")]
