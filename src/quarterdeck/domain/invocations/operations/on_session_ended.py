"""What the end or the suspension of a session, or the end of a service, means for the calls that belong to it.

Heard of within the transaction that caused it. A session may have made a hundred thousand calls, and must be ended all
the same: so one transaction settles a thousand, and whose calls were more is noted in `invocation_backlogs`; a sweep
goes on with those. Nothing depends on how far it has come. Whether the session of a call lives, or sleeps, is asked
whenever the call is handed out or spoken of, and so is whether its service has gone since (`model.Standing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import Backlog, Kind, Open, Ref, Settle, Settled
from quarterdeck.domain.invocations.operations import persist
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules import INVOCATION
from quarterdeck.domain.invocations.rules.decider import SERVICE_GONE, SESSION_ENDED
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.sessions.model import State as SessionState
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import pieces

MOST = 1_000
"""Calls that one transaction settles, of sources, of targets, and of services."""
NOT_PARKED, PARKED = 0, 1
Batch = list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Cause:
    """Who is to be named for it."""

    actor: str = "server"
    trace: str | None = None


SWEPT = Cause()
Causes = Mapping[Ref, Cause]


# -- with whom they go -------------------------------------------------------------------------------------------


async def go_with_session(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Ended: what waits or runs for it is canceled. Suspended: what waits is put aside until it wakes."""
    last = {(event.zone_id, event.subject): event for event in events if event.type in _HEARD}
    by_state: dict[SessionState, dict[Ref, Cause]] = {}
    for ref, event in last.items():
        by_state.setdefault(SessionState(event.to_state or ""), {})[ref] = Cause(event.actor, event.trace)
    for state, causes in by_state.items():
        if not await _settle_sessions(tx, state, causes):
            note_backlogs(tx, Kind.SESSION, causes)


_HEARD = ("session.terminate", "session.suspend", "session.resume")


