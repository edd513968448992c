"""What can be done with sessions, each verb over a batch: load under locks, decide by `rules`, write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.core.keys import Binding, Key
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import (
    Receipt,
    Session,
    SessionFilter,
    SessionRef,
    Spawn,
    Spawned,
    State,
    Terminate,
)
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import SPAWN, Count, CountKey, Known
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine import idempotency
from quarterdeck.engine.events import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row, decode

Ref = tuple[str, str]
"""(zone, session)"""


class Spawner:
    """Admission. An object only because it must know the platform's default limits."""

    def __init__(self, defaults: Limits) -> None:
        self._defaults = defaults

    async def spawn(self, tx: Tx, asks: Sequence[Spawn]) -> list[Spawned | Problem | Busy]:
        known = await self._load(tx, asks)
        why_not = await zones.unlocked(tx, {ask.zone_id for ask in asks} - known.terms.keys())
        judged = [ask for ask in asks if ask.zone_id in known.terms]
        decided = iter(await _admit(tx, judged, known))
        outcomes = [next(decided) if ask.zone_id in known.terms else why_not[ask.zone_id] for ask in asks]
        _write(tx, asks, outcomes)
        return outcomes

    async def _load(self, tx: Tx, asks: Sequence[Spawn]) -> Known:
        """One round trip: the locks first, then everything that decides."""
        keys = list({Key(a.zone_id, a.application_id, SPAWN, a.key) for a in asks if a.key is not None})
        parents = sorted({(a.zone_id, a.parent_id) for a in asks if a.parent_id is not None})
        bearers = {(a.zone_id, a.caller.session_id) for a in asks if a.caller.session_id is not None}
        statements = [
            zones.lock(tx, (ask.zone_id for ask in asks)),
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
        "session.spawn",
        session.zone_id,
        session.id,
        ask.caller.subject,
        None,
        session.status,
        data,
        ask.trace,
    )


# -- ending ------------------------------------------------------------------------------------------------------


async def terminate(tx: Tx, asks: Sequence[Terminate]) -> list[Receipt | Problem | Busy]:
    """Ends sessions with their subtrees, children before parents. Ending what has ended succeeds and moves nothing."""
    refs = sorted({(ask.zone_id, ask.session_id) for ask in asks})
    bearers = sorted({(ask.zone_id, ask.bearer) for ask in asks if ask.bearer is not None})
    locked_rows, reached, named = await tx.read(
        zones.lock(tx, (ask.zone_id for ask in asks)),
        Q.sessions_subtrees(batch=list(refs)),
        Q.sessions_get(batch=list(bearers)),
    )
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, {ask.zone_id for ask in asks} - locked.keys())
    subtrees = _subtrees(reached)
    known = {(s.zone_id, s.id): s for s in decode(named, Session)}
    ending = _Ending(tx, subtrees)
    outcomes: list[Receipt | Problem | Busy] = []
    for ask in asks:
        stranger = rules.bearer_problem(ask.zone_id, ask.bearer, known, tx.now)
        outcomes.append(why_not.get(ask.zone_id) or stranger or ending.decide(ask))
    await ending.write()
    return outcomes


def _subtrees(rows: Sequence[Row]) -> dict[Ref, list[Session]]:
    """By the session asked for: its subtree, parents first."""
    found: dict[Ref, list[Session]] = {}
    for top, session in zip(
        (str(row[0]) for row in rows), decode([row[1:] for row in rows], Session), strict=True
    ):
        found.setdefault((session.zone_id, top), []).append(session)
    return found


