"""One batch of everything: load under the zones' locks, decide on the board, write in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import (
    Claim,
    Command,
    Enqueue,
    Invocation,
    Leases,
    Outcome,
    Ref,
    Standing,
    State,
)
from quarterdeck.domain.invocations.operations import persist
from quarterdeck.domain.invocations.operations.long_poll import ServiceWaiter, Waiters
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules import Board, Known
from quarterdeck.domain.invocations.rules.decider import ServiceKey
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.long_poll import Waiter
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]
NOTHING = Leases(())
NOT_PARKED = 0
MORE = 64
"""Calls from before that one batch hands to those who wait, beside its own."""


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
        outcomes: list[Outcome | Problem | Busy] = [sessions.held_up(ask, why_not) or board.decide(ask) for ask in asks]
        self._park(tx, asks, outcomes)
        self._hand_over(tx, board, asks, locked)
        await self._write(tx, board)
        return outcomes

    # -- loading: one round trip ---------------------------------------------------------------------------------

    async def _load(self, tx: Tx, asks: Sequence[Command], concerned: set[str]) -> tuple[Known, set[str]]:
        calls = [ask for ask in asks if isinstance(ask, Enqueue)]
        claims = [ask for ask in asks if isinstance(ask, Claim)]
        waiting = [waiter.claim for waiters in self._waiting(calls).values() for waiter in waiters]
        named: Batch = [*sorted({(ask.zone_id, ask.id) for ask in asks if not isinstance(ask, Enqueue | Claim)})]
        due = _next_of(_wanted(calls, claims, waiting))
        statements: list[Bound | None] = [
            zones.lock(tx, concerned),
            services.get(_services(calls, claims)) if calls or claims else None,
            sessions.get(refs) if (refs := _sessions(asks, calls, waiting)) else None,
            Q.invocations_of_keys(batch=_keys(calls)) if calls else None,
            Q.invocations_of_claims(batch=held) if (held := _claimed([*claims, *waiting])) else None,
            Q.invocations_named(batch=named) if named else None,
            *due,
        ]
        answers = iter(await tx.read(*(statement for statement in statements if statement)))
        zone_rows, service_rows, session_rows, of_keys, of_claims, *standing = (
            next(answers) if statement else [] for statement in statements
        )
        locked = zones.locked(zone_rows)
        # Of a zone that was busy nothing is known: whoever holds its lock may be handing out, or ending, the same now.
        rows = [row for row in decode([*of_keys, *of_claims], Invocation) if row.zone_id in locked]
        named_rows, *due_rows = ([one for one in _standing(of) if one[0].zone_id in locked] for of in standing)
        known = Known(
            now=tx.now,
            lease_ms=self._lease_ms,
            zones=zone_rules.endings(locked.values()),
            services=services.found(service_rows),
            sessions=sessions.by_ref(session_rows),
            rows=[*(row for row, _ in named_rows), *rows],
            due=[row for of in due_rows for row, _ in of],
            standings={(row.zone_id, row.id): how for of in (named_rows, *due_rows) for row, how in of},
        )
        return known, set(locked)

    def _waiting(self, calls: Iterable[Enqueue]) -> dict[ServiceKey, list[ServiceWaiter]]:
        """The first of those who wait for what is called, as many as may find something."""
        called = Counter((call.zone_id, call.service_id) for call in calls)
        return {ref: self._waiters.of(ref)[: number + MORE] for ref, number in sorted(called.items())}

    # -- handing over --------------------------------------------------------------------------------------------

    def _park(self, tx: Tx, asks: Sequence[Command], outcomes: Sequence[Outcome | Problem | Busy]) -> None:
        """Whoever found nothing waits from this commit on, so that nothing of this process can pass in between."""
        for ask, outcome in zip(asks, outcomes, strict=True):
            if isinstance(ask, Claim) and isinstance(ask.waiter, Waiter) and outcome == NOTHING:
                tx.on_commit(partial(self._waiters.add, ask.waiter))

    def _hand_over(self, tx: Tx, board: Board, asks: Sequence[Command], locked: set[str]) -> None:
        """What has become due goes to whoever waits for it, in the same commit."""
        for ref, waiters in self._waiting(ask for ask in asks if isinstance(ask, Enqueue)).items():
            for waiter in waiters:
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
            persist.insert(tx, board.rows(board.created))
        if board.changed:
            await persist.move(tx, zip(board.changed.values(), board.rows(board.changed), strict=True))
        for told in board.told:
            tx.emit(persist.event(told))


def _services(calls: Iterable[Enqueue], claims: Iterable[Claim]) -> list[ServiceKey]:
    called = {(ask.zone_id, ask.service_id) for ask in calls}
    return sorted(called | {(ask.zone_id, ask.service_id) for ask in claims})


def _keys(calls: Iterable[Enqueue]) -> Batch:
    return [*sorted({(ask.zone_id, ask.service_id, ask.key) for ask in calls})]


def _claimed(claims: Iterable[Claim]) -> Batch:
    return [*sorted({(c.zone_id, c.claim_id) for c in claims if c.claim_id is not None})]


def _sessions(asks: Sequence[Command], calls: Iterable[Enqueue], waiting: Iterable[Claim]) -> list[Ref]:
    """The sessions that calls name, and those that callers and whoever waits for these calls speak for."""
    found = sessions.bearers_of(asks) | sessions.bearers_of(waiting)
    for call in calls:
        found |= {(call.zone_id, s) for s in (call.source_session_id, call.target_session_id) if s is not None}
    return sorted(found)


def _wanted(calls: Iterable[Enqueue], claims: Iterable[Claim], waiting: Iterable[Claim]) -> dict[ServiceKey, int]:
    """How many of each service's next invocations the batch may hand out."""
    wanted = Counter[ServiceKey]()
    for claim in claims:
        wanted[claim.zone_id, claim.service_id] += claim.max
    hungry = Counter[ServiceKey]()
    for claim in waiting:
        hungry[claim.zone_id, claim.service_id] += claim.max
    called = Counter((call.zone_id, call.service_id) for call in calls)
    for ref, most in hungry.items():
        # Whoever waits found nothing a moment ago: what is there besides these calls is little, or the lookout's.
        wanted[ref] += min(most, called[ref] + MORE)
    return wanted


def _next_of(wanted: Mapping[ServiceKey, int]) -> list[Bound]:
    """One statement for those who want about as much, so that what one wants is not loaded for all."""
    by_size: dict[int, Batch] = {}
    for ref, number in sorted(wanted.items()):
        most = 1
        while most < number:
            most *= 4
        by_size.setdefault(most, []).append((*ref, State.PENDING, NOT_PARKED))
    return [Q.invocations_due(batch=batch, most=most) for most, batch in sorted(by_size.items())]


def _standing(rows: Sequence[Row]) -> list[tuple[Invocation, Standing]]:
    own = len(Invocation.__struct_fields__)
    invocations = decode([row[:own] for row in rows], Invocation)
    return [*zip(invocations, decode([row[own:] for row in rows], Standing), strict=True)]