async def go_with_service(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Unregistered: nobody will ever claim what waits for it."""
    causes = {
        (event.zone_id, event.subject): Cause(event.actor, event.trace)
        for event in events
        if event.type == "service.unregister"
    }
    if causes and not await _settle_services(tx, dict.fromkeys(causes, tx.now), causes):
        note_backlogs(tx, Kind.SERVICE, causes)


def note_backlogs(tx: Tx, kind: Kind, owners: Collection[Ref]) -> None:
    """Has the sweep go on with their calls: there are, or may be, more than were settled here."""
    batch: Batch = [(zone_id, kind, owner_id, tx.now) for zone_id, owner_id in sorted(owners)]
    for piece in pieces(batch):
        tx.write(Q.backlogs_note(batch=piece))


# -- going on ----------------------------------------------------------------------------------------------------


async def oldest_backlogs(tx: Tx, limit: int) -> list[Settle]:
    """Across zones: whose calls are to be gone on with."""
    [rows] = await tx.read(Q.backlogs_oldest(limit=limit))
    return [Settle(backlog.zone_id, backlog.kind, backlog.owner_id) for backlog in decode(rows, Backlog)]


async def settle(tx: Tx, asks: Sequence[Settle]) -> list[Settled | Problem | Busy]:
    """One more pass over what these sessions and services have left, by what they are now; and which are done."""
    named: Batch = [*sorted({(ask.zone_id, ask.kind, ask.owner_id) for ask in asks})]
    refs = sorted({(ask.zone_id, ask.owner_id) for ask in asks if ask.kind is Kind.SESSION})
    locked_rows, backlog_rows, session_rows = await tx.read(
        zones.lock(tx, zones_of(asks)), Q.backlogs_get(batch=named), sessions.get(refs)
    )
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    backlogs = [each for each in decode(backlog_rows, Backlog) if each.zone_id in locked]
    left = await _go_on(tx, backlogs, session_rows)
    if done := [each for each in backlogs if each not in left]:
        tx.write(Q.backlogs_end(batch=[(each.zone_id, each.kind, each.owner_id) for each in done]))
    open_ones = {(each.zone_id, each.kind, each.owner_id) for each in left}
    return [why_not.get(ask.zone_id) or Settled((ask.zone_id, ask.kind, ask.owner_id) not in open_ones) for ask in asks]


async def _go_on(tx: Tx, backlogs: Sequence[Backlog], session_rows: Sequence[Row]) -> set[Backlog]:
    """Settles some of each kind; those of whom there may be more."""
    found = sessions.by_ref(session_rows)
    by_state: dict[SessionState, list[Backlog]] = {}
    for each in backlogs:
        if each.kind is Kind.SESSION:
            session = found.get((each.zone_id, each.owner_id))
            lives = session is not None and session_rules.is_live(session, tx.now)
            state = session.status if session is not None and lives else SessionState.TERMINATED
            by_state.setdefault(state, []).append(each)
    left: set[Backlog] = set()
    for state, group in by_state.items():
        if not await _settle_sessions(tx, state, dict.fromkeys(_owners(group), SWEPT)):
            left |= {*group}
    gone = [each for each in backlogs if each.kind is Kind.SERVICE]
    since = {(each.zone_id, each.owner_id): each.since for each in gone}
    if gone and not await _settle_services(tx, since, dict.fromkeys(since, SWEPT)):
        left |= {*gone}
    return left


def _owners(backlogs: Iterable[Backlog]) -> list[Ref]:
    return [(each.zone_id, each.owner_id) for each in backlogs]


# -- one pass ----------------------------------------------------------------------------------------------------


async def _settle_sessions(tx: Tx, state: SessionState, causes: Causes) -> bool:
    """Has calls follow their sessions, which are all in this state; whether that was all of them."""
    marks = {
        SessionState.ACTIVE: (PARKED,),
        SessionState.SUSPENDED: (NOT_PARKED,),
        SessionState.TERMINATED: (NOT_PARKED, PARKED),
    }[state]
    batch: Batch = [(*ref, mark) for ref in sorted(causes) for mark in marks]
    finished = True
    for piece in pieces(batch):
        [rows] = await tx.read(Q.invocations_of_sessions(batch=piece, most=MOST))
        found = decode(rows, Open)
        if state is SessionState.TERMINATED:
            await _cancel(tx, found, SESSION_ENDED, lambda row: _cause(row, causes))
        else:
            # Of two sessions the other may still sleep: then whoever claims puts it aside again.
            await _park(tx, found, PARKED if state is SessionState.SUSPENDED else NOT_PARKED)
        finished = finished and len(found) < MOST
    return finished


async def _settle_services(tx: Tx, since: Mapping[Ref, int], causes: Causes) -> bool:
    batch: Batch = [(*ref, state, since[ref]) for ref in sorted(since) for state in INVOCATION.live()]
    finished = True
    for piece in pieces(batch):
        [rows] = await tx.read(Q.invocations_of_services(batch=piece, most=MOST))
        found = decode(rows, Open)
        await _cancel(tx, found, SERVICE_GONE, lambda row: causes[row.zone_id, row.service_id])
        finished = finished and len(found) < MOST
    return finished


def _cause(row: Open, causes: Causes) -> Cause:
    """What took this one with it."""
    source = causes.get((row.zone_id, row.source_session_id or ""))
    return source or causes[row.zone_id, row.target_session_id or ""]


async def _cancel(tx: Tx, rows: Sequence[Open], reason: str, cause_of: Callable[[Open], Cause]) -> None:
    in_order = sorted(rows, key=lambda row: row.id)
    for piece in pieces(_guarded(in_order)):
        await persist.moved(tx, Q.invocations_cancel(batch=piece, reason=reason, now=tx.now), len(piece))
    for row in in_order:
        cause = cause_of(row)
        tx.emit(persist.canceled(row, reason, cause.actor, cause.trace))


async def _park(tx: Tx, rows: Sequence[Open], parked: int) -> None:
    for piece in pieces(_guarded(rows)):
        await persist.moved(tx, Q.invocations_park(batch=piece, parked=parked), len(piece))


def _guarded(rows: Sequence[Open]) -> Batch:
    return [(row.zone_id, row.id, row.status, row.attempts) for row in rows]
