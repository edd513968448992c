"""Suspension and its end: flags set and cleared, and the states that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Held, Hold, Member, State
from quarterdeck.domain.sessions.operations.caller_session import bearers_of, by_ref, held_up
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules.cascade import Ref
from quarterdeck.domain.sessions.rules.suspension import Grove, Move
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import pieces


async def hold(tx: Tx, asks: Sequence[Hold]) -> list[Held | Problem | Busy]:
    """Suspends and resumes, in order of arrival."""
    refs: list[tuple[object, ...]] = [*sorted({(ask.zone_id, ask.session_id) for ask in asks})]
    locked_rows, below, above, named = await tx.read(
        zones.lock(tx, zones_of(asks)),
        Q.members_of_subtrees(batch=refs),
        Q.members_of_lines(batch=refs),
        Q.sessions_get(batch=sorted({*bearers_of(asks), *((str(z), str(i)) for z, i in refs)})),
    )
    sessions = by_ref(named)
    why_not = await zones.unlocked(tx, zones_of(asks) - zones.locked(locked_rows).keys())
    grove = Grove(decode([*(row[1:] for row in below), *above], Member), tx.now)
    moved = _Moved()
    outcomes: list[Held | Problem | Busy] = []
    for ask in asks:
        refusal = held_up(ask, why_not) or rules.bearer_problem(ask.bearer, sessions, tx.now)
        target = sessions.get((ask.zone_id, ask.session_id))
        if refusal is None and target is None:
            refusal = rules.not_found(ask.session_id)
        if refusal is None and target and not ask.caller.may_act_for(target.application_id, "spawn_for"):
            refusal = rules.ownership_required(target.application_id)
        outcomes.append(refusal or moved.by(tx, ask, grove.decide(ask)))
    await moved.write(tx)
    return outcomes


class _Moved:
    """What a batch has moved: each session from where it was first to where it is last."""

    def __init__(self) -> None:
        self._moves: dict[Ref, Move] = {}
        self._fell: set[Ref] = set()
        """Who fell asleep in it, also if it had woken in it before: that is since when it sleeps."""

    def by(self, tx: Tx, ask: Hold, decided: list[Move] | Problem) -> Held | Problem:
        if isinstance(decided, Problem):
            return decided
        for move in decided:
            ref = (move.before.zone_id, move.before.id)
            first = self._moves.get(ref, move)
            self._moves[ref] = Move(first.before, move.after)
            if move.before.status is not move.after.status is State.SUSPENDED:
                self._fell.add(ref)
            tx.emit(_told(ask, move))
        return Held(sum(move.before.status is not move.after.status for move in decided))

    async def write(self, tx: Tx) -> None:
        batch: list[tuple[object, ...]] = [
            (*ref, move.before.status, move.after.status, move.after.held, int(ref in self._fell))
            for ref, move in sorted(self._moves.items())
        ]
        for piece in pieces(batch):
            [rows] = await tx.read(Q.sessions_hold(batch=piece, now=tx.now))
            if len(rows) != len(piece):
                raise RuntimeError("sessions moved under the zone's lock")


def _told(ask: Hold, move: Move) -> NewEvent:
    member = move.after
    data = msgspec.json.encode(
        {"cause": ask.session_id, "session_sid": member.session_sid, "root_id": member.root_id}
    ).decode()
    return NewEvent(
        f"session.{ask.verb}",
        member.zone_id,
        member.id,
        ask.caller.subject,
        move.before.status,
        member.status,
        data,
        ask.trace,
    )
