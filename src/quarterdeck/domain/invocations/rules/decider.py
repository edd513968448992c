"""Decides the commands of one batch, in order of arrival.

Each command sees the changes of the commands before it; all changes are then written in one commit. Pure: no I/O, no
clock, no randomness. The time and all tokens are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from quarterdeck.core.attempts import is_latest_attempt
from quarterdeck.core.batch_rows import NO_DATA, BatchRows
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.rules import LivenessFields, session_suspended, suspended_caller_problem
from quarterdeck.domain.invocations.model import (
    AttemptOrigin,
    Cancel,
    CheckOverdue,
    Claim,
    ClaimedInvocations,
    Complete,
    Enqueue,
    EnqueuedInvocation,
    Heartbeat,
    Invocation,
    InvocationCommand,
    InvocationContext,
    InvocationResult,
    Release,
    Start,
    State,
)
from quarterdeck.domain.invocations.rules import errors, states
from quarterdeck.domain.invocations.rules.states import Attempt
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.sessions.model import Session, State as SessionState

ServiceKey = tuple[str, str]
"""(zone id, service id)"""
ClaimKey = tuple[str, str, str, str]
"""(zone id, service id, claim id, holder)"""
PUSH = "push"
SESSION_ENDED = "session_ended"
SERVICE_UNREGISTERED = "service_unregistered"
SERVE_ACTION = "serve_for"
"""The action of claiming invocations of an application's services and reporting on them."""


class ServiceInfo(Protocol):
    """The fields of a service that decisions read."""

    @property
    def application_id(self) -> str: ...
    @property
    def delivery(self) -> str: ...
    @property
    def unregistered_at(self) -> Millis | None: ...
    @property
    def is_live(self) -> int: ...


@dataclass(frozen=True, slots=True)
class InvocationBatchInput:
    """The input of a batch, loaded under the zones' locks."""

    now: Millis
    lease_ms: int
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """Per locked zone: the problem that refuses new invocations, or None."""
    services: Mapping[ServiceKey, ServiceInfo] = field(default_factory=dict)
    sessions: Mapping[Ref, Session] = field(default_factory=dict)
    """Sessions that new invocations name."""
    caller_sessions: Mapping[Ref, LivenessFields] = field(default_factory=dict)
    """Sessions that callers act for."""
    rows: Iterable[Invocation] = ()
    """Invocations that commands name by id, by idempotency key or by claim id."""
    due: Sequence[Invocation] = ()
    """Pending invocations that may start now, in the order in which they became due."""
    contexts: Mapping[Ref, InvocationContext] = field(default_factory=dict)
    """For invocations named by id, and for those in `due`."""


DEFAULT_CONTEXT = InvocationContext()
"""For an invocation created in this batch: its sessions and service are checked when it is created."""


