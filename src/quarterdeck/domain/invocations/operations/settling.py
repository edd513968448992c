"""What the end or the suspension of a session, or the end of a service, means for the invocations that belong to it.

Heard of within the transaction that caused it: from that commit on nothing of an ended session waits or runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from quarterdeck.domain.invocations.model import Invocation, Ref
from quarterdeck.domain.invocations.operations import writing
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules import INVOCATION, lives
from quarterdeck.domain.invocations.rules.board import SESSION_ENDED, Told
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import State as SessionState
from quarterdeck.engine.events import NewEvent
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import decode

SERVICE_GONE = "service_unregistered"
Causes = Mapping[Ref, NewEvent]


async def go_with_session(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Ended: what waits or runs for it is canceled. Suspended: what waits is put aside until it wakes."""
    ended = _subjects(events, "session.terminate")
    if ended:
        await _cancel(tx, await _of_sessions(tx, ended), SESSION_ENDED, lambda row: _of(row, ended))
    held = _subjects(events, "session.suspend", "session.resume")
    if asleep_or_awake := {ref: cause for ref, cause in held.items() if ref not in ended}:
        await _park(tx, await _of_sessions(tx, asleep_or_awake))


async def go_with_service(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Unregistered: nobody will ever claim what waits for it."""
    gone = _subjects(events, "service.unregister")
    if not gone:
        return
    open_ones = [(*ref, state) for ref in sorted(gone) for state in INVOCATION.live()]
    [rows] = await tx.read(Q.invocations_of_services(batch=[*open_ones]))
    await _cancel(tx, decode(rows, Invocation), SERVICE_GONE, lambda row: gone[row.zone_id, row.service_id])


def _subjects(events: Sequence[NewEvent], *types: str) -> dict[Ref, NewEvent]:
    return {(event.zone_id, event.subject): event for event in events if event.type in types}


async def _of_sessions(tx: Tx, refs: Causes) -> list[Invocation]:
    [rows] = await tx.read(Q.invocations_of_sessions(batch=sorted(refs)))
    return sorted(decode(rows, Invocation), key=lambda row: row.id)


def _of(row: Invocation, causes: Causes) -> NewEvent:
    """The event that took this one with it."""
    source = causes.get((row.zone_id, row.source_session_id or ""))
    return source or causes[row.zone_id, row.target_session_id or ""]


async def _cancel(
    tx: Tx, rows: Sequence[Invocation], reason: str, cause_of: Callable[[Invocation], NewEvent]
) -> None:
    after = [lives.canceled(row, reason, tx.now) for row in rows]
    await writing.move(tx, zip(rows, after, strict=True))
    for before, row in zip(rows, after, strict=True):
        cause = cause_of(before)
        tx.emit(
            writing.event(Told("invocation.canceled", before.status, row, cause.actor, cause.trace, reason))
        )


async def _park(tx: Tx, rows: Sequence[Invocation]) -> None:
    """By the states the sessions have now, whatever this transaction made of them: a call sleeps while one of its
    sessions does, and one that runs will if it comes back. No event: its own state is the same before and after."""
    refs = {(r.zone_id, s) for r in rows for s in (r.source_session_id, r.target_session_id) if s is not None}
    if not refs:
        return
    [found] = await tx.read(sessions.get(sorted(refs)))
    asleep = {
        ref for ref, session in sessions.by_ref(found).items() if session.status is SessionState.SUSPENDED
    }
    after = [
        msgspec.structs.replace(
            row,
            parked=int(
                (row.zone_id, row.source_session_id) in asleep
                or (row.zone_id, row.target_session_id) in asleep
            ),
        )
        for row in rows
    ]
    await writing.move(tx, [(old, new) for old, new in zip(rows, after, strict=True) if old != new])
