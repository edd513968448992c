"""Operations on zones, and the statements that other components use to lock zones and to load role assignments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.zones.model import (
    Overrides,
    PutZone,
    RoleAssignment,
    RoleAssignmentChange,
    RoleAssignmentFilter,
    SetZoneFrozen,
    ShowZone,
    Zone,
    ZoneUsage,
)
from quarterdeck.domain.zones.queries import Q
from quarterdeck.domain.zones.rules import limits
from quarterdeck.domain.zones.rules.role_assignments import RoleCounts
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import BUSY, Busy
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement


def lock_statement(tx: Transaction, zone_ids: Iterable[str]) -> BoundStatement:
    """The statement that locks the zones of a batch. Run it before the reads that a decision depends on."""
    batch = [(zone_id,) for zone_id in sorted(set(zone_ids))]
    return Q.zones_lock(batch=batch) if tx.wait_for_locks else Q.zones_lock_skip_locked(batch=batch)


async def wait_for_lock(engine: Engine, zone_id: str) -> None:
    """Wait until the zone's lock is free."""
    # A read takes one round trip and then frees the lock. A transaction would hold it for a second round trip.
    statement = Q.zones_lock(batch=[(zone_id,)])
    await engine.read(lambda tx: tx.read(statement), zones=[zone_id], for_writer=True)


def load_statement(zone_id: str) -> BoundStatement:
    """The statement that loads a zone without locking it."""
    return Q.zone_get(id=zone_id)


def decode_zones(rows: list[Row]) -> dict[str, Zone]:
    return {zone.id: zone for zone in decode(rows, Zone)}


async def lock_failures(tx: Transaction, zone_ids: set[str]) -> dict[str, Problem | Busy]:
    """Why each of these zones was not locked: another transaction has locked it, or it does not exist."""
    if not zone_ids:
        return {}
    [rows] = await tx.read(Q.zones_existing(batch=[(zone_id,) for zone_id in sorted(zone_ids)]))
    existing_ids = {str(row[0]) for row in rows}
    return {zone_id: BUSY if zone_id in existing_ids else limits.zone_not_found(zone_id) for zone_id in zone_ids}


class PutZoneResult(msgspec.Struct, frozen=True):
    zone: Zone
    created: bool


async def put_zones(tx: Transaction, commands: Sequence[PutZone]) -> list[PutZoneResult | Problem | Busy]:
    """Create zones, or change the fields that are set. The commands for one zone apply in order."""
    inserted_rows: list[Row] = []
    names = {
        command.zone_id: command.name or command.zone_id for command in reversed(commands) if command.create_missing
    }
    # Inserted in order of id, as zones are locked: otherwise two batches that create the same zones could deadlock.
    insert_batch = [*sorted(names.items())]
    statement = lock_statement(tx, (command.zone_id for command in commands))
    if insert_batch:
        inserted_rows, locked_rows = await tx.read(Q.zone_insert(batch=insert_batch), statement)
    else:
        [locked_rows] = await tx.read(statement)
    inserted_ids = {str(row[0]) for row in inserted_rows}
    zones = decode_zones(locked_rows)
    failures = await lock_failures(tx, {command.zone_id for command in commands} - zones.keys())
    outcomes: list[PutZoneResult | Problem | Busy] = []
    for command in commands:
        zone = zones.get(command.zone_id)
        if zone is None:
            outcomes.append(failures[command.zone_id])
            continue
        if zone.ended_at is not None:
            outcomes.append(limits.zone_ended(command.zone_id))
            continue
        created = command.zone_id in inserted_ids
        inserted_ids.discard(command.zone_id)
        zones[command.zone_id] = updated_zone = _update_zone(tx, zone, command, created)
        outcomes.append(PutZoneResult(updated_zone, created))
    return outcomes


def _update_zone(tx: Transaction, zone: Zone, command: PutZone, created: bool) -> Zone:
    quotas = limits.encode_overrides(
        limits.merge_overrides(limits.overrides_of_zone(zone), command.quotas or Overrides())
    )
    updated_zone = msgspec.structs.replace(zone, name=command.name or zone.name, quotas=quotas)
    has_changed = updated_zone != zone
    if has_changed:
        updated_zone = msgspec.structs.replace(updated_zone, updated_at=tx.now)
        tx.write(Q.zone_update(id=zone.id, name=updated_zone.name, quotas=quotas, now=tx.now))
    if has_changed or created:
        data = msgspec.json.encode({"name": updated_zone.name, "quotas": msgspec.Raw(quotas.encode())}).decode()
        event_type = "zone.create" if created else "zone.change"
        tx.emit(NewEvent(event_type, zone.id, zone.id, command.actor, data=data, trace=command.trace))
    return updated_zone


