"""What can be done with zones, each over a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import (
    FreezeZone,
    Member,
    MemberChange,
    MemberFilter,
    Overrides,
    PutZone,
    Zone,
    ZoneRef,
    ZoneUse,
)
from quarterdeck.domain.zones.queries import Q
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import BUSY, Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound


def lock(tx: Tx, zone_ids: Iterable[str]) -> Bound:
    """The statement that locks the zones of a batch. It goes first, and what decides is read after it."""
    batch: list[tuple[object, ...]] = [(zone_id,) for zone_id in sorted(set(zone_ids))]
    return Q.zones_lock_waiting(batch=batch) if tx.waits else Q.zones_lock_ready(batch=batch)


async def wait_for(tx: Tx, zone_id: str) -> None:
    """Returns when nobody holds the zone's lock; it is given back at once, with this round trip."""
    await tx.read(Q.zones_lock_waiting(batch=[(zone_id,)]))


def look(zone_id: str) -> Bound:
    """The same row without its lock, for whoever decides nothing."""
    return Q.zone_get(id=zone_id)


def locked(rows: list[Row]) -> dict[str, Zone]:
    return {zone.id: zone for zone in decode(rows, Zone)}


async def unlocked(tx: Tx, zone_ids: set[str]) -> dict[str, Problem | Busy]:
    """Why each of these zones could not be locked: it is busy, or it does not exist."""
    if not zone_ids:
        return {}
    [rows] = await tx.read(Q.zones_known(batch=[(zone_id,) for zone_id in sorted(zone_ids)]))
    known = {str(row[0]) for row in rows}
    return {zone_id: BUSY if zone_id in known else rules.not_found(zone_id) for zone_id in zone_ids}


class ZonePut(msgspec.Struct, frozen=True):
    """What became of a PUT: the zone as it is now, and whether it was made by it."""

    zone: Zone
    created: bool


async def put(tx: Tx, asks: Sequence[PutZone]) -> list[ZonePut | Problem | Busy]:
    """Makes zones, or changes what is named of them. In order, so that of two changes the later one holds."""
    made_rows: list[Row] = []
    names = {ask.zone_id: ask.name or ask.zone_id for ask in reversed(asks) if ask.creates}
    # In order of id, as the locks are: two batches that make the same zones must not wait for each other.
    wanted: list[tuple[object, ...]] = [*sorted(names.items())]
    locking = lock(tx, (ask.zone_id for ask in asks))
    if wanted:
        made_rows, locked_rows = await tx.read(Q.zone_insert(batch=wanted), locking)
    else:
        [locked_rows] = await tx.read(locking)
    made = {str(row[0]) for row in made_rows}
    zones = locked(locked_rows)
    why_not = await unlocked(tx, {ask.zone_id for ask in asks} - zones.keys())
    outcomes: list[ZonePut | Problem | Busy] = []
    for ask in asks:
        zone = zones.get(ask.zone_id)
        if zone is None:
            outcomes.append(why_not[ask.zone_id])
            continue
        if zone.ended_at is not None:
            outcomes.append(rules.has_ended(ask.zone_id))
            continue
        created = ask.zone_id in made
        made.discard(ask.zone_id)
        zones[ask.zone_id] = changed = _change(tx, zone, ask, created)
        outcomes.append(ZonePut(changed, created))
    return outcomes


def _change(tx: Tx, zone: Zone, ask: PutZone, created: bool) -> Zone:
    quotas = rules.stored(rules.merge(rules.overrides_of(zone), ask.quotas or Overrides()))
    changed = msgspec.structs.replace(zone, name=ask.name or zone.name, quotas=quotas)
    moved = changed != zone
    if moved:
        changed = msgspec.structs.replace(changed, updated_at=tx.now)
        tx.write(Q.zone_update(id=zone.id, name=changed.name, quotas=quotas, now=tx.now))
    if moved or created:
        data = msgspec.json.encode({"name": changed.name, "quotas": msgspec.Raw(quotas.encode())}).decode()
        kind = "zone.create" if created else "zone.change"
        tx.emit(NewEvent(kind, zone.id, zone.id, ask.actor, data=data, trace=ask.trace))
    return changed


async def freeze(tx: Tx, asks: Sequence[FreezeZone]) -> list[Zone | Problem | Busy]:
    """Stops every admission to zones, or allows it again. Done twice it changes nothing the second time."""
    [rows] = await tx.read(lock(tx, (ask.zone_id for ask in asks)))
    zones = locked(rows)
    why_not = await unlocked(tx, {ask.zone_id for ask in asks} - zones.keys())
    outcomes: list[Zone | Problem | Busy] = []
    for ask in asks:
        zone = zones.get(ask.zone_id)
        if zone is None:
            outcomes.append(why_not[ask.zone_id])
        elif zone.ended_at is not None:
            outcomes.append(rules.has_ended(ask.zone_id))
        else:
            zones[zone.id] = changed = frozen(tx, zone, ask.freezes, ask.caller.subject, ask.trace)
            outcomes.append(changed)
    return outcomes


