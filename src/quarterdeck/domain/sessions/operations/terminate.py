"""Endings: what fits is ended in one transaction; what does not is stamped in one and settled in chunks.

Whoever asked for an ending, whoever joined it and the sweep all do the same: they submit `Settle` until the cascade is
finished. Each chunk is taken under the zone's lock, oldest cascade first, so they help each other instead of waiting,
and whoever is killed meanwhile is not missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Cascade, Ended, Member, Settle, Settled, State, StopZone, Terminate
from quarterdeck.domain.sessions.operations.caller_session import bearers_of, by_ref, held_up
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules.cascade import Ask, Endings, Known, Leaving, Ref
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import Zone
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound, pieces

Batch = list[tuple[object, ...]]
Sid = tuple[str, str]
"""(zone, sid)"""


class Ender:
    """An object only because it must know how much one transaction may settle."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    async def terminate(self, tx: Tx, asks: Sequence[Terminate]) -> list[Ended | Problem | Busy]:
        """Ends sessions with their subtrees. Ending what has ended succeeds and moves nothing."""
        targets = {(ask.zone_id, ask.session_id) for ask in asks}
        along = {(ask.zone_id, session_id) for ask in asks for session_id in ask.along}
        locked_rows, reached, named, open_rows = await tx.read(
            zones.lock(tx, zones_of(asks)),
            Q.members_of_subtrees(batch=[*sorted(targets | along)]),
            Q.sessions_get(batch=sorted(bearers_of(asks) | targets)),
            Q.cascades_under_way(batch=_zones(asks)),
        )
        sessions = by_ref(named)
        members: dict[tuple[str, str | None], list[Member]] = {}
        for row, member in zip(reached, decode([row[1:] for row in reached], Member), strict=True):
            members.setdefault((member.zone_id, str(row[0])), []).append(member)
        locked = zones.locked(locked_rows)
        why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
        endings = Endings(Known(tx.now, sessions, members, _open(open_rows)), self._chunk)
        outcomes: list[Ended | Problem | Busy] = []
        for ask in asks:
            stranger = rules.bearer_problem(ask.bearer, sessions, tx.now)
            outcomes.append(held_up(ask, why_not) or stranger or endings.decide(ask, new_id()))
        await _write(tx, endings)
        return outcomes

    async def stop_zone(self, tx: Tx, asks: Sequence[StopZone]) -> list[Ended | Problem | Busy]:
        """The big red button: no admission from here on, and the end of everything that was admitted."""
        locked_rows, reached, named, open_rows = await tx.read(
            zones.lock(tx, zones_of(asks)),
            Q.members_of_zones(batch=_zones(asks)),
            Q.sessions_get(batch=sorted(bearers_of(asks))),
            Q.cascades_under_way(batch=_zones(asks)),
        )
        bearers = by_ref(named)
        members: dict[tuple[str, str | None], list[Member]] = {}
        for member in decode(reached, Member):
            members.setdefault((member.zone_id, None), []).append(member)
        locked = zones.locked(locked_rows)
        why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
        endings = Endings(Known(tx.now, {}, members, _open(open_rows)), self._chunk)
        outcomes: list[Ended | Problem | Busy] = []
        for ask in asks:
            refusal = held_up(ask, why_not) or rules.bearer_problem(ask.bearer, bearers, tx.now)
            if refusal is None:
                locked[ask.zone_id] = _close(tx, locked[ask.zone_id], ask)
            outcomes.append(refusal or endings.decide(ask, new_id()))
        await _write(tx, endings)
        return outcomes

    async def settle(self, tx: Tx, asks: Sequence[Settle]) -> list[Settled | Problem | Busy]:
        """One more chunk of the oldest cascade of each zone, and whether the one that was asked about is over."""
        locked_rows, open_rows = await tx.read(
            zones.lock(tx, (ask.zone_id for ask in asks)), Q.cascades_under_way(batch=_zones(asks))
        )
        locked = zones.locked(locked_rows)
        why_not = await zones.unlocked(tx, {ask.zone_id for ask in asks} - locked.keys())
        under_way = [cascade for cascade in decode(open_rows, Cascade) if cascade.zone_id in locked]
        by_zone = {cascade.zone_id: cascade for cascade in reversed(under_way)}
        left = {(cascade.zone_id, cascade.id) for cascade in under_way}
        each = max(1, self._chunk // max(1, len(by_zone)))
        for cascade in by_zone.values():
            if await _settle_chunk(tx, cascade, each):
                left.discard((cascade.zone_id, cascade.id))
        return [why_not.get(ask.zone_id) or Settled((ask.zone_id, ask.cascade_id) not in left) for ask in asks]


def _zones(asks: Sequence[Terminate | StopZone | Settle]) -> Batch:
    return [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]


def _open(rows: Sequence[Row]) -> Mapping[Ref, Cascade]:
    return {(cascade.zone_id, cascade.id): cascade for cascade in decode(rows, Cascade)}


def _close(tx: Tx, zone: Zone, ask: StopZone) -> Zone:
    if zone.ended_at is not None:
        return zone
    zone = zones.frozen(tx, zone, True, ask.actor, ask.trace)
    return zones.end(tx, zone, ask.actor, ask.trace) if ask.ends else zone


async def _write(tx: Tx, endings: Endings) -> None:
    """The places are given back at once, also by what is only stamped: it no longer counts as live."""
    leaving = [*endings.settled, *(each for _, group in endings.stamped for each in group)]
    if not leaving:
        return
    for cascade, group in endings.stamped:
        await _stamp(tx, cascade, group)
    batch: Batch = [(*_ref(each.member), each.member.status, each.reason, each.ended_at) for each in endings.settled]
    in_use: set[Sid] = set()
    if batch:
        end = Q.sessions_end(batch=batch, now=tx.now)
        in_use = await _move(tx, end, [each.member for each in endings.settled])
    members = [each.member for each in leaving]
    for piece in pieces([(*key, n) for key, n in sorted(rules.tally(members).items())]):
        tx.write(Q.counts_lower(batch=piece))
    for piece in pieces(sorted({key for member in members for key in rules.emptied_by(member)})):
        tx.write(Q.counts_drop(batch=piece))
    for each in endings.settled:
        tx.emit(_terminated(each.member, each.reason, each.ask, in_use))


async def _move(tx: Tx, statement: Bound, members: Sequence[Member]) -> set[Sid]:
    """Ends these sessions; and which of their sids are still in use. That is asked after the statement that ends them,
    and after every stamp of the same transaction, so that whoever goes together counts for nobody."""
    sids: Batch = [*sorted({(member.zone_id, member.session_sid) for member in members})]
    moved, used = await tx.read(statement, Q.sids_in_use(batch=sids, now=tx.now))
    if len(moved) != len(members):
        raise RuntimeError("sessions moved under the zone's lock")
    return {(str(zone_id), str(sid)) for zone_id, sid, anybody in used if anybody is not None}


async def _stamp(tx: Tx, cascade: Cascade, group: Sequence[Leaving]) -> None:
    batch: Batch = [
        (*_ref(each.member), each.member.status, place, each.reason, each.ended_at) for place, each in enumerate(group)
    ]
    for piece in pieces(batch):
        [moved] = await tx.read(Q.sessions_stamp(batch=piece, cascade_id=cascade.id, now=tx.now))
        if len(moved) != len(piece):
            raise RuntimeError("sessions moved under the zone's lock")
    told = msgspec.structs.asdict(cascade)
    del told["settled"], told["finished_at"]
    tx.write(Q.cascade_insert(**told))
    # The decision itself is an event: it says since when all of these read as ended, and it proves the commit.
    data = {"cascade_id": cascade.id, "stamped": cascade.stamped, "reason": cascade.reason}
    subject = cascade.target_id or cascade.zone_id
    text = msgspec.json.encode(data).decode()
    tx.emit(NewEvent("cascade.begin", cascade.zone_id, subject, cascade.actor, data=text, trace=cascade.trace))


async def _settle_chunk(tx: Tx, cascade: Cascade, limit: int) -> bool:
    """Settles the next sessions of a cascade; whether that was all of it."""
    [rows] = await tx.read(Q.members_of_cascade(zone_id=cascade.zone_id, cascade_id=cascade.id, limit=limit))
    members = decode([row[:-1] for row in rows], Member)
    batch: Batch = [(*_ref(member), member.status) for member in members]
    finished = len(members) < limit
    in_use = await _move(tx, Q.sessions_settle(batch=batch, now=tx.now), members) if batch else set()
    tx.write(
        Q.cascade_progress(
            zone_id=cascade.zone_id, id=cascade.id, count=len(members), finished=int(finished), now=tx.now
        )
    )
    for row, member in zip(rows, members, strict=True):
        tx.emit(_terminated(member, str(row[-1]), cascade, in_use))
    return finished


def _ref(member: Member) -> Ref:
    return member.zone_id, member.id


def _terminated(member: Member, reason: str, by: Ask | Cascade, in_use: Collection[Sid]) -> NewEvent:
    cause = by.target_id if isinstance(by, Cascade) else by.session_id
    told = {
        "reason": reason,
        "cause": cause or member.zone_id,
        "session_sid": member.session_sid,
        "root_id": member.root_id,
        # Whoever revokes what was issued for the sid must not take it from a session that lives on.
        "sid_in_use": (member.zone_id, member.session_sid) in in_use,
    }
    data = msgspec.json.encode(told).decode()
    return NewEvent(
        "session.terminate", member.zone_id, member.id, by.actor, member.status, State.TERMINATED, data, by.trace
    )


@dataclass(frozen=True, slots=True)
class Finisher:
    """Endings seen through to their end: what routes and sweeps share, over the lanes they are handed."""

    terminate: Callable[[Terminate], Awaitable[Ended]]
    stop: Callable[[StopZone], Awaitable[Ended]]
    settle: Callable[[Settle], Awaitable[Settled]]

    async def end(self, ask: Terminate) -> Ended:
        return await self.see_through(await self.terminate(ask))

    async def stop_zone(self, ask: StopZone) -> Ended:
        return await self.see_through(await self.stop(ask))

    async def see_through(self, ended: Ended) -> Ended:
        """Settles chunk after chunk until nothing of it is left, beside whoever else does the same."""
        if ended.cascade_id is not None:
            await self.finish(ended.zone_id, ended.cascade_id)
        return ended

    async def finish(self, zone_id: str, cascade_id: str) -> None:
        while not (await self.settle(Settle(zone_id, cascade_id))).finished:
            pass
