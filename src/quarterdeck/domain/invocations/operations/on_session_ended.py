"""Cancels, parks and unparks invocations when a session ends, is suspended or is resumed, or when a service ends.

The listeners run in the transaction that changes the session or service. A session may have 100,000 open invocations
and must still end at once, so this transaction handles only about 1,000 of them. If there may be more, it records the
session or service in `invocation_backlogs`, and a sweep handles the others. Correctness does not depend on the sweep:
the decider checks the sessions and the service of an invocation before an attempt starts and at each report
(`model.InvocationContext`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.invocations.model import Backlog, BacklogResult, OpenInvocation, OwnerKind, ProcessBacklog
from quarterdeck.domain.invocations.operations import persist
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.decider import SERVICE_UNREGISTERED, SESSION_ENDED
from quarterdeck.domain.invocations.rules.states import INVOCATION_STATES
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.sessions.model import State as SessionState
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import chunks

INVOCATIONS_PER_TRANSACTION = 1_000
"""Maximum invocations that a transaction handles per statement: by source session, by target session, by service."""
NOT_PARKED, PARKED = 0, 1


@dataclass(frozen=True, slots=True)
class Cause:
    """The actor and the trace of the event that ended the session or service, for the `invocation.canceled` events."""

    actor: str = "server"
    trace: str | None = None


SWEEP_CAUSE = Cause()
Causes = Mapping[Ref, Cause]


# -- listeners ---------------------------------------------------------------------------------------------------


async def on_session_changed(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """Cancel the open invocations of ended sessions, park those of suspended ones, unpark those of resumed ones."""
    last_events = {(event.zone_id, event.subject): event for event in events if event.type in _SESSION_EVENTS}
    by_state: dict[SessionState, dict[Ref, Cause]] = {}
    for ref, event in last_events.items():
        by_state.setdefault(SessionState(event.to_state or ""), {})[ref] = Cause(event.actor, event.trace)
    for state, causes in by_state.items():
        if not await _apply_session_state(tx, state, causes):
            add_backlogs(tx, OwnerKind.SESSION, causes)


_SESSION_EVENTS = ("session.terminate", "session.suspend", "session.resume")


async def on_service_ended(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """Cancel the open invocations of unregistered services: no worker can claim them any more."""
    causes = {
        (event.zone_id, event.subject): Cause(event.actor, event.trace)
        for event in events
        if event.type == "service.unregister"
    }
    if causes and not await _cancel_service_invocations(tx, dict.fromkeys(causes, tx.now), causes):
        add_backlogs(tx, OwnerKind.SERVICE, causes)


def add_backlogs(tx: Transaction, kind: OwnerKind, owners: Collection[Ref]) -> None:
    """Record sessions or services that may have more invocations than this transaction handles, for the sweep."""
    batch = [(zone_id, kind, owner_id, tx.now) for zone_id, owner_id in sorted(owners)]
    for piece in chunks(batch):
        tx.write(Q.backlogs_upsert(batch=piece))


# -- backlogs ----------------------------------------------------------------------------------------------------


async def load_oldest_backlogs(tx: Transaction, limit: int) -> list[ProcessBacklog]:
    """The oldest backlogs of all zones."""
    return [
        ProcessBacklog(backlog.zone_id, backlog.kind, backlog.owner_id)
        for backlog in await tx.fetch(Backlog, Q.backlogs_oldest(limit=limit))
    ]


async def process_backlogs(tx: Transaction, commands: Sequence[ProcessBacklog]) -> list[BacklogResult | Problem | Busy]:
    """Cancel, park or unpark the next invocations of these sessions and services, as the state of each requires."""
    backlog_refs = sorted({(command.zone_id, command.kind, command.owner_id) for command in commands})
    session_refs = sorted(
        {(command.zone_id, command.owner_id) for command in commands if command.kind is OwnerKind.SESSION}
    )
    batch, [backlog_rows, session_rows] = await access.lock(
        tx, commands, Q.backlogs_get(batch=backlog_refs), sessions.load_statement(session_refs)
    )
    backlogs = [backlog for backlog in decode(backlog_rows, Backlog) if backlog.zone_id in batch.zones]
    unfinished_backlogs = await _process_next(tx, backlogs, session_rows)
    unfinished_refs = {(backlog.zone_id, backlog.kind, backlog.owner_id) for backlog in unfinished_backlogs}
    if finished_refs := [
        ref for backlog in backlogs if (ref := (backlog.zone_id, backlog.kind, backlog.owner_id)) not in unfinished_refs
    ]:
        tx.write(Q.backlogs_delete(batch=[*finished_refs]))
    return [
        batch.lock_failures.get(command.zone_id)
        or BacklogResult((command.zone_id, command.kind, command.owner_id) not in unfinished_refs)
        for command in commands
    ]


async def _process_next(tx: Transaction, backlogs: Sequence[Backlog], session_rows: Sequence[Row]) -> set[Backlog]:
    """Handle the next invocations of each backlog. Return the backlogs that may have more."""
    sessions_by_ref = sessions.decode_sessions(session_rows)
    by_state: dict[SessionState, list[Backlog]] = {}
    for backlog in backlogs:
        if backlog.kind is OwnerKind.SESSION:
            session = sessions_by_ref.get((backlog.zone_id, backlog.owner_id))
            is_live = session is not None and session_rules.is_live(session, tx.now)
            state = session.status if session is not None and is_live else SessionState.TERMINATED
            by_state.setdefault(state, []).append(backlog)
    unfinished_backlogs: set[Backlog] = set()
    for state, group in by_state.items():
        if not await _apply_session_state(tx, state, dict.fromkeys(_owner_refs(group), SWEEP_CAUSE)):
            unfinished_backlogs |= {*group}
    service_backlogs = [backlog for backlog in backlogs if backlog.kind is OwnerKind.SERVICE]
    since_by_ref = {(backlog.zone_id, backlog.owner_id): backlog.since for backlog in service_backlogs}
    causes = dict.fromkeys(since_by_ref, SWEEP_CAUSE)
    if service_backlogs and not await _cancel_service_invocations(tx, since_by_ref, causes):
        unfinished_backlogs |= {*service_backlogs}
    return unfinished_backlogs


def _owner_refs(backlogs: Iterable[Backlog]) -> list[Ref]:
    return [(backlog.zone_id, backlog.owner_id) for backlog in backlogs]


# -- one pass ----------------------------------------------------------------------------------------------------


async def _apply_session_state(tx: Transaction, state: SessionState, causes: Causes) -> bool:
    """Cancel, park or unpark invocations of sessions that are all in `state`. False if there may be more."""
    parked_values = {
        SessionState.ACTIVE: (PARKED,),
        SessionState.SUSPENDED: (NOT_PARKED,),
        SessionState.TERMINATED: (NOT_PARKED, PARKED),
    }[state]
    batch = [(*ref, parked) for ref in sorted(causes) for parked in parked_values]
    is_finished = True
    for piece in chunks(batch):
        open_invocations = await tx.fetch(
            OpenInvocation, Q.invocations_of_sessions(batch=piece, limit=INVOCATIONS_PER_TRANSACTION)
        )
        if state is SessionState.TERMINATED:
            await _cancel_invocations(tx, open_invocations, SESSION_ENDED, lambda row: _find_cause(row, causes))
        else:
            # The other session of an invocation may still be suspended. Then the next claim parks the invocation again.
            await _set_parked(tx, open_invocations, PARKED if state is SessionState.SUSPENDED else NOT_PARKED)
        is_finished = is_finished and len(open_invocations) < INVOCATIONS_PER_TRANSACTION
    return is_finished


async def _cancel_service_invocations(tx: Transaction, since_by_ref: Mapping[Ref, int], causes: Causes) -> bool:
    """Cancel open invocations that were created before their service ended. False if there may be more."""
    batch = [
        (*ref, state, since)
        for ref, since in sorted(since_by_ref.items())
        for state in INVOCATION_STATES.nonterminal_states()
    ]
    is_finished = True
    for piece in chunks(batch):
        open_invocations = await tx.fetch(
            OpenInvocation, Q.invocations_of_services(batch=piece, limit=INVOCATIONS_PER_TRANSACTION)
        )
        await _cancel_invocations(
            tx, open_invocations, SERVICE_UNREGISTERED, lambda row: causes[row.zone_id, row.service_id]
        )
        is_finished = is_finished and len(open_invocations) < INVOCATIONS_PER_TRANSACTION
    return is_finished


def _find_cause(row: OpenInvocation, causes: Causes) -> Cause:
    """The cause that ended the source session, or the target session if the source session has not ended."""
    source = causes.get((row.zone_id, row.source_session_id or ""))
    return source or causes[row.zone_id, row.target_session_id or ""]


async def _cancel_invocations(
    tx: Transaction, rows: Sequence[OpenInvocation], reason: str, cause_of: Callable[[OpenInvocation], Cause]
) -> None:
    ordered = sorted(rows, key=lambda row: row.id)
    for piece in chunks(_update_guards(ordered)):
        await persist.update_checked(tx, Q.invocations_cancel(batch=piece, reason=reason, now=tx.now), len(piece))
    for row in ordered:
        cause = cause_of(row)
        tx.emit(persist.canceled_event(row, reason, cause.actor, cause.trace))


async def _set_parked(tx: Transaction, rows: Sequence[OpenInvocation], parked: int) -> None:
    for piece in chunks(_update_guards(rows)):
        await persist.update_checked(tx, Q.invocations_set_parked(batch=piece, parked=parked), len(piece))


def _update_guards(rows: Sequence[OpenInvocation]) -> list[tuple[str, str, str, int]]:
    return [(row.zone_id, row.id, row.status, row.attempts) for row in rows]