class BatchDecider:
    def __init__(self, loaded: InvocationBatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self.rows = BatchRows(chain(loaded.rows, loaded.due))
        self._by_key: dict[tuple[str, str, str], Ref] = {}
        self._by_claim: dict[ClaimKey, dict[Ref, None]] = {}
        self._due: dict[ServiceKey, deque[Ref]] = {}
        for row in self.rows.values():
            self._index(row)
        for row in loaded.due:
            self._add_due(row)

    def _index(self, row: Invocation) -> None:
        self._by_key[row.zone_id, row.service_id, row.idempotency_key] = row.ref
        self._index_claim(row)

    def _index_claim(self, row: Invocation) -> None:
        if row.status is State.RUNNING and row.claim_id is not None and row.holder is not None:
            claim_key = (row.zone_id, row.service_id, row.claim_id, row.holder)
            self._by_claim.setdefault(claim_key, {})[row.ref] = None

    def _add_due(self, row: Invocation) -> None:
        self._due.setdefault((row.zone_id, row.service_id), deque()).append(row.ref)

    def decide(self, command: InvocationCommand) -> InvocationResult | Problem:
        match command:
            case Enqueue():
                return self._enqueue(command)
            case Claim():
                return self._claim(command)
            case Cancel():
                return self._cancel(command)
            case CheckOverdue():
                return self._check_overdue(command)
            case Start():
                return self._start(command)
            case Complete():
                return self._complete(command)
            case Heartbeat():
                return self._heartbeat(command)
            case Release():
                return self._release(command)

    # -- enqueue -------------------------------------------------------------------------------------------------

    def _enqueue(self, command: Enqueue) -> EnqueuedInvocation | Problem:
        assert command.caller is not None
        if existing := self._by_key.get((command.zone_id, command.service_id, command.idempotency_key)):
            # Checked first: a request that was acknowledged once gets the same response again.
            row = self.rows[existing]
            return (
                EnqueuedInvocation(row, False)
                if row.digest == command.request_digest
                else errors.key_conflict(command.idempotency_key)
            )
        if zone_problem := self._loaded.zone_problems.get(command.zone_id):
            return zone_problem
        service = self._find_service(command.zone_id, command.service_id)
        if isinstance(service, Problem):
            return service
        if problem := suspended_caller_problem(command.caller, self._loaded.caller_sessions) or self._sessions_problem(
            command
        ):
            return problem
        row = states.new_invocation(command, service.application_id, command.caller.client_id, self._now)
        self.rows.insert(row)
        self._index(row)
        self.rows.emit("invocation.created", None, row, command)
        self._add_due(row)
        return EnqueuedInvocation(row, True)

    def _find_service(self, zone_id: str, service_id: str) -> ServiceInfo | Problem:
        service = self._loaded.services.get((zone_id, service_id))
        if service is None or service.unregistered_at is not None or not service.is_live:
            return errors.service_not_found(service_id)
        return service

    def _sessions_problem(self, command: Enqueue) -> Problem | None:
        for session_id in (command.source_session_id, command.target_session_id):
            if session_id is None:
                continue
            session = self._loaded.sessions.get((command.zone_id, session_id))
            if session is None or not session_rules.is_live(session, self._now):
                return errors.session_not_found(session_id)
            if session_id == command.source_session_id and not _is_allowed(
                command.caller, session.application_id, "invoke_from"
            ):
                return errors.invoker_required(session.application_id)
            if session.status is SessionState.SUSPENDED:
                return session_suspended(session_id)
        return None

    # -- claim and start -----------------------------------------------------------------------------------------

    def _claim(self, command: Claim) -> ClaimedInvocations | Problem:
        service = self._find_service(command.zone_id, command.service_id)
        if isinstance(service, Problem):
            return service
        if not _is_allowed(command.caller, service.application_id, SERVE_ACTION):
            return errors.service_ownership_required(service.application_id)
        if (service.delivery == PUSH) is not command.is_push:
            return errors.service_is_pushed(command.service_id)
        if problem := suspended_caller_problem(command.caller, self._loaded.caller_sessions):
            return problem
        return ClaimedInvocations(self._repeat_claim(command) or self.claim_due(command))

    def _repeat_claim(self, command: Claim) -> tuple[Invocation, ...]:
        """Return the attempts that the same claim got before and that are still running, with renewed leases.

        After the renewal, a late release of the first response has no effect.
        """
        if command.claim_id is None:
            return ()
        claim_key = (command.zone_id, command.service_id, command.claim_id, _holder_name(command.caller))
        held = [
            row
            for ref in self._by_claim.get(claim_key, ())
            if (row := self.rows[ref]).status is State.RUNNING
            and row.begun_by is AttemptOrigin.CLAIM
            and row.claim_id == command.claim_id
        ]
        renewed = tuple(states.renew_lease(row, self._loaded.lease_ms, self._now) for row in held)
        for row in renewed:
            self._update(row)
        return renewed

    def claim_due(self, command: Claim) -> tuple[Invocation, ...]:
        """Start due invocations for a claim, in the order in which they became due."""
        due = self._due.get((command.zone_id, command.service_id), deque())
        claimed: list[Invocation] = []
        while due and len(claimed) < command.limit:
            row = self.rows[due.popleft()]
            if row.status is not State.PENDING or row.available_at > self._now:
                continue
            if reason := self._orphan_reason(row):
                # A session or the service has ended, and no sweep has canceled the invocation yet.
                self._cancel_open(row, reason, command)
                continue
            if self._context(row).is_suspended:
                self._update(states.park(row))
                continue
            origin = AttemptOrigin.PUSH if command.is_push else AttemptOrigin.CLAIM
            token = command.attempt_tokens[len(claimed)]
            attempt = Attempt(origin, _holder_name(command.caller), token, self._loaded.lease_ms, command.claim_id)
            claimed.append(self._start_attempt(row, attempt, command))
        return tuple(claimed)

    def has_due(self, service: ServiceKey) -> bool:
        return bool(self._due.get(service))

    def _start(self, command: Start) -> Invocation | Problem:
        row = self._row_for_worker(command)
        if isinstance(row, Problem):
            return row
        holder = _holder_name(command.caller)
        was_started = row.status is State.RUNNING and row.begun_by is AttemptOrigin.START and row.claim_id is not None
        if was_started and (row.claim_id, row.holder) == (command.claim_id, holder):
            # The holder alone does not identify a repeat: two workers may use the same credential.
            return row
        if problem := suspended_caller_problem(command.caller, self._loaded.caller_sessions) or self._start_problem(
            row
        ):
            return problem
        attempt = Attempt(AttemptOrigin.START, holder, command.attempt_token, self._loaded.lease_ms, command.claim_id)
        return self._start_attempt(row, attempt, command)

    def _start_problem(self, row: Invocation) -> Problem | None:
        if row.status is not State.PENDING:
            return errors.not_startable(row, f"it is {row.status}")
        if self._context(row).is_suspended:
            return errors.not_startable(row, "one of its sessions is suspended")
        if row.available_at > self._now:
            return errors.not_startable(row, f"its backoff ends in {row.available_at - self._now} ms")
        return None

    def _start_attempt(self, row: Invocation, attempt: Attempt, command: InvocationCommand) -> Invocation:
        after = states.start_attempt(row, attempt, self._now)
        self._transition(after, "invocation.started", command)
        return after

    # -- reports -------------------------------------------------------------------------------------------------

    def _complete(self, command: Complete) -> Invocation | Problem:
        row = self._row_for_worker(command)
        if isinstance(row, Problem):
            return row
        if problem := self._attempt_problem(row, command.attempt_token, command.caller):
            return row if _is_repeated_report(row, command) else problem
        if row.cancel_requested_at is not None or command.status == "canceled":
            after = states.end(
                states.request_cancel(row, "holder", self._now),
                State.CANCELED,
                self._now,
                result=command.result,
                error=command.error,
            )
        elif command.status == "succeeded":
            after = states.end(row, State.SUCCEEDED, self._now, result=command.result)
        elif command.retryable:
            after = states.fail_attempt(row, command.error or "null", self._now)
        else:
            after = states.end(row, State.FAILED, self._now, error=command.error)
        self._finish_attempt(after, command)
        return after

    def _attempt_problem(self, row: Invocation, token: str | None, caller: Caller | None) -> Problem | None:
        """The problem with a report about an attempt, or None if the report is accepted."""
        if token is None:
            if row.status is not State.RUNNING:
                return errors.not_completable(row)
            is_own_start = row.begun_by is AttemptOrigin.START and row.holder == _holder_name(caller)
            return None if is_own_start else errors.token_required()
        if is_latest_attempt(row, token, (State.RUNNING,)):
            return None
        has_ended = is_latest_attempt(row, token, states.ENDED_STATES)
        return errors.not_completable(row) if has_ended else errors.stale_attempt(row)

    def _heartbeat(self, command: Heartbeat) -> Invocation | Problem:
        row = self._row_for_worker(command)
        if isinstance(row, Problem):
            return row
        if problem := self._attempt_problem(row, command.attempt_token, command.caller):
            return problem
        after = states.extend_lease(row, self._loaded.lease_ms, self._now)
        self._update(after)
        return after

    def _release(self, command: Release) -> Invocation | Problem:
        row = self._row_for_worker(command)
        if isinstance(row, Problem):
            return row
        if problem := self._attempt_problem(row, command.attempt_token, command.caller):
            return problem
        if command.lease_expires_at not in (None, row.lease_expires_at):
            return row
        if row.cancel_requested_at is not None:
            after = states.end(row, State.CANCELED, self._now)
        else:
            after = states.release(row, self._now)
        self._finish_attempt(after, command, "invocation.released")
        return after

    # -- cancel and expire ---------------------------------------------------------------------------------------

    def _cancel(self, command: Cancel) -> Invocation | Problem:
        row = self.rows.get((command.zone_id, command.id))
        if row is None:
            return errors.not_found(command.id)
        if not (
            _is_allowed(command.caller, row.invoker, "invoke_from")
            or _is_allowed(command.caller, row.application_id, SERVE_ACTION)
        ):
            return errors.invoker_required(row.invoker)
        if row.status is State.PENDING:
            return self._cancel_open(row, command.reason, command)
        if row.status is State.RUNNING:
            if row.cancel_requested_at is not None:
                return row
            after = states.request_cancel(row, command.reason, self._now)
            self._transition(after, "invocation.cancel_requested", command, {"reason": command.reason})
            return after
        return row if row.status is State.CANCELED else errors.not_cancelable(row)

    def _check_overdue(self, command: CheckOverdue) -> Invocation | Problem:
        row = self.rows.get((command.zone_id, command.id))
        if row is None:
            return errors.not_found(command.id)
        if reason := self._orphan_reason(row):
            return self._cancel_open(row, reason, command)
        if not states.is_overdue(row, self._now):
            return row
        after = states.fail_overdue(row, self._now)
        self._finish_attempt(after, command)
        return after

    def _context(self, row: Invocation) -> InvocationContext:
        return self._loaded.contexts.get(row.ref, DEFAULT_CONTEXT)

    def _orphan_reason(self, row: Invocation) -> str | None:
        """The reason to cancel an open invocation whose service or session has ended before a sweep cancels it. None if
        neither has ended, or if the invocation itself has ended."""
        context = self._context(row)
        if row.status in states.ENDED_STATES:
            return None
        if context.service_gone:
            return SERVICE_UNREGISTERED
        has_ended = context.sessions_expire_at is not None and context.sessions_expire_at <= self._now
        return SESSION_ENDED if has_ended else None

    def _cancel_open(self, row: Invocation, reason: str, command: InvocationCommand) -> Invocation:
        after = states.cancel(row, reason, self._now)
        self._transition(after, "invocation.canceled", command, {"reason": reason})
        return after

    # -- rows and events -----------------------------------------------------------------------------------------

    def _row_for_worker(self, command: Start | Complete | Heartbeat | Release) -> Invocation | Problem:
        """Return the row that a worker's command names. Cancel it first if its service or a session has ended."""
        row = self.rows.get((command.zone_id, command.id))
        if row is None:
            return errors.not_found(command.id)
        if not _is_allowed(command.caller, row.application_id, SERVE_ACTION):
            return errors.service_ownership_required(row.application_id)
        reason = self._orphan_reason(row)
        return self._cancel_open(row, reason, command) if reason else row

    def _finish_attempt(
        self, after: Invocation, command: InvocationCommand, pending_event_type: str = "invocation.retried"
    ) -> None:
        """Record the end of an attempt. If the invocation is due again, later claims in this batch can get it."""
        is_pending = after.status is State.PENDING
        self._transition(after, pending_event_type if is_pending else f"invocation.{after.status}", command)
        if is_pending and after.available_at <= self._now:
            self._add_due(after)

    def _transition(
        self, after: Invocation, event_type: str, command: InvocationCommand, data: Mapping[str, object] = NO_DATA
    ) -> None:
        from_state = self.rows[after.ref].status
        self._update(after)
        self.rows.emit(event_type, from_state, after, command, data)

    def _update(self, after: Invocation) -> None:
        self.rows.update(after)
        self._index_claim(after)


def _is_allowed(caller: Caller | None, application_id: str, action: str) -> bool:
    return caller is None or caller.can_act_for(application_id, action)


def _holder_name(caller: Caller | None) -> str:
    """The name of an attempt's holder, from the caller's credential. Spaces are escaped to keep it unambiguous."""
    if caller is None:
        return PUSH
    names = (caller.client_id, caller.subject, caller.session_id)
    return " ".join(name.replace("%", "%25").replace(" ", "%20") for name in names if name is not None)


def _is_repeated_report(row: Invocation, command: Complete) -> bool:
    """Whether the report repeats the stored outcome. A worker that did not get a response reports again."""
    if command.attempt_token is None or command.attempt_token != row.attempt_token:
        return False
    is_retryable_failure = command.status == "failed" and command.retryable
    if row.status is State.PENDING:
        return is_retryable_failure and row.error_json == (command.error or "null")
    if row.status is State.CANCELED and command.status != "canceled":
        # After a cancel request the reported result or error is stored, but the state is CANCELED.
        stored_json = row.result_json if command.status == "succeeded" else row.error_json
        reported_json = command.result if command.status == "succeeded" else command.error
        return stored_json is not None and stored_json == reported_json
    return row.status is (State.DEAD if is_retryable_failure else State(command.status))
