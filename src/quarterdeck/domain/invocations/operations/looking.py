"""Looking at invocations: one, many, why, and what sweeps and the pusher look for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import first_id
from quarterdeck.domain.invocations import rules
from quarterdeck.domain.invocations.model import (
    Invocation,
    InvocationExplanation,
    InvocationFilter,
    InvocationRef,
    Ref,
)
from quarterdeck.domain.invocations.operations.waiting import Ready
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row, decode


async def show(tx: Tx, asks: Sequence[InvocationRef]) -> list[Invocation | Problem | Busy]:
    """Gathered: one statement answers everybody who waits for a result."""
    refs = sessions.bearers_of(asks)
    statements = [Q.invocations_get(batch=sorted({(ask.zone_id, ask.id) for ask in asks}))]
    statements += [sessions.get(sorted(refs))] if refs else []
    rows, *session_rows = await tx.read(*statements)
    found = {(row.zone_id, row.id): row for row in decode(rows, Invocation)}
    speakers = sessions.by_ref([row for of in session_rows for row in of])
    return [
        session_rules.bearer_problem(ask.bearer, speakers, tx.now)
        or found.get((ask.zone_id, ask.id))
        or rules.not_found(ask.id)
        for ask in asks
    ]


async def page(tx: Tx, wanted: InvocationFilter) -> list[Invocation]:
    await sessions.require_bearer(tx, wanted.bearer)
    [rows] = await tx.read(
        Q.invocations_page(
            zone_id=wanted.zone_id,
            before=wanted.before,
            status=wanted.status,
            service_id=wanted.service_id,
            source_session_id=wanted.source_session_id,
            target_session_id=wanted.target_session_id,
            limit=wanted.limit,
        )
    )
    if not rows:
        await zones.require(tx, wanted.zone_id)
    return decode(rows, Invocation)


async def explain(tx: Tx, ref: InvocationRef) -> InvocationExplanation:
    await sessions.require_bearer(tx, ref.bearer)
    [rows] = await tx.read(Q.invocations_get(batch=[(ref.zone_id, ref.id)]))
    if not rows:
        raise rules.not_found(ref.id)
    [row] = decode(rows, Invocation)
    named = [s for s in (row.source_session_id, row.target_session_id) if s is not None]
    [session_rows] = await tx.read(sessions.get([(row.zone_id, name) for name in named]))
    known = sessions.by_ref(session_rows)
    lost = [n for n in named if not ((s := known.get((row.zone_id, n))) and session_rules.is_live(s, tx.now))]
    return rules.explain(row, tx.now, lost[0] if lost else None)


# -- across zones -------------------------------------------------------------------------------------------------


async def overdue(tx: Tx, limit: int) -> list[Ref]:
    """Attempts whose deadline or lease has passed."""
    return _refs(*await tx.read(Q.invocations_overdue(limit=limit)))


async def orphaned(tx: Tx, limit: int) -> list[Ref]:
    """What waits or runs for a session that has ended or is gone."""
    return _refs(*await tx.read(Q.invocations_orphaned(limit=limit)))


async def to_push(tx: Tx, limit: int, full: Iterable[tuple[str, str | None]] = ()) -> list[Ready]:
    """Services that are pushed to and have something to begin, the earliest first; without those that are `full`, and
    without all of a zone that stands there alone."""
    [rows] = await tx.read(Q.invocations_to_push(full=[*full], limit=limit))
    return [Ready((str(zone), str(name)), int(str(at)), int(str(now))) for zone, name, at, now in rows]


async def forget(tx: Tx, window: Millis, limit: int) -> int:
    """Removes up to so many invocations that ended before the window."""
    # A read of nothing but the clock: what is old is decided by the database's time.
    await tx.read()
    before = tx.now - window
    [gone] = await tx.read(Q.invocations_forget(before=before, before_id=first_id(before), limit=limit))
    return len(gone)


def _refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(name)) for zone_id, name in rows]
