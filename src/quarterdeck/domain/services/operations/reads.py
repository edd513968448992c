"""Reads of services: show, list, and loading for other components."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.services.model import Service, ServiceFilter, ShowService
from quarterdeck.domain.services.operations.load import decode_services, load
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import states
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import SessionRef
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement


def load_statement(refs: Iterable[Ref]) -> BoundStatement:
    """The statement that loads services, for the first round trip of another component."""
    return Q.services_get(batch=[*refs])


def decode_registered(rows: Sequence[Row]) -> dict[Ref, Service]:
    """Decode the rows of `load_statement`. Services without a live registrant are left out."""
    return {service.ref: service for service in decode_services(rows) if states.is_registered(service)}


async def show(tx: Transaction, commands: Sequence[ShowService]) -> list[Service | Problem | Busy]:
    loaded = await load(tx, commands, lock_zones=False)
    return [
        loaded.batch.problem(command)
        or states.resolve_service(loaded.input, (command.zone_id, command.service_id), command.session_id)
        for command in commands
    ]


async def list_services(tx: Transaction, filters: ServiceFilter) -> list[Service]:
    """Return up to `limit` services, newest first."""
    await access.require_token(tx, filters.bearer)
    common = {"zone_id": filters.zone_id, "before": filters.before, "limit": filters.limit}
    if filters.session_id is not None:
        statement = Q.services_page_of_session(session_id=filters.session_id, **common)
    else:
        statement = Q.services_page(application_id=filters.application_id, health=filters.health, **common)
    [rows] = await tx.read(statement)
    if not rows:
        await _require_session_or_zone(tx, filters)
    return decode_services(rows)


async def _require_session_or_zone(tx: Transaction, filters: ServiceFilter) -> None:
    """Raise a Problem if the session or zone does not exist. An empty page would hide a mistyped id."""
    if filters.session_id is None:
        await zones.require_zone(tx, filters.zone_id)
        return
    [session] = await sessions.show_sessions(tx, [SessionRef(filters.zone_id, filters.session_id)])
    if isinstance(session, Problem):
        raise session
