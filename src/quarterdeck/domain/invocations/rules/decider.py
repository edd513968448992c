"""One batch, decided in order of arrival.

The board holds what was loaded for the batch and moves it, command by command, as if each came alone; what moved is
then written at once. It does no I/O and knows no clock: the moment is handed to it, and so is every token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import (
    Beat,
    Begun,
    Cancel,
    Claim,
    Command,
    Complete,
    Enqueue,
    Enqueued,
    Invocation,
    Leases,
    Outcome,
    Overdue,
    Ref,
    Release,
    Standing,
    Start,
    State,
)
from quarterdeck.domain.invocations.rules import errors, states
from quarterdeck.domain.invocations.rules.states import Holding
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.sessions.model import Session, State as SessionState

ServiceKey = tuple[str, str]
"""(zone, service)"""
ClaimKey = tuple[str, str, str, str]
"""(zone, service, claim, holder)"""
PUSHED = "push"
SESSION_ENDED = "session_ended"
SERVICE_GONE = "service_unregistered"
SERVES = "serve_for"
"""The power to take and report what is asked of an application's services."""


class Called(Protocol):
    """What of a service decides."""

    @property
    def application_id(self) -> str: ...
    @property
    def delivery(self) -> str: ...
    @property
    def unregistered_at(self) -> Millis | None: ...
    @property
    def lives(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What was loaded under the zones' locks."""

    now: Millis
    lease_ms: int
    zones: Mapping[str, Problem | None] = field(default_factory=dict)
    """The zones that were locked, and why nothing can begin in them any more, if so."""
    services: Mapping[ServiceKey, Called] = field(default_factory=dict)
    sessions: Mapping[Ref, Session] = field(default_factory=dict)
    """Those that calls name, and those that callers speak for."""
    rows: Iterable[Invocation] = ()
    """Whatever is named: by its id, its key, or the claim that holds it."""
    due: Sequence[Invocation] = ()
    """What may begin, in order."""
    standings: Mapping[Ref, Standing] = field(default_factory=dict)
    """Of what is named by its id, and of what may begin."""


FREE = Standing()
"""Of what has just been called: it was asked for under the same locks."""


@dataclass(frozen=True, slots=True)
class Told:
    """A transition, on its way to the log."""

    type: str
    before: State | None
    row: Invocation
    actor: str
    trace: str | None
    reason: str | None = None


class Board:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._now = known.now
        self._rows: dict[Ref, Invocation] = {}
        self._by_key: dict[tuple[str, str, str], Ref] = {}
        self._by_claim: dict[ClaimKey, dict[Ref, None]] = {}
        self._due: dict[ServiceKey, deque[Ref]] = {}
        self.created: dict[Ref, None] = {}
        self.changed: dict[Ref, Invocation] = {}
        """As it was loaded."""
        self.told: list[Told] = []
        for row in known.rows:
            self._learn(row)
        for row in known.due:
            self._falls_due(self._learn(row))

    def _learn(self, row: Invocation) -> Ref:
        ref = (row.zone_id, row.id)
        if ref not in self._rows:
            self._rows[ref] = row
            self._by_key[row.zone_id, row.service_id, row.idempotency_key] = ref
            self._note_holder(row)
        return ref

    def _note_holder(self, row: Invocation) -> None:
        if row.status is State.RUNNING and row.claim_id is not None and row.holder is not None:
            claim = (row.zone_id, row.service_id, row.claim_id, row.holder)
            self._by_claim.setdefault(claim, {})[row.zone_id, row.id] = None

    def _falls_due(self, ref: Ref) -> None:
        row = self._rows[ref]
        self._due.setdefault((row.zone_id, row.service_id), deque()).append(ref)

    def rows(self, refs: Iterable[Ref]) -> list[Invocation]:
        """As they are now."""
        return [self._rows[ref] for ref in refs]

    def decide(self, ask: Command) -> Outcome | Problem:
        stranger = session_rules.bearer_problem(ask.bearer, self._known.sessions, self._now)
        if stranger is not None:
            return stranger
        match ask:
            case Enqueue():
                return self._enqueue(ask)
            case Claim():
                return self._claim(ask)
            case Cancel():
                return self._cancel(ask)
            case Overdue():
                return self._overdue(ask)
            case Start():
                return self._start(ask)
            case Complete():
                return self._complete(ask)
            case Beat():
                return self._beat(ask)
            case Release():
                return self._release(ask)

    # -- calling -------------------------------------------------------------------------------------------------

    def _enqueue(self, ask: Enqueue) -> Outcome | Problem:
        assert ask.caller is not None
        if before := self._by_key.get((ask.zone_id, ask.service_id, ask.key)):
            # Decided before everything else: what was acknowledged once is acknowledged again.
            row = self._rows[before]
            return Enqueued(row, False) if row.digest == ask.digest else errors.key_conflict(ask.key)
        if over := self._known.zones.get(ask.zone_id):
            return over
        service = self._service(ask.zone_id, ask.service_id)
        if isinstance(service, Problem):
            return service
        if problem := session_rules.asleep(ask.caller, self._known.sessions) or self._sessions_problem(ask):
            return problem
        row = states.created(ask, service.application_id, ask.caller.client_id, self._now)
        ref = self._learn(row)
        self.created[ref] = None
        self._tell("invocation.created", None, row, ask)
        self._falls_due(ref)
        return Enqueued(row, True)

    def _service(self, zone_id: str, service_id: str) -> Called | Problem:
        service = self._known.services.get((zone_id, service_id))
        if service is None or service.unregistered_at is not None or not service.lives:
            return errors.service_not_found(service_id)
        return service

    def _sessions_problem(self, ask: Enqueue) -> Problem | None:
        for session_id in (ask.source_session_id, ask.target_session_id):
            if session_id is None:
                continue
            session = self._known.sessions.get((ask.zone_id, session_id))
            if session is None or not session_rules.is_live(session, self._now):
                return errors.session_not_found(session_id)
            if session_id == ask.source_session_id and not _may(ask.caller, session.application_id, "invoke_from"):
                return errors.invoker_required(session.application_id)
            if session.status is SessionState.SUSPENDED:
                return session_rules.suspended(session_id)
        return None

    # -- taking --------------------------------------------------------------------------------------------------

    def _claim(self, ask: Claim) -> Outcome | Problem:
        service = self._service(ask.zone_id, ask.service_id)
        if isinstance(service, Problem):
            return service
        if not _may(ask.caller, service.application_id, SERVES):
            return errors.service_ownership_required(service.application_id)
        if (service.delivery == PUSHED) is not ask.pushes:
            return errors.pushed(ask.service_id)
        if problem := session_rules.asleep(ask.caller, self._known.sessions):
            return problem
        return Leases(self._held_by(ask) or self.take(ask))

    def _held_by(self, ask: Claim) -> tuple[Invocation, ...]:
        """What the same claim was given before. Whoever gave the first answer up may be giving it back this moment."""
        if ask.claim_id is None:
            return ()
        claim = (ask.zone_id, ask.service_id, ask.claim_id, _holder(ask.caller))
        held = [
            ref
            for ref in self._by_claim.get(claim, ())
            if (row := self._rows[ref]).status is State.RUNNING
            and row.begun_by is Begun.CLAIM
            and row.claim_id == ask.claim_id
        ]
        for ref in held:
            self._keep(ref, states.held_again(self._rows[ref], self._known.lease_ms, self._now))
        return tuple(self.rows(held))

    def take(self, ask: Claim) -> tuple[Invocation, ...]:
        """What a claim gets, in the order in which it became due. Also for those who wait, when a batch is done."""
        due = self._due.get((ask.zone_id, ask.service_id), deque())
        taken: list[Invocation] = []
        while due and len(taken) < ask.max:
            ref = due.popleft()
            row = self._rows[ref]
            if row.status is not State.PENDING or row.available_at > self._now:
                continue
            if over := self._over(ref):
                # Too many to be settled at once, and nobody has come to it yet: it may not begin.
                self._drop(ref, over, ask)
                continue
            if self._standing(ref).sleeps:
                self._keep(ref, states.put_aside(row))
                continue
            by = Begun.PUSH if ask.pushes else Begun.CLAIM
            token = ask.tokens[len(taken)]
            holding = Holding(by, _holder(ask.caller), token, self._known.lease_ms, ask.claim_id)
            taken.append(self._begin(ref, holding, ask))
        return tuple(taken)

    def has_due(self, service: ServiceKey) -> bool:
        return bool(self._due.get(service))

    def _start(self, ask: Start) -> Outcome | Problem:
        row = self._named(ask)
        if isinstance(row, Problem):
            return row
        holder = _holder(ask.caller)
        started = row.status is State.RUNNING and row.begun_by is Begun.START and row.claim_id is not None
        if started and (row.claim_id, row.holder) == (ask.claim_id, holder):
            # Only the same request: two who have one credential are two, and an attempt has one holder.
            return row
        if problem := session_rules.asleep(ask.caller, self._known.sessions) or self._startable(row):
            return problem
        holding = Holding(Begun.START, holder, ask.token, self._known.lease_ms, ask.claim_id)
        return self._begin((row.zone_id, row.id), holding, ask)

    def _startable(self, row: Invocation) -> Problem | None:
        if row.status is not State.PENDING:
            return errors.not_startable(row, f"it is {row.status}")
        if self._standing((row.zone_id, row.id)).sleeps:
            return errors.not_startable(row, "a session it belongs to is suspended")
        if row.available_at > self._now:
            return errors.not_startable(row, f"its backoff has {row.available_at - self._now} ms to go")
        return None

    def _begin(self, ref: Ref, holding: Holding, ask: Command) -> Invocation:
        row = states.begun(self._rows[ref], holding, self._now)
        self._move(ref, row, "invocation.started", ask)
        return row

    # -- reporting -----------------------------------------------------------------------------------------------

    def _complete(self, ask: Complete) -> Outcome | Problem:
        row = self._named(ask)
        if isinstance(row, Problem):
            return row
        if problem := self._fenced(row, ask.token, ask.caller):
            return row if _said_before(row, ask) else problem
        ref = (row.zone_id, row.id)
        if row.cancel_requested_at is not None or ask.status == "canceled":
            after = states.ended(
                states.cancel_requested(row, "holder", self._now),
                State.CANCELED,
                self._now,
                result=ask.result,
                error=ask.error,
            )
        elif ask.status == "succeeded":
            after = states.ended(row, State.SUCCEEDED, self._now, result=ask.result)
        elif ask.retryable:
            after = states.after_failure(row, ask.error or "null", self._now)
        else:
            after = states.ended(row, State.FAILED, self._now, error=ask.error)
        self._moved_on(ref, after, ask)
        return after

    def _fenced(self, row: Invocation, token: str | None, caller: Caller | None) -> Problem | None:
        """Whether this word about an attempt still counts."""
        if token is None:
            if row.status is not State.RUNNING:
                return errors.not_completable(row)
            own = row.begun_by is Begun.START and row.holder == _holder(caller)
            return None if own else errors.token_required()
        if token != row.attempt_token:
            return errors.stale(row)
        if row.status is State.RUNNING:
            return None
        return errors.not_completable(row) if row.status in states.ENDED else errors.stale(row)

    def _beat(self, ask: Beat) -> Outcome | Problem:
        row = self._named(ask)
        if isinstance(row, Problem):
            return row
        if problem := self._fenced(row, ask.token, ask.caller):
            return problem
        after = states.prolonged(row, self._known.lease_ms, self._now)
        self._keep((row.zone_id, row.id), after)
        return after

    def _release(self, ask: Release) -> Outcome | Problem:
        row = self._named(ask)
        if isinstance(row, Problem):
            return row
        if problem := self._fenced(row, ask.token, ask.caller):
            return problem
        if ask.lease_expires_at not in (None, row.lease_expires_at):
            return row
        ref = (row.zone_id, row.id)
        if row.cancel_requested_at is not None:
            after = states.ended(row, State.CANCELED, self._now)
        else:
            after = states.released(row, self._now)
        self._moved_on(ref, after, ask, "invocation.released")
        return after

    # -- ending --------------------------------------------------------------------------------------------------

    def _cancel(self, ask: Cancel) -> Outcome | Problem:
        row = self._rows.get((ask.zone_id, ask.id))
        if row is None:
            return errors.not_found(ask.id)
        if not (_may(ask.caller, row.invoker, "invoke_from") or _may(ask.caller, row.application_id, SERVES)):
            return errors.invoker_required(row.invoker)
        ref = (row.zone_id, row.id)
        if row.status is State.PENDING:
            self._move(ref, states.canceled(row, ask.reason, self._now), "invocation.canceled", ask, ask.reason)
        elif row.status is State.RUNNING:
            if row.cancel_requested_at is None:
                after = states.cancel_requested(row, ask.reason, self._now)
                self._move(ref, after, "invocation.cancel_requested", ask, ask.reason)
        elif row.status is not State.CANCELED:
            return errors.not_cancelable(row)
        return self._rows[ref]

    def _overdue(self, ask: Overdue) -> Outcome | Problem:
        row = self._rows.get((ask.zone_id, ask.id))
        if row is None:
            return errors.not_found(ask.id)
        ref = (row.zone_id, row.id)
        if over := self._over(ref):
            self._drop(ref, over, ask)
        elif states.is_overdue(row, self._now):
            self._moved_on(ref, states.overdue(row, self._now), ask)
        return self._rows[ref]

    def _standing(self, ref: Ref) -> Standing:
        return self._known.standings.get(ref, FREE)

    def _over(self, ref: Ref) -> str | None:
        """Why one that waits or runs is canceled whoever asks for it: what it belongs to has ended, whether or not it
        was settled yet."""
        standing = self._standing(ref)
        if self._rows[ref].status in states.ENDED:
            return None
        if standing.dropped:
            return SERVICE_GONE
        ended = standing.lives_until is not None and standing.lives_until <= self._now
        return SESSION_ENDED if ended else None

    def _drop(self, ref: Ref, reason: str, ask: Command) -> None:
        after = states.canceled(self._rows[ref], reason, self._now)
        self._move(ref, after, "invocation.canceled", ask, reason)

    # -- what moved ----------------------------------------------------------------------------------------------

    def _named(self, ask: Start | Complete | Beat | Release) -> Invocation | Problem:
        row = self._rows.get((ask.zone_id, ask.id))
        if row is None:
            return errors.not_found(ask.id)
        if not _may(ask.caller, row.application_id, SERVES):
            return errors.service_ownership_required(row.application_id)
        ref = (row.zone_id, row.id)
        if over := self._over(ref):
            self._drop(ref, over, ask)
        return self._rows[ref]

    def _moved_on(self, ref: Ref, after: Invocation, ask: Command, again: str = "invocation.retried") -> None:
        """After an attempt: it has ended, or it waits again, and may be due at once."""
        self._move(ref, after, again if after.status is State.PENDING else f"invocation.{after.status}", ask)
        if after.status is State.PENDING and after.available_at <= self._now:
            self._falls_due(ref)

    def _move(self, ref: Ref, after: Invocation, told: str, ask: Command, reason: str | None = None) -> None:
        before = self._rows[ref].status
        self._keep(ref, after)
        self._tell(told, before, after, ask, reason)

    def _keep(self, ref: Ref, after: Invocation) -> None:
        if ref not in self.created:
            self.changed.setdefault(ref, self._rows[ref])
        self._rows[ref] = after
        self._note_holder(after)

    def _tell(self, told: str, before: State | None, row: Invocation, ask: Command, reason: str | None = None) -> None:
        self.told.append(Told(told, before, row, ask.actor, ask.trace or row.trace, reason))


def _may(caller: Caller | None, application_id: str, power: str) -> bool:
    return caller is None or caller.may_act_for(application_id, power)


def _holder(caller: Caller | None) -> str:
    """Who an attempt belongs to, as far as a credential says. No name has a space left in it, so no two are alike."""
    if caller is None:
        return PUSHED
    names = (caller.client_id, caller.subject, caller.session_id)
    return " ".join(name.replace("%", "%25").replace(" ", "%20") for name in names if name is not None)


def _said_before(row: Invocation, ask: Complete) -> bool:
    """Whether this is what the attempt came to: the same word, said again by whoever did not hear the answer."""
    if ask.token is None or ask.token != row.attempt_token:
        return False
    fails_for_now = ask.status == "failed" and ask.retryable
    if row.status is State.PENDING:
        return fails_for_now and row.error_json == (ask.error or "null")
    if row.status is State.CANCELED and ask.status != "canceled":
        # After a request to cancel whatever is reported is kept, and the end is another one.
        kept = row.result_json if ask.status == "succeeded" else row.error_json
        return kept is not None and kept == (ask.result if ask.status == "succeeded" else ask.error)
    return row.status is (State.DEAD if fails_for_now else State(ask.status))
