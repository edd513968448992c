"""One batch of everything: load under the zones' locks, decide on the board, write in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import (
    Claim,
    Command,
    Complete,
    Enqueue,
    Invocation,
    Leases,
    Outcome,
    Overdue,
    Ref,
    Release,
    Start,
    State,
)
from quarterdeck.domain.invocations.operations import writing
from quarterdeck.domain.invocations.operations.waiting import Waiter, Waiters
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules import Board, Known
from quarterdeck.domain.invocations.rules.board import ServiceRef
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row, decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]
NOTHING = Leases(())
NOT_PARKED = 0


class Exchange:
    """An object because it knows how long a lease is, and who waits for work in this process."""

    def __init__(self, lease_ms: int, waiters: Waiters) -> None:
        self._lease_ms = lease_ms
        self._waiters = waiters

    async def run(self, tx: Tx, asks: Sequence[Command]) -> list[Outcome | Problem | Busy]:
        concerned = zones_of(asks)
        known, locked = await self._load(tx, asks, concerned)
        why_not = await zones.unlocked(tx, concerned - locked)
        board = Board(known)
        outcomes: list[Outcome | Problem | Busy] = [
            sessions.held_up(ask, why_not) or board.decide(ask) for ask in asks
        ]
        self._park(tx, asks, outcomes)
        self._hand_over(tx, board, asks, locked)
        await self._write(tx, board)
        return outcomes

    # -- loading: one round trip ---------------------------------------------------------------------------------

    async def _load(self, tx: Tx, asks: Sequence[Command], concerned: set[str]) -> tuple[Known, set[str]]:
        calls = [ask for ask in asks if isinstance(ask, Enqueue)]
        claims = [ask for ask in asks if isinstance(ask, Claim)]
        named: Batch = [
            *sorted({(ask.zone_id, ask.id) for ask in asks if not isinstance(ask, Enqueue | Claim)})
        ]
        statements: list[Bound | None] = [
            zones.lock(tx, concerned),
            services.get(_services(calls, claims)) if calls or claims else None,
            Q.invocations_get(batch=named) if named else None,
            Q.invocations_of_keys(batch=_keys(calls)) if calls else None,
            Q.invocations_of_claims(batch=held) if (held := _claimed(claims)) else None,
            _next_of(wanted) if (wanted := self._wanted(calls, claims)) else None,
            sessions.get(refs) if (refs := self._sessions(asks, calls)) else None,
        ]
        answers = iter(await tx.read(*(statement for statement in statements if statement)))
        zone_rows, service_rows, *named_rows, due_rows, session_rows = (
            next(answers) if statement else [] for statement in statements
        )
        locked = zones.locked(zone_rows)
        # Of a zone that was busy nothing is known: whoever holds its lock may be handing out, or ending, the same now.
        found = decode([row for of_kind in named_rows for row in of_kind], Invocation)
        rows = [row for row in found if row.zone_id in locked]
        due = [each for each in _due(due_rows, tx.now) if each[0].zone_id in locked]
        known = Known(
            now=tx.now,
            lease_ms=self._lease_ms,
            zones={
                z.id: zone_rules.has_ended(z.id) if z.ended_at is not None else None for z in locked.values()
            },
            services=services.found(service_rows),
            sessions=sessions.by_ref(session_rows) | await _sessions_of(tx, asks, rows),
            rows=rows,
            due=due,
        )
        return known, set(locked)

    def _wanted(self, calls: Sequence[Enqueue], claims: Sequence[Claim]) -> dict[ServiceRef, int]:
        """How many of each service's next invocations the batch may hand out."""
        wanted: dict[ServiceRef, int] = {}
        for claim in claims:
            ref = (claim.zone_id, claim.service_id)
            wanted[ref] = wanted.get(ref, 0) + claim.max
        for ref in {(call.zone_id, call.service_id) for call in calls}:
            if waiting := sum(waiter.claim.max for waiter in self._waiters.of(ref)):
                wanted[ref] = wanted.get(ref, 0) + waiting
        return wanted

    def _sessions(self, asks: Sequence[Command], calls: Iterable[Enqueue]) -> list[Ref]:
        """The sessions that calls name, and those that callers and whoever waits for these calls speak for."""
        found = sessions.bearers_of(asks)
        for call in calls:
            found |= {
                (call.zone_id, s) for s in (call.source_session_id, call.target_session_id) if s is not None
            }
        for ref in {(call.zone_id, call.service_id) for call in calls}:
            found |= sessions.bearers_of(waiter.claim for waiter in self._waiters.of(ref))
        return sorted(found)

    # -- handing over --------------------------------------------------------------------------------------------

    def _park(self, tx: Tx, asks: Sequence[Command], outcomes: Sequence[Outcome | Problem | Busy]) -> None:
        """Whoever found nothing waits from this commit on, so that nothing of this process can pass in between."""
        for ask, outcome in zip(asks, outcomes, strict=True):
            if isinstance(ask, Claim) and isinstance(ask.waiter, Waiter) and outcome == NOTHING:
                tx.on_commit(partial(self._waiters.add, ask.waiter))

    def _hand_over(self, tx: Tx, board: Board, asks: Sequence[Command], locked: set[str]) -> None:
        """What has become due goes to whoever waits for it, in the same commit."""
        for ref in {(ask.zone_id, ask.service_id) for ask in asks if isinstance(ask, Enqueue)}:
            for waiter in self._waiters.of(ref):
                if not board.has_due(ref):
                    break
                home = waiter.claim.bearer
                given = board.decide(waiter.claim) if home is None or home.zone_id in locked else None
                if isinstance(given, Leases) and given.items:
                    tx.on_commit(partial(self._waiters.hand, waiter, given.items))
                else:
                    # Its session has ended or sleeps, or its zone is not ours to look at here: asking, it is told.
                    tx.on_commit(partial(self._waiters.hand, waiter, ()))

    @staticmethod
    async def _write(tx: Tx, board: Board) -> None:
        if board.created:
            writing.insert(tx, board.rows(board.created))
        if board.changed:
            await writing.move(tx, zip(board.changed.values(), board.rows(board.changed), strict=True))
        for told in board.told:
            tx.emit(writing.event(told))


