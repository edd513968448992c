"""Explains the state of a session, and whether a spawn would be admitted. Reads without locks."""

from __future__ import annotations

import dataclasses

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import iso
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import (
    Cascade,
    Session,
    SessionExplanation,
    SessionRef,
    Spawn,
    SpawnExplanation,
    State,
    TreeNode,
)
from quarterdeck.domain.sessions.operations.reads import decode_sessions
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import admission, states
from quarterdeck.domain.sessions.rules.admission import ExpiredGroup
from quarterdeck.domain.sessions.rules.explain import explain_spawn, explain_state, suspended_by
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import EventFilter
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode


class Explainer:
    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    async def explain_spawn(self, tx: Transaction, command: Spawn) -> SpawnExplanation:
        loaded = await self._spawner.load_unlocked(tx, command)
        [rows] = await tx.read(Q.sessions_expired_unswept(batch=[(command.zone_id,)], now=loaded.now))
        counts = admission.subtract_expired(loaded.counts, decode(rows, ExpiredGroup))
        return explain_spawn(command, dataclasses.replace(loaded, counts=counts))

    async def explain_session(self, tx: Transaction, ref: SessionRef, caller: Caller) -> SessionExplanation:
        await access.require_token(tx, ref.bearer)
        session_rows, lineage_rows = await tx.read(
            Q.sessions_get(batch=[(ref.zone_id, ref.session_id)]),
            Q.session_nodes_of_lineages(batch=[(ref.zone_id, ref.session_id)]),
        )
        session = decode_sessions(session_rows).get((ref.zone_id, ref.session_id))
        if session is None:
            raise states.session_not_found(ref.session_id)
        current, lineage = states.effective_session(session, tx.now), decode(lineage_rows, TreeNode)
        cascade = await _load_cascade(tx, session)
        command = Spawn("", session.zone_id, caller, session.application_id, session.session_sid, session.id)
        return SessionExplanation(
            session=states.view(current),
            why=explain_state(session, lineage, cascade, tx.now),
            held_by=suspended_by(current, lineage),
            ended_by=await _load_end_event(tx, session),
            spawn=await self.explain_spawn(tx, command),
        )


async def _load_cascade(tx: Transaction, session: Session) -> Cascade | None:
    if session.cascade_id is None:
        return None
    [rows] = await tx.read(Q.cascade_get(zone_id=session.zone_id, id=session.cascade_id))
    return next(iter(decode(rows, Cascade)), None)


async def _load_end_event(tx: Transaction, session: Session) -> dict[str, object] | None:
    """The termination event. None if the session is not terminated, or if retention has deleted the event."""
    if session.status is not State.TERMINATED:
        return None
    filters = EventFilter(session.zone_id, types=("session.terminate",), subject=session.id, limit=1)
    for event in await log.read_page(tx, filters):
        data = msgspec.json.decode(event.data, type=dict[str, object])
        return {**data, "actor": event.actor, "at": iso(event.at), "pos": event.pos, "trace": event.trace}
    return None
