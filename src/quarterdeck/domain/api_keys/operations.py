"""What can be done with keys, each verb over a batch: load under locks, decide by `rules`, write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.api_key import ShownKey
from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import iso_or_none
from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.domain.api_keys import rules
from quarterdeck.domain.api_keys.model import ApiKey, CreateKey, KeyFilter, RevokeKey
from quarterdeck.domain.api_keys.queries import Q
from quarterdeck.domain.api_keys.rules import Known
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef, State
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Zone
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

Ref = tuple[str, str]
"""(zone, key)"""


# -- finding -----------------------------------------------------------------------------------------------------


async def find(tx: Tx, asks: Sequence[ShownKey]) -> list[Caller | Problem | Busy]:
    """Whose these keys are, at this moment. Nothing is learnt from a refusal but that it is one."""
    [rows] = await tx.read(Q.keys_find(batch=sorted({(ask.zone_id, ask.id) for ask in asks})))
    digests = [str(row[0]) for row in rows]
    keys = decode([row[1:] for row in rows], ApiKey)
    found = {(key.zone_id, key.id): (key, digest) for key, digest in zip(keys, digests, strict=True)}
    outcomes: list[Caller | Problem | Busy] = []
    for ask in asks:
        key, digest = found.get((ask.zone_id, ask.id), (None, rules.NO_DIGEST))
        outcomes.append(rules.bearer_of(ask.digest, key, digest, tx.now))
    return outcomes


# -- making ------------------------------------------------------------------------------------------------------


async def create(tx: Tx, asks: Sequence[CreateKey]) -> list[ApiKey | Problem | Busy]:
    """Makes keys, as long as their zones have room. Under the zones' locks, so the count that decides is exact."""
    batch: list[tuple[object, ...]] = [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]
    locked_rows, counted = await tx.read(zones.lock(tx, zones_of(asks)), Q.keys_live(batch=batch))
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    strangers = await _strangers(tx, (ask.bearer for ask in asks))
    judged = [ask for ask in asks if sessions.held_up(ask, why_not) is None and ask.bearer not in strangers]
    decided = dict(
        zip((a.id for a in judged), rules.admit(judged, await _known(tx, judged, locked, counted)), strict=True)
    )
    outcomes = [_stranger(strangers, ask.bearer) or sessions.held_up(ask, why_not) or decided[ask.id] for ask in asks]
    _write(tx, judged, decided)
    return outcomes


async def _known(tx: Tx, asks: Sequence[CreateKey], locked: dict[str, Zone], counted: Sequence[Row]) -> Known:
    refs = [SessionRef(ask.zone_id, ask.session_id) for ask in asks if ask.session_id is not None]
    named = await sessions.show(tx, refs) if refs else []
    return Known(
        now=tx.now,
        zones=zone_rules.endings(locked.values()),
        used={str(zone_id): int(str(number)) for zone_id, number in counted},
        sessions={(s.zone_id, s.id) for s in named if isinstance(s, Session) and s.status is not State.TERMINATED},
    )


def _write(tx: Tx, asks: Sequence[CreateKey], decided: dict[str, ApiKey | Problem]) -> None:
    made = [(ask, key) for ask in asks if isinstance(key := decided[ask.id], ApiKey)]
    if not made:
        return
    tx.write(Q.keys_insert(batch=[(ask.digest, *msgspec.structs.astuple(key)) for ask, key in made]))
    for ask, key in made:
        tx.emit(_created(ask, key))


def _created(ask: CreateKey, key: ApiKey) -> NewEvent:
    data = {
        "name": key.name,
        "application_id": key.application_id,
        "scopes": key.scopes.split(" "),
        "session_id": key.session_id,
        "expires_at": iso_or_none(key.expires_at),
    }
    return NewEvent("key.create", key.zone_id, key.id, ask.actor, None, rules.LIVE, _text(data), ask.trace)


# -- revoking ----------------------------------------------------------------------------------------------------


