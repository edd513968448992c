"""Looking at invocations: one, many, why, and what sweeps and the pusher look for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

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
    State,
)
from quarterdeck.domain.invocations.operations.long_poll import Ready
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.sessions.model import State as SessionState
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

AFTER_ALL = "~"
"""Greater than every id."""


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
    answers = await tx.read(*_pages(wanted))
    rows = [row for answer in answers for row in answer]
    if not rows:
        await zones.require(tx, wanted.zone_id)
    newest_first = sorted(decode(rows, Invocation), key=lambda row: row.id, reverse=True)
    return newest_first[: wanted.limit]


def _pages(wanted: InvocationFilter) -> list[Bound]:
    """The statements that find a page. Of one service it is the newest of each state, of which each has an index: a few
    that run must not be looked for among all that have ended."""
    common: dict[str, str | int | None] = {
        "zone_id": wanted.zone_id,
        "service_id": wanted.service_id,
        "before": wanted.before,
        "limit": wanted.limit,
    }
    source, target = wanted.source_session_id, wanted.target_session_id
    if wanted.service_id is not None and source is None and target is None:
        states = [wanted.status] if wanted.status else [*State]
        common["before"] = wanted.before or AFTER_ALL
        return [Q.invocations_page_of_service(**common, status=state) for state in states]
    named = {"source_session_id": source, "target_session_id": target}
    return [Q.invocations_page(**common, **named, status=wanted.status)]


async def explain(tx: Tx, ref: InvocationRef) -> InvocationExplanation:
    await sessions.require_bearer(tx, ref.bearer)
    [rows] = await tx.read(Q.invocations_get(batch=[(ref.zone_id, ref.id)]))
    if not rows:
        raise rules.not_found(ref.id)
    [row] = decode(rows, Invocation)
    named = [s for s in (row.source_session_id, row.target_session_id) if s is not None]
    [session_rows] = await tx.read(sessions.get([(row.zone_id, name) for name in named]))
    known = sessions.by_ref(session_rows)
    found = {name: known.get((row.zone_id, name)) for name in named}
    lost = [name for name, s in found.items() if s is None or not session_rules.is_live(s, tx.now)]
    asleep = [name for name, s in found.items() if s is not None and s.status is SessionState.SUSPENDED]
    return rules.explain(row, tx.now, next(iter(lost), None), next(iter(asleep), None))


# -- across zones -------------------------------------------------------------------------------------------------


async def overdue(tx: Tx, limit: int) -> list[Ref]:
    """Attempts whose deadline or lease has passed."""
    return _refs(*await tx.read(Q.invocations_overdue(limit=limit)))


class Place(msgspec.Struct, frozen=True):
    """How far a walk through what waits or runs for sessions has come: first by sources, then by targets."""

    by_target: bool = False
    session_id: str = ""
    parked: int = 0
    id: str = ""


BEGINNING = Place()


async def orphaned(tx: Tx, place: Place, limit: int) -> tuple[list[Ref], Place]:
    """Of so many from a place on, those whose session has ended or is gone; and where to go on."""
    statement = Q.invocations_slice_by_target if place.by_target else Q.invocations_slice_by_source
    [rows] = await tx.read(statement(session_id=place.session_id, parked=place.parked, id=place.id, limit=limit))
    lost = [(str(zone_id), str(name)) for _, _, name, zone_id, is_lost in rows if is_lost]
    if len(rows) == limit:
        session_id, parked, name, *_ = rows[-1]
        return lost, Place(place.by_target, str(session_id), int(str(parked)), str(name))
    return lost, BEGINNING if place.by_target else Place(by_target=True)


async def to_push(tx: Tx, limit: int, full: Iterable[tuple[str, str | None]] = ()) -> list[Ready]:
    """Services that are pushed to and have something to begin, the earliest first; without those that are `full`, and
    without all of a zone that stands there alone."""
    [rows] = await tx.read(Q.invocations_to_push(full=[*full], limit=limit))
    return [Ready((str(zone), str(name)), int(str(at)), int(str(now))) for zone, name, at, now in rows]


async def services_left_alone(tx: Tx, before: Millis, limit: int) -> list[Ref]:
    """Services that were unregistered before a time, and of which no invocation is left."""
    return _refs(*await tx.read(Q.services_without_invocations(before=before, limit=limit)))


async def forget(tx: Tx, window: Millis, limit: int) -> int:
    """Removes up to so many invocations that ended before the window."""
    # A read of nothing but the clock: what is old is decided by the database's time.
    await tx.read()
    before = tx.now - window
    [gone] = await tx.read(Q.invocations_forget(before=before, before_id=first_id(before), limit=limit))
    return len(gone)


def _refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(name)) for zone_id, name in rows]
