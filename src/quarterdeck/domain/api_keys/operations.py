"""Operations on API keys. Each handles a batch: it loads under locks, decides with `rules`, and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.core.api_key import ParsedApiKey
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import iso_or_none
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.core.paging import PageFilter
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.api_keys import rules
from quarterdeck.domain.api_keys.model import ApiKey, CreateKey, RevokeKey
from quarterdeck.domain.api_keys.queries import Q
from quarterdeck.domain.api_keys.rules import KeyBatchInput
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef, State
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Zone
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode

# -- authenticate ------------------------------------------------------------------------------------------------


async def authenticate_keys(tx: Transaction, commands: Sequence[ParsedApiKey]) -> list[Caller | Problem | Busy]:
    """Return the caller that each key identifies. A refusal does not reveal its reason."""
    [rows] = await tx.read(Q.keys_with_digest(batch=sorted({(command.zone_id, command.id) for command in commands})))
    digests = [str(row[0]) for row in rows]
    keys = decode([row[1:] for row in rows], ApiKey)
    keys_with_digest = {(key.zone_id, key.id): (key, digest) for key, digest in zip(keys, digests, strict=True)}
    outcomes: list[Caller | Problem | Busy] = []
    for command in commands:
        key, digest = keys_with_digest.get((command.zone_id, command.id), (None, rules.NO_DIGEST))
        outcomes.append(rules.caller_of_key(command.digest, key, digest, tx.now))
    return outcomes


# -- create ------------------------------------------------------------------------------------------------------


async def create_keys(tx: Transaction, commands: Sequence[CreateKey]) -> list[ApiKey | Problem | Busy]:
    """Create keys up to the limit of each zone. The zones are locked, so the count is exact."""
    zone_ids = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
    batch, [count_rows] = await access.lock(tx, commands, Q.keys_count_live(batch=zone_ids))
    problems = [batch.problem(command) for command in commands]
    allowed = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
    decisions = dict(
        zip(
            (command.id for command in allowed),
            rules.admit(allowed, await _load_batch_input(tx, allowed, batch.zones, count_rows)),
            strict=True,
        )
    )
    outcomes = [problem or decisions[command.id] for command, problem in zip(commands, problems, strict=True)]
    _persist(tx, allowed, decisions)
    return outcomes


async def _load_batch_input(
    tx: Transaction, commands: Sequence[CreateKey], locked_zones: Mapping[str, Zone], count_rows: Sequence[Row]
) -> KeyBatchInput:
    refs = [SessionRef(command.zone_id, command.session_id) for command in commands if command.session_id is not None]
    loaded_sessions = await sessions.show_sessions(tx, refs) if refs else []
    return KeyBatchInput(
        now=tx.now,
        zone_problems=zone_rules.ended_zone_problems(locked_zones.values()),
        live_key_counts={str(zone_id): int(str(count)) for zone_id, count in count_rows},
        live_sessions={
            (session.zone_id, session.id)
            for session in loaded_sessions
            if isinstance(session, Session) and session.status is not State.TERMINATED
        },
    )


def _persist(tx: Transaction, commands: Sequence[CreateKey], decisions: dict[str, ApiKey | Problem]) -> None:
    created = [(command, key) for command in commands if isinstance(key := decisions[command.id], ApiKey)]
    if not created:
        return
    tx.write(Q.keys_insert(batch=[(command.digest, *msgspec.structs.astuple(key)) for command, key in created]))
    for command, key in created:
        tx.emit(_created_event(command, key))


def _created_event(command: CreateKey, key: ApiKey) -> NewEvent:
    data = {
        "name": key.name,
        "application_id": key.application_id,
        "scopes": key.scopes.split(" "),
        "session_id": key.session_id,
        "expires_at": iso_or_none(key.expires_at),
    }
    return NewEvent("key.create", key.zone_id, key.id, command.actor, None, rules.LIVE, _to_json(data), command.trace)


# -- revoke ------------------------------------------------------------------------------------------------------


async def revoke_keys(tx: Transaction, commands: Sequence[RevokeKey]) -> list[ApiKey | Problem | Busy]:
    """Revoke keys. A repeated command changes nothing."""
    refs = sorted({(command.zone_id, command.id) for command in commands})
    # Callers are read after the wait for the rows, so as late as possible: the zone is not locked.
    batch, [rows] = await access.load(tx, commands, before=[Q.keys_lock(batch=refs)])
    keys = {(key.zone_id, key.id): key for key in decode(rows, ApiKey)}
    outcomes: list[ApiKey | Problem | Busy] = []
    revoked: dict[Ref, tuple[RevokeKey, str]] = {}
    for command in commands:
        ref = (command.zone_id, command.id)
        key = keys.get(ref)
        problem = batch.problem(command) or (rules.key_not_found(command.id) if key is None else None)
        if key is not None and problem is None and key.revoked_at is None:
            revoked[ref] = (command, rules.status(key, tx.now))
            keys[ref] = key = msgspec.structs.replace(key, revoked_at=tx.now)
        outcomes.append(problem or keys[ref])
    await _mark_revoked(tx, sorted(revoked))
    for ref, (command, old_status) in revoked.items():
        tx.emit(_revoked_event(keys[ref], old_status, command.actor, command.trace))
    return outcomes


async def on_zone_ended(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """Revoke the live keys of an ended zone, in the transaction that ends it."""
    end_events = {event.zone_id: event for event in events if event.type == "zone.end"}
    if not end_events:
        return
    [live_rows] = await tx.read(Q.keys_live_in_zones(batch=[(zone_id,) for zone_id in sorted(end_events)]))
    if not live_rows:
        return
    [rows] = await tx.read(Q.keys_lock(batch=[(str(zone_id), str(key_id)) for zone_id, key_id in live_rows]))
    # Another transaction may have revoked a key between the two statements.
    keys = [key for key in decode(rows, ApiKey) if key.revoked_at is None]
    await _mark_revoked(tx, [(key.zone_id, key.id) for key in keys])
    for key in keys:
        end_event = end_events[key.zone_id]
        tx.emit(_revoked_event(key, rules.LIVE, end_event.actor, end_event.trace))


async def _mark_revoked(tx: Transaction, refs: Sequence[Ref]) -> None:
    if not refs:
        return
    [updated] = await tx.read(Q.keys_revoke(batch=[(*ref, 0) for ref in refs], now=tx.now))
    if len(updated) != len(refs):
        raise RuntimeError("API keys changed although they were locked")


def _revoked_event(key: ApiKey, old_status: str, actor: str, trace: str | None) -> NewEvent:
    data = {"name": key.name, "application_id": key.application_id}
    return NewEvent("key.revoke", key.zone_id, key.id, actor, old_status, rules.REVOKED, _to_json(data), trace)


# -- read --------------------------------------------------------------------------------------------------------


async def list_keys(tx: Transaction, filters: PageFilter) -> list[ApiKey]:
    """Return up to `limit` keys of a zone, newest first."""
    await access.require_token(tx, filters.bearer)
    [rows] = await tx.read(Q.keys_page(zone_id=filters.zone_id, before=filters.before, limit=filters.limit))
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    return decode(rows, ApiKey)


def _to_json(data: Mapping[str, object]) -> str:
    return msgspec.json.encode(data).decode()