class _Ending:
    """What a batch of terminations ends: each session once, by the first ask that reaches it."""

    def __init__(self, tx: Tx, subtrees: dict[Ref, list[Session]]) -> None:
        self._tx = tx
        self._subtrees = subtrees
        self._ended: dict[Ref, tuple[Session, Terminate, str]] = {}

    def decide(self, ask: Terminate) -> Receipt | Problem:
        subtree = self._subtrees.get((ask.zone_id, ask.session_id))
        if subtree is None:
            return rules.not_found(ask.session_id)
        if ask.caller and not ask.caller.may_act_for(subtree[0].application_id, "spawn_for"):
            return rules.ownership_required(subtree[0].application_id)
        stopped = 0
        for session in rules.post_order(subtree):
            ref = (session.zone_id, session.id)
            if session.status is State.TERMINATED or ref in self._ended:
                continue
            # What had expired is ended by its time, whoever comes to say so.
            reason = ask.reason if rules.is_live(session, self._tx.now) else rules.EXPIRED
            self._ended[ref] = (session, ask, reason)
            stopped += 1
        return Receipt(ask.session_id, ask.reason, len(subtree), stopped, len(subtree) - stopped)

    async def write(self) -> None:
        if not self._ended:
            return
        # What had expired ended when it expired, as everybody has read since; a late sweep does not move the instant.
        batch: list[tuple[object, ...]] = [
            (*ref, session.status, reason, min(session.expires_at, self._tx.now))
            for ref, (session, _, reason) in self._ended.items()
        ]
        [moved] = await self._tx.read(Q.sessions_end(batch=batch, now=self._tx.now))
        if len(moved) != len(batch):
            raise RuntimeError("sessions moved under the zone's lock")
        sessions = [session for session, _, _ in self._ended.values()]
        lowered = rules.tally(sessions)
        dropped = {key for session in sessions for key in rules.emptied_by(session)}
        self._tx.write(Q.counts_lower(batch=[(*key, n) for key, n in sorted(lowered.items())]))
        self._tx.write(Q.counts_drop(batch=sorted(dropped)))
        for session, ask, reason in self._ended.values():
            self._tx.emit(_terminated(session, ask, reason))


def _terminated(session: Session, ask: Terminate, reason: str) -> NewEvent:
    data = msgspec.json.encode(
        {
            "reason": reason,
            "cause": ask.session_id,
            "session_sid": session.session_sid,
            "root_id": session.root_id,
        }
    ).decode()
    return NewEvent(
        "session.terminate",
        session.zone_id,
        session.id,
        ask.actor,
        session.status,
        State.TERMINATED,
        data,
        ask.trace,
    )


# -- looking -----------------------------------------------------------------------------------------------------


async def show(tx: Tx, asks: Sequence[SessionRef]) -> list[Session | Problem | Busy]:
    """Sessions by id, as they read now: one that has expired reads as terminated."""
    refs = {(ask.zone_id, ask.session_id) for ask in asks} | {(a.zone_id, a.bearer) for a in asks if a.bearer}
    [rows] = await tx.read(Q.sessions_get(batch=sorted(refs)))
    found = {(s.zone_id, s.id): s for s in decode(rows, Session)}
    outcomes: list[Session | Problem | Busy] = []
    for ask in asks:
        session = found.get((ask.zone_id, ask.session_id))
        stranger = rules.bearer_problem(ask.zone_id, ask.bearer, found, tx.now)
        shown = rules.as_read(session, tx.now) if session else rules.not_found(ask.session_id)
        outcomes.append(stranger or shown)
    return outcomes


async def page(tx: Tx, wanted: SessionFilter) -> list[Session]:
    """Up to `limit` sessions, newest first, by the index that narrows most."""
    await require_bearer(tx, wanted.zone_id, wanted.bearer)
    ended = None if wanted.status is None else int(wanted.status is State.TERMINATED)
    live = None if ended else wanted.status
    common = {
        "zone_id": wanted.zone_id,
        "before": wanted.before,
        "limit": wanted.limit,
        "root_id": wanted.root_id,
    }
    named = {"application_id": wanted.application_id}
    if wanted.parent_id is not None:
        statement = Q.sessions_page_of_parent(
            parent_id=wanted.parent_id, status=live, ended=ended, **common, **named
        )
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
    await require_bearer(tx, ref.zone_id, ref.bearer)
    [rows] = await tx.read(Q.sessions_subtrees(batch=[(ref.zone_id, ref.session_id)]))
    found = _subtrees(rows).get((ref.zone_id, ref.session_id))
    if found is None:
        raise rules.not_found(ref.session_id)
    return [rules.as_read(session, tx.now) for session in found]


async def require_bearer(tx: Tx, zone_id: str, bearer: str | None) -> None:
    """Refuses a token whose session has ended, before anything is read for it."""
    if bearer is None:
        return
    [rows] = await tx.read(Q.sessions_get(batch=[(zone_id, bearer)]))
    found = {(s.zone_id, s.id): s for s in decode(rows, Session)}
    if problem := rules.bearer_problem(zone_id, bearer, found, tx.now):
        raise problem


async def expired(tx: Tx, limit: int) -> list[Ref]:
    """The topmost sessions of what has expired, across zones."""
    [rows] = await tx.read(Q.sessions_expired(limit=limit))
    return [(str(zone_id), str(session_id)) for zone_id, session_id in rows]
