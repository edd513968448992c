"""Why a session is in its state, and what a spawn would meet: read as it stands, under no lock."""

from __future__ import annotations

import dataclasses

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import iso
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import (
    Cascade,
    Member,
    Session,
    SessionExplanation,
    SessionRef,
    Spawn,
    SpawnExplanation,
    State,
)
from quarterdeck.domain.sessions.operations.caller_session import by_ref, require_bearer
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules.explain import holders, spawn_explained, state_explained
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import EventFilter
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode


class Explainer:
    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    async def spawn(self, tx: Tx, ask: Spawn) -> SpawnExplanation:
        """What this spawn would meet now."""
        await require_bearer(tx, ask.bearer)
        known = await self._spawner.load_to_look(tx, ask)
        [rows] = await tx.read(Q.expired_unswept(batch=[(ask.zone_id,)], now=known.now))
        counts = rules.without(known.counts, decode(rows, rules.Expired))
        return spawn_explained(ask, dataclasses.replace(known, counts=counts))

    async def session(self, tx: Tx, ref: SessionRef, caller: Caller) -> SessionExplanation:
        await require_bearer(tx, ref.bearer)
        named, above = await tx.read(
            Q.sessions_get(batch=[(ref.zone_id, ref.session_id)]),
            Q.members_of_lines(batch=[(ref.zone_id, ref.session_id)]),
        )
        session = by_ref(named).get((ref.zone_id, ref.session_id))
        if session is None:
            raise rules.not_found(ref.session_id)
        read, line = rules.as_read(session, tx.now), decode(above, Member)
        ending = await _cascade_of(tx, session)
        ask = Spawn("", session.zone_id, caller, session.application_id, session.session_sid, session.id)
        return SessionExplanation(
            session=rules.view(read),
            why=state_explained(session, line, ending, tx.now),
            held_by=holders(read, line),
            ended_by=await _ended_by(tx, session),
            spawn=await self.spawn(tx, ask),
        )


async def _cascade_of(tx: Tx, session: Session) -> Cascade | None:
    if session.cascade_id is None:
        return None
    [rows] = await tx.read(Q.cascade_get(zone_id=session.zone_id, id=session.cascade_id))
    return next(iter(decode(rows, Cascade)), None)


async def _ended_by(tx: Tx, session: Session) -> dict[str, object] | None:
    """Who ended it and with what, as the log has it; None if it lives, or the log no longer goes back so far."""
    if session.status is not State.TERMINATED:
        return None
    wanted = EventFilter(session.zone_id, types=("session.terminate",), subject=session.id, limit=1)
    for event in await log.page(tx, wanted):
        cause = msgspec.json.decode(event.data, type=dict[str, object])
        return {**cause, "actor": event.actor, "at": iso(event.at), "pos": event.pos, "trace": event.trace}
    return None