def frozen(tx: Tx, zone: Zone, freezes: bool, actor: str, trace: str | None) -> Zone:
    """A zone, locked by this transaction, with its admission stopped or allowed."""
    if bool(zone.frozen) == freezes:
        return zone
    tx.write(Q.zone_freeze(id=zone.id, frozen=int(freezes), now=tx.now))
    tx.emit(NewEvent("zone.freeze" if freezes else "zone.thaw", zone.id, zone.id, actor, trace=trace))
    return msgspec.structs.replace(zone, frozen=int(freezes), updated_at=tx.now)


def end(tx: Tx, zone: Zone, actor: str, trace: str | None) -> Zone:
    """Ends a zone that is locked by this transaction. What is in it is its rooms' to end."""
    tx.write(Q.zone_end(id=zone.id, now=tx.now))
    tx.emit(NewEvent("zone.end", zone.id, zone.id, actor, trace=trace))
    return msgspec.structs.replace(zone, ended_at=tx.now, updated_at=tx.now)


async def show(tx: Tx, asks: Sequence[ZoneRef]) -> list[ZoneUse | Problem | Busy]:
    """Zones with what is used of their limits."""
    [rows] = await tx.read(Q.zone_use(batch=[(ask.zone_id,) for ask in asks]))
    uses = {}
    for row in rows:
        *columns, sessions, concurrent = row
        [zone] = decode([tuple(columns)], Zone)
        uses[zone.id] = ZoneUse(zone, int(str(sessions)), int(str(concurrent)))
    return [uses.get(ask.zone_id) or rules.not_found(ask.zone_id) for ask in asks]


async def require(tx: Tx, zone_id: str) -> None:
    """Refuses a zone that does not exist: an empty answer would hide a mistyped name."""
    [rows] = await tx.read(Q.zones_known(batch=[(zone_id,)]))
    if not rows:
        raise rules.not_found(zone_id)


async def exists(tx: Tx, zone_id: str) -> bool:
    [rows] = await tx.read(Q.zones_known(batch=[(zone_id,)]))
    return bool(rows)


async def page(tx: Tx, after: str, limit: int) -> list[Zone]:
    [rows] = await tx.read(Q.zone_list(after=after, limit=limit))
    return decode(rows, Zone)


# -- members, for the room above that knows who may speak -----------------------------------------------------------


def members_get(refs: Sequence[tuple[str, str]]) -> Bound:
    """The statement that loads members, by (zone, subject), for the first round trip of a room above."""
    return Q.zone_members_get(batch=[*refs])


def members_by_ref(rows: Sequence[Row]) -> dict[tuple[str, str], Member]:
    return {(member.zone_id, member.subject): member for member in decode(rows, Member)}


def members_counted(zone_ids: Iterable[str]) -> Bound:
    return Q.zone_members_counted(batch=[(zone_id,) for zone_id in sorted(set(zone_ids))])


def members_by_zone(rows: Sequence[Row]) -> dict[str, rules.Counted]:
    return {str(zone): rules.Counted(int(str(every)), int(str(owners))) for zone, every, owners in rows}


async def members_page(tx: Tx, wanted: MemberFilter) -> list[Member]:
    [rows] = await tx.read(Q.zone_members_page(zone_id=wanted.zone_id, after=wanted.after, limit=wanted.limit))
    return decode(rows, Member)


async def members_write(tx: Tx, changes: Iterable[MemberChange]) -> None:
    """Members as a batch has made them, each from how it was before it. Under the zones' locks."""
    made: list[tuple[object, ...]] = []
    changed: list[tuple[object, ...]] = []
    gone: list[tuple[object, ...]] = []
    for before, after in ((change.before, change.after) for change in changes):
        if after is None:
            gone += [(before.zone_id, before.subject)] if before is not None else []
        elif before is None:
            made.append(msgspec.structs.astuple(after))
        elif before != after:
            changed.append((after.zone_id, after.subject, before.role, after.role, after.updated_at))
    if made:
        tx.write(Q.zone_members_insert(batch=made))
    for statement, batch in ((Q.zone_members_change, changed), (Q.zone_members_remove, gone)):
        if batch and len((await tx.read(statement(batch=batch)))[0]) != len(batch):
            raise RuntimeError("members moved under the zone's lock")
