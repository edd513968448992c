"""Admission: load under the zones' locks, decide by `rules.admission`, write set by set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.core.idempotency import Binding, Key
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned
from quarterdeck.domain.sessions.operations.caller_session import bearers_of, held_up
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import SPAWN, Count, CountKey, Known
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound


class Spawner:
    """Admission. An object only because it must know the platform's default limits."""

    def __init__(self, defaults: Limits) -> None:
        self._defaults = defaults

    async def spawn(self, tx: Tx, asks: Sequence[Spawn]) -> list[Spawned | Problem | Busy]:
        concerned = zones_of(asks)
        known = await self._load(tx, asks, zones.lock(tx, concerned))
        why_not = await zones.unlocked(tx, concerned - known.terms.keys())
        waiting = [held_up(ask, why_not) if why_not else None for ask in asks]
        judged = [ask for ask, wait in zip(asks, waiting, strict=True) if wait is None]
        decided = iter(await _admit(tx, judged, known))
        outcomes = [wait or next(decided) for wait in waiting]
        _write(tx, asks, outcomes)
        return outcomes

    async def load_to_look(self, tx: Tx, ask: Spawn) -> Known:
        """The same without a lock, for whoever only wants to know what would be decided."""
        known = await self._load(tx, [ask], zones.look(ask.zone_id))
        if ask.zone_id not in known.terms:
            raise zone_rules.not_found(ask.zone_id)
        return known

    async def _load(self, tx: Tx, asks: Sequence[Spawn], zone_rows: Bound) -> Known:
        """One round trip: the locks first, then everything that decides."""
        keys = list({Key(a.zone_id, a.application_id, SPAWN, a.key) for a in asks if a.key is not None})
        parents = sorted({(a.zone_id, a.parent_id) for a in asks if a.parent_id is not None})
        bearers = bearers_of(asks)
        statements = [
            zone_rows,
            Q.counts_load(batch=list(_bounded(asks))),
            Q.counts_of_trees(batch=list(parents)) if parents else None,
            Q.sessions_get(batch=sorted({*parents, *bearers})) if parents or bearers else None,
            idempotency.load(keys) if keys else None,
            Q.sessions_of_keys(batch=[msgspec.structs.astuple(key) for key in keys]) if keys else None,
        ]
        answers = iter(await tx.read(*(statement for statement in statements if statement)))
        locked, counts, trees, named, bound, replayed = (next(answers) if s else [] for s in statements)
        return Known(
            now=tx.now,
            terms={z.id: zone_rules.terms(z, self._defaults) for z in zones.locked(locked).values()},
            sessions={(s.zone_id, s.id): s for s in decode([*named, *replayed], Session)},
            keys=idempotency.loaded(bound),
            counts=_counts([*counts, *trees]),
        )


def _bounded(asks: Iterable[Spawn]) -> Iterable[tuple[object, ...]]:
    """The rows of `admission_counts` a batch is judged by, other than its trees'."""
    wanted: set[CountKey] = set()
    for ask in asks:
        wanted.add((ask.zone_id, "zone", ""))
        wanted.add((ask.zone_id, "application", ask.application_id))
        if ask.parent_id is not None:
            wanted.add((ask.zone_id, "concurrent", ""))
            wanted.add((ask.zone_id, "parent", ask.parent_id))
    return wanted


class _CountRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    scope: str
    key: str
    live: int
    ever: int


def _counts(rows: Sequence[Row]) -> dict[CountKey, Count]:
    return {(row.zone_id, row.scope, row.key): Count(row.live, row.ever) for row in decode(rows, _CountRow)}


async def _admit(tx: Tx, asks: Sequence[Spawn], known: Known) -> list[Spawned | Problem]:
    decided = rules.admit(asks, known)
    full = {a.zone_id for a, d in zip(asks, decided, strict=True) if isinstance(d, LimitReached)}
    if not full:
        return decided
    # A bound refuses: only now is it worth asking what of it has expired and merely waits for a sweep.
    batch: list[tuple[object, ...]] = [(zone_id,) for zone_id in sorted(full)]
    [rows] = await tx.read(Q.expired_unswept(batch=batch, now=known.now))
    if not rows:
        return decided
    counts = rules.without(known.counts, decode(rows, rules.Expired))
    return rules.admit(asks, dataclasses.replace(known, counts=counts))


def _write(tx: Tx, asks: Sequence[Spawn], outcomes: Sequence[Spawned | Problem | Busy]) -> None:
    """Sessions, counts, keys and events of what was admitted, set by set."""
    made = [
        (ask, outcome.session)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, Spawned) and outcome.created
    ]
    if not made:
        return
    sessions = [session for _, session in made]
    tx.write(Q.sessions_insert(batch=[msgspec.structs.astuple(session) for session in sessions]))
    tx.write(Q.counts_raise(batch=[(*key, n) for key, n in sorted(rules.tally(sessions).items())]))
    if bindings := [_binding(ask, session) for ask, session in made if ask.key is not None]:
        tx.write(idempotency.store(bindings, tx.now))
    for ask, session in made:
        tx.emit(_spawned(ask, session))


def _binding(ask: Spawn, session: Session) -> Binding:
    return Binding(ask.zone_id, ask.application_id, SPAWN, ask.key or "", ask.digest, session.id)


def _spawned(ask: Spawn, session: Session) -> NewEvent:
    data = msgspec.json.encode(
        {
            "application_id": session.application_id,
            "parent_id": session.parent_id,
            "root_id": session.root_id,
            "session_sid": session.session_sid,
            "depth": session.depth,
            "expires_at": iso(session.expires_at),
        }
    ).decode()
    return NewEvent(
        "session.spawn", session.zone_id, session.id, ask.caller.subject, None, session.status, data, ask.trace
    )
