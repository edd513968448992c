"""The input of the checks (recorded calls, event data, rows) and their output (violations)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.engine.event_log import Event

# -- recorded calls ----------------------------------------------------------------------------------------------


class Op(StrEnum):
    """The operations that the checker supports. Calls with any other `op` are counted, but not checked."""

    SPAWN = "spawn"
    TERMINATE = "terminate"
    SUSPEND = "suspend"
    RESUME = "resume"
    REGISTER = "register"
    INVOKE = "invoke"
    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    RELEASE = "release"
    CANCEL = "cancel"
    DELEGATE = "delegate"
    REVOKE = "revoke"
    TASK_CREATE = "task.create"
    TASK_CLAIM = "task.claim"
    TASK_PROGRESS = "task.progress"
    TASK_COMPLETE = "task.complete"
    TASK_FAIL = "task.fail"
    TASK_RELEASE = "task.release"
    TASK_CANCEL = "task.cancel"


class Outcome(StrEnum):
    """Whether a call took effect, as far as its client knows."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


NULL = msgspec.Raw(b"null")
NO_CHECKPOINT = msgspec.Raw(b"{}")


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """The fields of a request that an invariant needs. Other fields are dropped."""

    id: str | None = None
    """The id in the path: a session, an invocation, a delegation or a task."""
    application_id: str | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None
    service_id: str | None = None
    claim_id: str | None = None
    source_session_id: str | None = None
    target_session_id: str | None = None
    attempt_token: str | None = None
    status: str | None = None
    # The names of the task API:
    task_claim_id: str | None = msgspec.field(default=None, name="claimId")
    task_attempt_token: str | None = msgspec.field(default=None, name="attemptToken")
    agent_id: str | None = msgspec.field(default=None, name="agentId")
    current_step: str | None = msgspec.field(default=None, name="currentStep")
    checkpoint_data: msgspec.Raw = msgspec.field(default=NULL, name="checkpointData")

    @property
    def has_checkpoint(self) -> bool:
        """Whether the request saves a checkpoint for the next attempt."""
        return bytes(self.checkpoint_data) != b"null"


class Lease(msgspec.Struct, frozen=True, gc=False):
    """An attempt of an invocation or a task that a claim or a start returned."""

    id: str
    attempt: int
    attempt_token: str


class TaskLease(Lease, frozen=True, gc=False, rename="camel"):
    attempt_token: str
    checkpoint_data: msgspec.Raw = NO_CHECKPOINT


class CallResponse(msgspec.Struct, frozen=True):
    id: str | None = None
    status: str | int | None = None
    """The state of an invocation or a session. In a problem document, the HTTP status of the call."""
    error: object = None
    """The code of a problem, or the error of an invocation, which can be any JSON value."""
    items: list[Lease] = []
    tasks: list[TaskLease] = []
    attempt: int | None = None
    attempt_token: str | None = None


Instant = Annotated[float, Meta(ge=0)]
"""Milliseconds since 1970 on the client's clock."""
EMPTY_REQUEST = CallRequest()
EMPTY_RESPONSE = CallResponse()


class HistoryLine(msgspec.Struct, frozen=True):
    """One line of a file. Request and response are decoded only if an invariant uses the call."""

    client: Annotated[str, Meta(min_length=1, max_length=256)]
    seq: Annotated[int, Meta(ge=0)]
    started: Instant
    ended: Instant
    op: Annotated[str, Meta(min_length=1, max_length=64)]
    zone: Annotated[str, Meta(min_length=1, max_length=128)]
    status: Annotated[int, Meta(ge=100, le=599)] | None
    """None: no response arrived."""
    asked: msgspec.Raw = msgspec.Raw(b"{}")
    answer: msgspec.Raw = msgspec.Raw(b"null")
    session: str | None = None
    """The session that the caller's credential acted for, if any."""
    before: bool = False
    """The line was written before the request was sent, by a client that may be killed before the response arrives.

    A later line with the same `client` and `seq` replaces it.
    """


class RecordedCall(msgspec.Struct, gc=False):
    """One call of a client, with its outcome as far as the client knows."""

    client: str
    seq: int
    started: float
    ended: float
    op: str
    zone: str
    status: int | None
    request: CallRequest = EMPTY_REQUEST
    optional_response: CallResponse | None = None
    session: str | None = None
    file: str = ""
    line: int = 0
    is_write_ahead: bool = False

    @property
    def response(self) -> CallResponse:
        return self.optional_response or EMPTY_RESPONSE

    @property
    def outcome(self) -> Outcome:
        """2xx is done. 3xx and 4xx are refused, and so is a 503 with an error code other than `outcome_unknown`.

        After any other 5xx, and without a response, the outcome is unknown.
        """
        if self.status is None:
            return Outcome.UNKNOWN
        if self.status < 300:
            return Outcome.DONE
        error_code = self.response.error
        if self.status < 500 or (
            self.status == 503 and isinstance(error_code, str) and error_code != "outcome_unknown"
        ):
            return Outcome.REFUSED
        return Outcome.UNKNOWN

    @property
    def has_created(self) -> bool:
        return self.status == 201

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"

    def leases(self) -> Iterator[Lease]:
        """The attempts that the response returned."""
        if self.outcome is not Outcome.DONE:
            return
        response = self.response
        yield from response.items
        if self.op == Op.TASK_CLAIM:
            yield from response.tasks
        if self.op == Op.START and self.request.id and response.attempt is not None and response.attempt_token:
            yield Lease(self.request.id, response.attempt, response.attempt_token)