def _services(calls: Iterable[Enqueue], claims: Iterable[Claim]) -> list[ServiceRef]:
    called = {(ask.zone_id, ask.service_id) for ask in calls}
    return sorted(called | {(ask.zone_id, ask.service_id) for ask in claims})


def _keys(calls: Iterable[Enqueue]) -> Batch:
    return [*sorted({(ask.zone_id, ask.service_id, ask.key) for ask in calls})]


def _claimed(claims: Iterable[Claim]) -> Batch:
    named = {(c.zone_id, c.service_id, c.claim_id, State.RUNNING) for c in claims if c.claim_id is not None}
    return [*sorted(named)]


def _next_of(wanted: dict[ServiceRef, int]) -> Bound:
    batch: Batch = [(*ref, State.PENDING, NOT_PARKED) for ref in sorted(wanted)]
    return Q.invocations_due(batch=batch, most=max(wanted.values()))


async def _sessions_of(tx: Tx, asks: Sequence[Command], rows: Sequence[Invocation]) -> dict[Ref, Session]:
    """For those who name an invocation that may begin, or wait again, and must know whether its sessions live. They are
    few: a sweep, a start, what failed or is given back."""
    named = {
        (ask.zone_id, ask.id)
        for ask in asks
        if isinstance(ask, Start | Overdue | Release)
        or (isinstance(ask, Complete) and ask.status == "failed")
    }
    refs = {
        (row.zone_id, session_id)
        for row in rows
        if (row.zone_id, row.id) in named
        for session_id in (row.source_session_id, row.target_session_id)
        if session_id is not None
    }
    return sessions.by_ref((await tx.read(sessions.get(sorted(refs))))[0]) if refs else {}


def _due(rows: Sequence[Row], now: Millis) -> list[tuple[Invocation, bool]]:
    invocations = decode([row[:-1] for row in rows], Invocation)
    until = [row[-1] for row in rows]
    return [
        (invocation, end is None or int(str(end)) > now)
        for invocation, end in zip(invocations, until, strict=True)
    ]