async def set_zones_frozen(tx: Transaction, commands: Sequence[SetZoneFrozen]) -> list[Zone | Problem | Busy]:
    """Freeze or thaw zones. A repeated command changes nothing."""
    [rows] = await tx.read(lock_statement(tx, (command.zone_id for command in commands)))
    zones = decode_zones(rows)
    failures = await lock_failures(tx, {command.zone_id for command in commands} - zones.keys())
    outcomes: list[Zone | Problem | Busy] = []
    for command in commands:
        zone = zones.get(command.zone_id)
        if zone is None:
            outcomes.append(failures[command.zone_id])
        elif zone.ended_at is not None:
            outcomes.append(limits.zone_ended(command.zone_id))
        else:
            zones[zone.id] = updated_zone = set_frozen(tx, zone, command.frozen, command.caller.subject, command.trace)
            outcomes.append(updated_zone)
    return outcomes


def set_frozen(tx: Transaction, zone: Zone, frozen: bool, actor: str, trace: str | None) -> Zone:
    """Freeze or thaw a zone that this transaction has locked."""
    if bool(zone.frozen) == frozen:
        return zone
    tx.write(Q.zone_freeze(id=zone.id, frozen=int(frozen), now=tx.now))
    tx.emit(NewEvent("zone.freeze" if frozen else "zone.thaw", zone.id, zone.id, actor, trace=trace))
    return msgspec.structs.replace(zone, frozen=int(frozen), updated_at=tx.now)


def end_zone(tx: Transaction, zone: Zone, actor: str, trace: str | None) -> Zone:
    """End a zone that this transaction has locked. Other components end its objects when they get the event."""
    tx.write(Q.zone_end(id=zone.id, now=tx.now))
    tx.emit(NewEvent("zone.end", zone.id, zone.id, actor, trace=trace))
    return msgspec.structs.replace(zone, ended_at=tx.now, updated_at=tx.now)


async def show_zones(tx: Transaction, commands: Sequence[ShowZone]) -> list[ZoneUsage | Problem | Busy]:
    """Load zones with the counts of their live sessions and live child sessions."""
    [rows] = await tx.read(Q.zone_usage(batch=[(command.zone_id,) for command in commands]))
    usages = {}
    for row in rows:
        *columns, sessions, concurrent = row
        [zone] = decode([tuple(columns)], Zone)
        usages[zone.id] = ZoneUsage(zone, int(str(sessions)), int(str(concurrent)))
    return [usages.get(command.zone_id) or limits.zone_not_found(command.zone_id) for command in commands]


async def require_zone(tx: Transaction, zone_id: str) -> None:
    """Raise if the zone does not exist. For lists, because an empty list would hide a mistyped id."""
    if not await tx.has_rows(Q.zones_existing(batch=[(zone_id,)])):
        raise limits.zone_not_found(zone_id)


async def exists(tx: Transaction, zone_id: str) -> bool:
    return await tx.has_rows(Q.zones_existing(batch=[(zone_id,)]))


async def list_zones(tx: Transaction, after: str, limit: int) -> list[Zone]:
    return await tx.fetch(Zone, Q.zone_list(after=after, limit=limit))


# -- role assignments; `domain.access` calls these and checks the caller's permission -------------------------------


def role_assignments_statement(refs: Sequence[tuple[str, str]]) -> BoundStatement:
    """The statement that loads assignments by (zone, subject)."""
    return Q.zone_members_get(batch=[*refs])


def decode_role_assignments(rows: Sequence[Row]) -> dict[tuple[str, str], RoleAssignment]:
    return {(assignment.zone_id, assignment.subject): assignment for assignment in decode(rows, RoleAssignment)}


def role_counts_statement(zone_ids: Iterable[str]) -> BoundStatement:
    return Q.zone_members_count(batch=[(zone_id,) for zone_id in sorted(set(zone_ids))])


def decode_role_counts(rows: Sequence[Row]) -> dict[str, RoleCounts]:
    return {str(zone): RoleCounts(int(str(total)), int(str(owners))) for zone, total, owners in rows}


async def list_role_assignments(tx: Transaction, filters: RoleAssignmentFilter) -> list[RoleAssignment]:
    return await tx.fetch(
        RoleAssignment, Q.zone_members_page(zone_id=filters.zone_id, after=filters.after, limit=filters.limit)
    )


async def persist_role_changes(tx: Transaction, changes: Iterable[RoleAssignmentChange]) -> None:
    """Write the changes of a batch. The zones must be locked."""
    inserts: list[tuple[str, str, str, str, int, int]] = []
    updates: list[tuple[str, str, str, str, int]] = []
    deletes: list[tuple[str, str]] = []
    for before, after in ((change.before, change.after) for change in changes):
        if after is None:
            deletes += [(before.zone_id, before.subject)] if before is not None else []
        elif before is None:
            inserts.append(msgspec.structs.astuple(after))
        elif before != after:
            updates.append((after.zone_id, after.subject, before.role, after.role, after.updated_at))
    if inserts:
        tx.write(Q.zone_members_insert(batch=inserts))
    if updates:
        await _run_checked(tx, Q.zone_members_update(batch=updates), len(updates))
    if deletes:
        await _run_checked(tx, Q.zone_members_delete(batch=deletes), len(deletes))


async def _run_checked(tx: Transaction, statement: BoundStatement, expected_count: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != expected_count:
        raise RuntimeError("role assignments changed although the zone was locked")