# -- rows --------------------------------------------------------------------------------------------------------

TERMINATED = "terminated"


class SessionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    application_id: str
    parent_id: str | None
    root_id: str
    depth: int
    status: str
    limits: str
    spawned_at: Millis
    expires_at: Millis
    terminated_at: Millis | None


class KeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    application_id: str
    key: str
    subject_id: str


class InvocationRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    service_id: str
    idempotency_key: str
    status: str
    source_session_id: str | None
    target_session_id: str | None
    deadline_at: Millis | None
    lease_expires_at: Millis | None
    completed_at: Millis | None


class TaskRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    status: str
    attempt: int
    final: int
    waits_for: int
    dependents_pending: int
    available_at: Millis
    timeout_at: Millis | None
    updated_at: Millis
    on_dependency_failure: str
    agent_id: str | None
    agent_status: str | None
    """The status of the agent that holds the task or held it last."""
    agent_stale_at: Millis | None
    """When that agent becomes stale if it sends no other heartbeat."""


class DependencyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    task_id: str
    depends_on: str


class EdgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    source_session_id: str
    target_session_id: str
    status: str
    expires_at: Millis
    ended_at: Millis | None


class ServiceRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str


class CascadeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    target_id: str | None
    remaining: int
    finished_at: Millis | None


class MarkedSessionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session that a cascade has marked for termination."""

    zone_id: str
    cascade_id: str
    id: str


class Rows(msgspec.Struct, frozen=True):
    """The rows of the tables that are checked. Each iterable can be iterated any number of times."""

    now: Millis
    """The database's time when the rows were read."""
    floor: int = 0
    """Retention may have deleted events up to this position."""
    sessions: Iterable[SessionRow] = ()
    keys: Iterable[KeyRow] = ()
    """The idempotency keys of spawns and their sessions."""
    invocations: Iterable[InvocationRow] = ()
    edges: Iterable[EdgeRow] = ()
    services: Iterable[ServiceRow] = ()
    cascades: Iterable[CascadeRow] = ()
    marked_sessions: Iterable[MarkedSessionRow] = ()
    tasks: Iterable[TaskRow] = ()
    dependencies: Iterable[DependencyRow] = ()


# -- event log ---------------------------------------------------------------------------------------------------


class EventData(msgspec.Struct, frozen=True):
    """The fields of an event's data that an invariant needs."""

    application_id: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    depth: int = 0
    expires_at: datetime | int | None = None
    cause: str | None = None
    cascade_id: str | None = None
    reason: str | None = None
    agent_id: str | None = None
    quotas: dict[str, int | None] = {}
    attempt: int | None = None
    final: bool = False
    """A task will not be retried automatically."""
    task_agent_id: str | None = msgspec.field(default=None, name="agentId")
    progress_percent: int | None = msgspec.field(default=None, name="progressPercent")
    current_step: str | None = msgspec.field(default=None, name="currentStep")
    service_id: str | None = None
    source_session_id: str | None = None
    target_session_id: str | None = None
    parent_edge_id: str | None = None
    scopes: list[str] = []

    @property
    def expires_at_ms(self) -> Millis | None:
        value = self.expires_at
        return round(value.timestamp() * SECOND) if isinstance(value, datetime) else value


_decode = msgspec.json.Decoder(EventData).decode


def decode_event_data(event: Event) -> EventData | None:
    """The decoded data, or None if it is malformed."""
    try:
        return _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- checks ------------------------------------------------------------------------------------------------------


class Evidence(msgspec.Struct, frozen=True):
    """The input of every invariant: the event log, the recorded calls and the rows."""

    log: Iterable[Event]
    """Ordered by position. Can be iterated any number of times."""
    history: Sequence[RecordedCall]
    rows: Rows

    def successful_calls(self, *ops: Op) -> Iterator[RecordedCall]:
        names = frozenset[str](ops)
        return (call for call in self.history if call.op in names and call.outcome is Outcome.DONE)

    @property
    def is_log_complete(self) -> bool:
        """Whether retention has deleted no events."""
        return self.rows.floor == 0


class Violation(msgspec.Struct, frozen=True):
    """One violation of an invariant."""

    promise: str
    """The name of the invariant."""
    zone_id: str
    subject: str
    detail: str
    pos: int | None = None
    """The position in the event log where it happened."""
    call: str | None = None
    """The file and line of the history that shows it."""

    def text(self) -> str:
        position = f" at {self.pos}" if self.pos is not None else ""
        source = f" ({self.call})" if self.call else ""
        line = f"{self.promise}{position}: zone {self.zone_id}: {self.detail}{source}"
        # Clients choose names, so control characters are escaped: a name must not move the terminal's cursor.
        return line if line.isprintable() else ascii(line)[1:-1]


Invariant = Callable[[Evidence], Iterable[Violation]]
