"""Looking at sessions: one, many, a subtree, what an ending has left, and what sweeps are for."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Ended, Left, Member, Receipt, Session, SessionFilter, SessionRef, State
from quarterdeck.domain.sessions.operations.caller_session import bearers_of, by_ref, require_bearer
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules.cascade import Ref, left_over
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

LEFT_MAX = 100
"""How many of what is left a receipt names."""


async def show(tx: Tx, asks: Sequence[SessionRef]) -> list[Session | Problem | Busy]:
    """Sessions by id, as they read now: one that has expired reads as terminated."""
    refs = {(ask.zone_id, ask.session_id) for ask in asks} | bearers_of(asks)
    [rows] = await tx.read(Q.sessions_get(batch=sorted(refs)))
    found = by_ref(rows)
    outcomes: list[Session | Problem | Busy] = []
    for ask in asks:
        session = found.get((ask.zone_id, ask.session_id))
        stranger = rules.bearer_problem(ask.bearer, found, tx.now)
        shown = rules.as_read(session, tx.now) if session else rules.not_found(ask.session_id)
        outcomes.append(stranger or shown)
    return outcomes


async def page(tx: Tx, wanted: SessionFilter) -> list[Session]:
    """Up to `limit` sessions, newest first, by the index that narrows most."""
    await require_bearer(tx, wanted.bearer)
    ended = None if wanted.status is None else int(wanted.status is State.TERMINATED)
    live = None if ended else wanted.status
    common = {"zone_id": wanted.zone_id, "before": wanted.before, "limit": wanted.limit, "root_id": wanted.root_id}
    named = {"application_id": wanted.application_id}
    if wanted.parent_id is not None:
        statement = Q.sessions_page_of_parent(parent_id=wanted.parent_id, status=live, ended=ended, **common, **named)
    elif live is not None:
        statement = Q.sessions_page_of_status(status=live, **common, **named)
    elif wanted.application_id is not None:
        statement = Q.sessions_page_of_application(ended=ended, **common, **named)
    else:
        statement = Q.sessions_page(ended=ended, **common, **named)
    [rows] = await tx.read(statement)
    if not rows:
        await zones.require(tx, wanted.zone_id)
    return [rules.as_read(session, tx.now) for session in decode(rows, Session)]


async def subtree(tx: Tx, ref: SessionRef) -> list[Session]:
    """A session and all its descendants, parents first."""
    await require_bearer(tx, ref.bearer)
    [rows] = await tx.read(Q.sessions_subtrees(batch=[(ref.zone_id, ref.session_id)]))
    if not rows:
        raise rules.not_found(ref.session_id)
    return [rules.as_read(session, tx.now) for session in decode([row[1:] for row in rows], Session)]


async def receipt(tx: Tx, ended: Ended, took_ms: int) -> Receipt:
    """What became of an ending, counted from the rows after it and not from what it set out to do."""
    if ended.session_id is None:
        # Of a zone only what was alive is counted: what ever ended in it may be millions, and nobody asked for them.
        [there] = await tx.read(Q.members_of_zones(batch=[(ended.zone_id,)]))
        members = decode(there, Member)
        gone = ended.stopped
    else:
        [[[count]], there] = await tx.read(
            Q.ended_below(zone_id=ended.zone_id, session_id=ended.session_id),
            Q.members_of_subtrees(batch=[(ended.zone_id, ended.session_id)]),
        )
        members = decode([row[1:] for row in there], Member)
        gone = int(str(count))
    left = left_over(members)
    return Receipt(
        zone_id=ended.zone_id,
        session_id=ended.session_id,
        cascade_id=ended.cascade_id,
        reason=ended.reason,
        asked=gone + sum(member.terminated_at is None for member in members),
        stopped=ended.stopped,
        already_stopped=max(0, gone - ended.stopped),
        duration_ms=took_ms,
        joined=ended.joined,
        left=[Left(session_id, why) for session_id, why in [*left.items()][:LEFT_MAX]],
    )


# -- what sweeps look for, across zones ---------------------------------------------------------------------------


async def expired(tx: Tx, limit: int) -> list[Ref]:
    """The topmost sessions of what has expired."""
    return _refs(*await tx.read(Q.sessions_expired(limit=limit)))


async def orphaned(tx: Tx, limit: int) -> list[Ref]:
    """Live sessions whose parent has ended or is gone."""
    return _refs(*await tx.read(Q.sessions_orphaned(limit=limit)))


async def unfinished(tx: Tx, limit: int) -> list[Ref]:
    """(zone, cascade) of the endings under way."""
    return _refs(*await tx.read(Q.cascades_unfinished(limit=limit)))


def _refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(name)) for zone_id, name in rows]
