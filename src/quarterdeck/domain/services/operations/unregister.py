"""Unregistering, and what the end of a session or of a zone means for services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services import rules
from quarterdeck.domain.services.model import THE_APPLICATION, Ref, Unregister, Unregistered
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import Batch, Loaded, load, services_of
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import Left, Shelf
from quarterdeck.domain.services.rules.registration import SESSION_ENDED
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import pieces

REQUESTED = "requested"
ZONE_ENDED = "zone_ended"


@dataclass(frozen=True, slots=True)
class Cause:
    """Who is to be named for it."""

    actor: str
    trace: str | None
    reason: str


async def unregister(tx: Tx, asks: Sequence[Unregister]) -> list[Unregistered | Problem | Busy]:
    """Takes services away, or one session's part in them. Done twice it changes nothing the second time."""
    loaded = await load(tx, asks, locks=True)
    outcomes = [loaded.refusal(ask) or _unregister(loaded, ask) for ask in asks]
    granted = [ask for ask, outcome in zip(asks, outcomes, strict=True) if isinstance(outcome, Unregistered)]
    left = _by_service(await _end(tx, granted))
    for ask in granted:
        if ask.session_id is None:
            # Also where nobody is left to leave it: a hand in the database may have taken the registrations away.
            left.setdefault((ask.zone_id, ask.service_id), set())
    causes = {(a.zone_id, a.service_id): Cause(a.caller.subject, a.trace, REQUESTED) for a in granted}
    await _leave(tx, left, causes)
    return outcomes


def _unregister(loaded: Loaded, ask: Unregister) -> Unregistered | Problem:
    service = loaded.seen.shelf.get((ask.zone_id, ask.service_id))
    if ask.session_id is not None:
        session = loaded.seen.sessions.get((ask.zone_id, ask.session_id))
        if session is None:
            return session_rules.not_found(ask.session_id)
        if service is not None and service.application_id != session.application_id:
            service = None
    if service is None:
        return rules.not_found(ask.service_id)
    return rules.may_act(ask.caller, service) or Unregistered()


async def _end(tx: Tx, asks: Sequence[Unregister]) -> list[Row]:
    """Ends registrations; those that were there, as (zone, service, session)."""
    whole: Batch = [*sorted({(ask.zone_id, ask.service_id) for ask in asks if ask.session_id is None})]
    parts: Batch = [*sorted({(a.zone_id, a.service_id, a.session_id) for a in asks if a.session_id is not None})]
    statements = [
        Q.registrations_of_services_end(batch=whole) if whole else None,
        Q.registrations_end(batch=parts) if parts else None,
    ]
    answers = await tx.read(*(statement for statement in statements if statement)) if asks else []
    return [row for rows in answers for row in rows]


async def go_with_session(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Hears of events in their own transaction. A session that ends leaves what it registered, and takes along what
    nobody else has registered; a zone that ends takes along what its applications have registered themselves."""
    causes: dict[Ref, Cause] = {}
    for event in events:
        if event.type == "session.terminate":
            causes[event.zone_id, event.subject] = Cause(event.actor, event.trace, SESSION_ENDED)
        elif event.type == "zone.end":
            causes[event.zone_id, THE_APPLICATION] = Cause(event.actor, event.trace, ZONE_ENDED)
    rows: list[Row] = []
    for piece in pieces(sorted(causes)):
        rows += (await tx.read(Q.registrations_of_sessions_end(batch=piece)))[0]
    left = _by_service(rows)
    await _leave(tx, left, {ref: causes[ref[0], min(by)] for ref, by in left.items()})


def _by_service(rows: Iterable[Row]) -> dict[Ref, set[str]]:
    """Who left which service."""
    left: dict[Ref, set[str]] = {}
    for zone_id, service_id, session_id in rows:
        left.setdefault((str(zone_id), str(service_id)), set()).add(str(session_id))
    return left


async def _leave(tx: Tx, left: Mapping[Ref, set[str]], causes: Mapping[Ref, Cause]) -> None:
    """What becomes of services that somebody has left."""
    for piece in pieces(sorted(left)):
        [rows] = await tx.read(Q.services_left(batch=piece))
        services = services_of(row[:-1] for row in rows)
        shelf = Shelf(services)
        for service, row in zip(services, rows, strict=True):
            heir = None if row[-1] is None else str(row[-1])
            cause = causes[service.ref]
            after = Left(service, left[service.ref], bool(service.lives), heir)
            if told := rules.left_behind(after, cause.reason, tx.now):
                shelf.put(told.service)
                tx.emit(persist.event(told, cause.actor, cause.trace))
        await persist.write(tx, shelf)
