"""Whether the sessions that callers speak for still live, asked in the transaction of what they ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import BUSY, Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

Ref = tuple[str, str]
"""(zone, session)"""


class Asked(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def bearer(self) -> Bearer | None: ...


A = TypeVar("A", bound=Asked)
R = TypeVar("R")
Operation = Callable[[Tx, Sequence[A]], Awaitable[Sequence[R | Problem | Busy]]]


def bearers_of(asks: Iterable[Asked]) -> set[Ref]:
    """Every session that one of these callers speaks for."""
    found: set[Ref] = set()
    for ask in asks:
        if bearer := ask.bearer:
            found |= _named(bearer)
    return found


def _named(bearer: Bearer) -> set[Ref]:
    return {(bearer.zone_id, name) for name in (bearer.session_id, bearer.agent_id) if name is not None}


def get(refs: Sequence[Ref]) -> Bound:
    """The statement that loads sessions, for the first round trip of a room above."""
    return Q.sessions_get(batch=[*refs])


def by_ref(rows: Sequence[Row]) -> dict[Ref, Session]:
    return {(session.zone_id, session.id): session for session in decode(rows, Session)}


def held_up(ask: Asked, why_not: Mapping[str, Problem | Busy]) -> Problem | Busy | None:
    """Why an ask cannot be judged in this transaction: its zone could not be locked, or the zone of the session that
    its caller speaks for, which could then end before the commit. A zone that does not exist has no session."""
    home = ask.bearer.zone_id if ask.bearer is not None else ask.zone_id
    return why_not.get(ask.zone_id) or (BUSY if why_not.get(home) is BUSY else None)


async def require_bearer(tx: Tx, bearer: Bearer | None) -> None:
    """Refuses a token whose session has ended, before anything is read for it."""
    if bearer is None:
        return
    [rows] = await tx.read(Q.sessions_get(batch=sorted(_named(bearer))))
    if problem := rules.bearer_problem(bearer, by_ref(rows), tx.now):
        raise problem


def guarded(operation: Operation[A, R], *, writes: bool = True) -> Operation[A, R]:
    """An operation of a room below, which knows nothing of sessions, for callers who may speak for one. If it writes,
    the zones of those sessions are locked first: none of them can end between this look and the commit."""

    async def run(tx: Tx, asks: Sequence[A]) -> Sequence[R | Problem | Busy]:
        refs = bearers_of(asks)
        if not refs:
            return await operation(tx, asks)
        homes = {zone_id for zone_id, _ in refs}
        why_not: dict[str, Problem | Busy] = {}
        if writes:
            [locked] = await tx.read(zones.lock(tx, homes | {ask.zone_id for ask in asks}))
            why_not = await zones.unlocked(tx, homes - zones.locked(locked).keys())
        [rows] = await tx.read(Q.sessions_get(batch=sorted(refs)))
        known = by_ref(rows)
        refusals = [
            rules.bearer_problem(ask.bearer, known, tx.now) or (held_up(ask, why_not) if writes else None)
            for ask in asks
        ]
        good = [ask for ask, refusal in zip(asks, refusals, strict=True) if refusal is None]
        outcomes = iter(await operation(tx, good) if good else ())
        return [refusal or next(outcomes) for refusal in refusals]

    return run
