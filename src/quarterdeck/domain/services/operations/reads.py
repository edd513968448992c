"""Looking at services: one, many, and for the rooms above."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services import rules
from quarterdeck.domain.services.model import Ref, Service, ServiceFilter, ServiceRef
from quarterdeck.domain.services.operations.load import load, services_of
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import SessionRef
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import Bound


def get(refs: Iterable[Ref]) -> Bound:
    """The statement that loads services, for the first round trip of a room above."""
    return Q.services_get(batch=[*refs])


def found(rows: Sequence[Row]) -> dict[Ref, Service]:
    """What that statement found: the services that are registered. One that nobody alive has registered is gone."""
    return {service.ref: service for service in services_of(rows) if rules.is_registered(service)}


async def show(tx: Tx, asks: Sequence[ServiceRef]) -> list[Service | Problem | Busy]:
    loaded = await load(tx, asks, locks=False)
    return [
        loaded.refusal(ask) or rules.reached(loaded.seen, (ask.zone_id, ask.service_id), ask.session_id) for ask in asks
    ]


async def page(tx: Tx, wanted: ServiceFilter) -> list[Service]:
    """Up to `limit` services, newest first."""
    await sessions.require_bearer(tx, wanted.bearer)
    common = {"zone_id": wanted.zone_id, "before": wanted.before, "limit": wanted.limit}
    if wanted.session_id is not None:
        statement = Q.services_page_of_session(session_id=wanted.session_id, **common)
    else:
        statement = Q.services_page(application_id=wanted.application_id, health=wanted.health, **common)
    [rows] = await tx.read(statement)
    if not rows:
        await _require(tx, wanted)
    return services_of(rows)


async def _require(tx: Tx, wanted: ServiceFilter) -> None:
    """Refuses a session or a zone that does not exist: an empty answer would hide a mistyped name."""
    if wanted.session_id is None:
        await zones.require(tx, wanted.zone_id)
        return
    [session] = await sessions.show(tx, [SessionRef(wanted.zone_id, wanted.session_id)])
    if isinstance(session, Problem):
        raise session