async def revoke(tx: Tx, asks: Sequence[RevokeKey]) -> list[ApiKey | Problem | Busy]:
    """Revokes keys. Done twice it moves nothing the second time."""
    [rows] = await tx.read(Q.keys_lock(batch=sorted({(ask.zone_id, ask.id) for ask in asks})))
    keys = {(key.zone_id, key.id): key for key in decode(rows, ApiKey)}
    strangers = await _strangers(tx, (ask.bearer for ask in asks))
    outcomes: list[ApiKey | Problem | Busy] = []
    moved: dict[Ref, tuple[RevokeKey, str]] = {}
    for ask in asks:
        ref = (ask.zone_id, ask.id)
        key = keys.get(ref)
        problem = _stranger(strangers, ask.bearer) or (rules.not_found(ask.id) if key is None else None)
        if key is not None and problem is None and key.revoked_at is None:
            moved[ref] = (ask, rules.status(key, tx.now))
            keys[ref] = key = msgspec.structs.replace(key, revoked_at=tx.now)
        outcomes.append(problem or keys[ref])
    await _move(tx, sorted(moved))
    for ref, (ask, was) in moved.items():
        tx.emit(_revoked(keys[ref], was, ask.actor, ask.trace))
    return outcomes


async def go_with_zone(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Hears of events in their own transaction: when a zone ends, its keys are revoked with it."""
    ended = {event.zone_id: event for event in events if event.type == "zone.end"}
    if not ended:
        return
    [found] = await tx.read(Q.keys_of_zones(batch=[(zone_id,) for zone_id in sorted(ended)]))
    if not found:
        return
    [rows] = await tx.read(Q.keys_lock(batch=found))
    # Somebody may have revoked one between finding and locking.
    keys = [key for key in decode(rows, ApiKey) if key.revoked_at is None]
    await _move(tx, [(key.zone_id, key.id) for key in keys])
    for key in keys:
        cause = ended[key.zone_id]
        tx.emit(_revoked(key, rules.LIVE, cause.actor, cause.trace))


async def _move(tx: Tx, refs: Sequence[Ref]) -> None:
    if not refs:
        return
    [moved] = await tx.read(Q.keys_revoke(batch=[(*ref, 0) for ref in refs], now=tx.now))
    if len(moved) != len(refs):
        raise RuntimeError("keys moved under their own locks")


def _revoked(key: ApiKey, was: str, actor: str, trace: str | None) -> NewEvent:
    data = {"name": key.name, "application_id": key.application_id}
    return NewEvent("key.revoke", key.zone_id, key.id, actor, was, rules.REVOKED, _text(data), trace)


# -- looking -----------------------------------------------------------------------------------------------------


async def page(tx: Tx, wanted: KeyFilter) -> list[ApiKey]:
    """Up to `limit` keys of a zone, newest first."""
    await sessions.require_bearer(tx, wanted.bearer)
    [rows] = await tx.read(Q.keys_page(zone_id=wanted.zone_id, before=wanted.before, limit=wanted.limit))
    if not rows:
        await zones.require(tx, wanted.zone_id)
    return decode(rows, ApiKey)


# -- whoever asks ------------------------------------------------------------------------------------------------


async def _strangers(tx: Tx, bearers: Iterable[Bearer | None]) -> dict[Bearer, Problem]:
    """The callers whose own session has ended. Nearly always there is nobody to ask about, and never many."""
    found: dict[Bearer, Problem] = {}
    for bearer in {bearer for bearer in bearers if bearer is not None}:
        try:
            await sessions.require_bearer(tx, bearer)
        except Unauthenticated as ended:
            found[bearer] = ended
    return found


def _stranger(strangers: dict[Bearer, Problem], bearer: Bearer | None) -> Problem | None:
    return strangers.get(bearer) if bearer is not None else None


def _text(data: Mapping[str, object]) -> str:
    return msgspec.json.encode(data).decode()
