"""Spawn: load under the zones' locks, decide by `rules.admission`, write one statement per table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned
from quarterdeck.domain.sessions.operations.reads import decode_sessions
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import admission
from quarterdeck.domain.sessions.rules.admission import SPAWN, Count, CountKey, ExpiredGroup, SpawnBatchInput
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Limits, Zone
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement


class Spawner:
    def __init__(self, default_limits: Limits) -> None:
        self._default_limits = default_limits

    async def spawn(self, tx: Transaction, commands: Sequence[Spawn]) -> list[Spawned | Problem | Busy]:
        batch, results = await access.lock(tx, commands, *_load_statements(commands))
        loaded = self._build_input(batch, batch.zones, results)
        refusals = [batch.problem(command) for command in commands]
        decidable = [command for command, refusal in zip(commands, refusals, strict=True) if refusal is None]
        decisions = iter(await _admit(tx, decidable, loaded))
        outcomes = [refusal or next(decisions) for refusal in refusals]
        _persist(tx, commands, outcomes)
        return outcomes

    async def load_unlocked(self, tx: Transaction, command: Spawn) -> SpawnBatchInput:
        """Load the input without a lock, to explain a spawn. Raises if the token is no longer valid."""
        batch, [zone_rows, *results] = await access.load(
            tx, [command], zones.load_statement(command.zone_id), *_load_statements([command])
        )
        if isinstance(problem := batch.problem(command), Problem):
            raise problem
        if not zone_rows:
            raise zone_rules.zone_not_found(command.zone_id)
        return self._build_input(batch, zones.decode_zones(zone_rows), results)

    def _build_input(
        self, batch: access.Batch, loaded_zones: Mapping[str, Zone], results: Sequence[list[Row]]
    ) -> SpawnBatchInput:
        count_rows, tree_count_rows, parent_rows, key_rows, replayed_rows = results
        return SpawnBatchInput(
            now=batch.now,
            zones={
                zone.id: zone_rules.zone_admission_state(zone, self._default_limits) for zone in loaded_zones.values()
            },
            sessions=decode_sessions([*parent_rows, *replayed_rows]),
            caller_sessions=batch.sessions,
            keys=idempotency.decode_records(key_rows),
            counts=_decode_counts([*count_rows, *tree_count_rows]),
        )


def _load_statements(commands: Sequence[Spawn]) -> list[BoundStatement | None]:
    keys = list(
        {
            Key(command.zone_id, command.application_id, SPAWN, command.key)
            for command in commands
            if command.key is not None
        }
    )
    parents = sorted({(command.zone_id, command.parent_id) for command in commands if command.parent_id is not None})
    return [
        Q.counts_load(batch=list(_count_keys(commands))),
        Q.counts_of_trees(batch=parents) if parents else None,
        Q.sessions_get(batch=parents) if parents else None,
        idempotency.load_keys(keys) if keys else None,
        Q.sessions_of_keys(batch=[msgspec.structs.astuple(key) for key in keys]) if keys else None,
    ]


def _count_keys(commands: Iterable[Spawn]) -> set[CountKey]:
    """The rows of `admission_counts` that a batch is checked against, except those of its trees."""
    keys: set[CountKey] = set()
    for command in commands:
        keys.add((command.zone_id, "zone", ""))
        keys.add((command.zone_id, "application", command.application_id))
        if command.parent_id is not None:
            keys.add((command.zone_id, "concurrent", ""))
            keys.add((command.zone_id, "parent", command.parent_id))
    return keys


class _CountRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    scope: str
    key: str
    live: int
    ever: int


def _decode_counts(rows: Sequence[Row]) -> dict[CountKey, Count]:
    return {(row.zone_id, row.scope, row.key): Count(row.live, row.ever) for row in decode(rows, _CountRow)}


async def _admit(tx: Transaction, commands: Sequence[Spawn], loaded: SpawnBatchInput) -> list[Spawned | Problem]:
    decisions = admission.admit(commands, loaded)
    full_zone_ids = {
        command.zone_id
        for command, decision in zip(commands, decisions, strict=True)
        if isinstance(decision, LimitReached)
    }
    if not full_zone_ids:
        return decisions
    # A bound refused a spawn. Only now read the expired sessions that no sweep has terminated yet, and decide again.
    batch = [(zone_id,) for zone_id in sorted(full_zone_ids)]
    [rows] = await tx.read(Q.sessions_expired_unswept(batch=batch, now=loaded.now))
    if not rows:
        return decisions
    counts = admission.subtract_expired(loaded.counts, decode(rows, ExpiredGroup))
    return admission.admit(commands, dataclasses.replace(loaded, counts=counts))


def _persist(tx: Transaction, commands: Sequence[Spawn], outcomes: Sequence[Spawned | Problem | Busy]) -> None:
    """Write sessions, counts, keys and events of the admitted spawns."""
    created = [
        (command, outcome.session)
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(outcome, Spawned) and outcome.created
    ]
    if not created:
        return
    sessions = [session for _, session in created]
    tx.write(Q.sessions_insert(batch=[msgspec.structs.astuple(session) for session in sessions]))
    tx.write(Q.counts_increment(batch=[(*key, n) for key, n in sorted(admission.count_sessions(sessions).items())]))
    if records := [_key_record(command, session) for command, session in created if command.key is not None]:
        tx.write(idempotency.store_records(records, tx.now))
    for command, session in created:
        tx.emit(_spawn_event(command, session))


def _key_record(command: Spawn, session: Session) -> KeyRecord:
    return KeyRecord(command.zone_id, command.application_id, SPAWN, command.key or "", command.digest, session.id)


def _spawn_event(command: Spawn, session: Session) -> NewEvent:
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
        "session.spawn", session.zone_id, session.id, command.caller.subject, None, session.status, data, command.trace
    )
