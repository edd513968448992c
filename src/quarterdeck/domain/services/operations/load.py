"""What a batch of asks that name services reads first: one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import Ref, Service
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import Seen, Shelf
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]


class Asked(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def bearer(self) -> Bearer | None: ...
    @property
    def service_id(self) -> str | None: ...
    @property
    def session_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    seen: Seen
    why_not: Mapping[str, Problem | Busy] = field(default_factory=dict)
    """Of each zone that could not be locked: why."""
    own: Mapping[Ref, Sequence[Ref]] = field(default_factory=dict)
    """By session, all that it registered, where it was asked for all of that."""

    def refusal(self, ask: Asked) -> Problem | Busy | None:
        """Why an ask is not judged at all."""
        stranger = session_rules.bearer_problem(ask.bearer, self.seen.sessions, self.seen.now)
        return sessions.held_up(ask, self.why_not) or stranger


async def load(tx: Tx, asks: Sequence[Asked], *, locks: bool) -> Loaded:
    named = {(a.zone_id, a.session_id) for a in asks if a.session_id is not None}
    refs = {(a.zone_id, a.service_id) for a in asks if a.service_id is not None}
    registrations = {
        (a.zone_id, a.service_id, a.session_id) for a in asks if a.service_id is not None and a.session_id is not None
    }
    whole = {(a.zone_id, a.session_id) for a in asks if a.service_id is None and a.session_id is not None}
    people = named | sessions.bearers_of(asks)
    statements: list[Bound | None] = [
        zones.lock(tx, zones_of(asks)) if locks else None,
        sessions.get(sorted(people)) if people else None,
        Q.services_get(batch=[*sorted(refs)]) if refs else None,
        Q.services_of_sessions(batch=[*sorted(whole)]) if whole else None,
        Q.registrations_get(batch=[*sorted(registrations)]) if registrations else None,
    ]
    answers = iter(await tx.read(*(statement for statement in statements if statement)))
    locked, people_rows, rows, own_rows, registered = (next(answers) if s else [] for s in statements)
    own = services_of([row[1:] for row in own_rows])
    seen = Seen(
        now=tx.now,
        sessions=sessions.by_ref(people_rows),
        shelf=Shelf([*services_of(rows), *own]),
        registrations={*_registrations(registered), *_registrations_of(own_rows, own)},
    )
    why_not = await zones.unlocked(tx, zones_of(asks) - zones.locked(locked).keys()) if locks else {}
    return Loaded(seen, why_not, _by_session(own_rows, own))


def services_of(rows: Iterable[Row]) -> list[Service]:
    return decode([*rows], Service)


def _registrations(rows: Iterable[Row]) -> set[tuple[str, str, str]]:
    return {(str(zone_id), str(service_id), str(session_id)) for zone_id, service_id, session_id in rows}


def _registrations_of(rows: Sequence[Row], services: Sequence[Service]) -> set[tuple[str, str, str]]:
    return {(*service.ref, str(row[0])) for row, service in zip(rows, services, strict=True)}


def _by_session(rows: Sequence[Row], services: Sequence[Service]) -> dict[Ref, list[Ref]]:
    found: dict[Ref, list[Ref]] = {}
    for row, service in zip(rows, services, strict=True):
        found.setdefault((service.zone_id, str(row[0])), []).append(service.ref)
    return found
