"""Registering: load under the zones' locks, decide by `rules.registry`, write."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import THE_APPLICATION, Register, Registered
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import Batch, services_of
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import Known, Registry
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx


class Registrar:
    """An object only because it must know where the server lets itself be sent."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed

    async def register(self, tx: Tx, asks: Sequence[Register]) -> list[Registered | Problem | Busy]:
        """Registers services, in order of arrival."""
        named = {(ask.zone_id, ask.session_id) for ask in asks if ask.session_id is not None}
        locked_rows, people = await tx.read(
            zones.lock(tx, zones_of(asks)), sessions.get(sorted(named | sessions.bearers_of(asks)))
        )
        locked = zones.locked(locked_rows)
        why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
        known = Known(tx.now, zone_rules.endings(locked.values()), sessions.by_ref(people))
        refusals = [
            sessions.held_up(ask, why_not) or session_rules.bearer_problem(ask.bearer, known.sessions, tx.now)
            for ask in asks
        ]
        judged = [ask for ask, refusal in zip(asks, refusals, strict=True) if refusal is None]
        registry = await self._registry(tx, judged, known)
        outcomes = [refusal or registry.decide(ask) for ask, refusal in zip(asks, refusals, strict=True)]
        await _write(tx, registry)
        return outcomes

    async def _registry(self, tx: Tx, asks: Sequence[Register], known: Known) -> Registry:
        """With the services that the asks are about. Which those are, the sessions tell that register them."""
        first = Registry(known, private_allowed=self._private_allowed)
        wanted: set[tuple[str, str, str, str]] = set()
        for ask in asks:
            application_id = first.application_of(ask)
            if isinstance(application_id, str):
                wanted.add((ask.zone_id, application_id, ask.endpoint_url, ask.session_id or THE_APPLICATION))
        if not wanted:
            return first
        endpoints: Batch = [*sorted({key[:3] for key in wanted})]
        rows, registered = await tx.read(
            Q.services_of_endpoints(batch=endpoints), Q.registrations_of_endpoints(batch=[*sorted(wanted)])
        )
        services = services_of(row[:-1] for row in rows)
        return Registry(
            Known(
                known.now,
                known.zones,
                known.sessions,
                services,
                {service.ref for service, row in zip(services, rows, strict=True) if row[-1]},
                {(str(zone_id), str(name), str(session_id)) for zone_id, name, session_id in registered},
            ),
            private_allowed=self._private_allowed,
        )


async def _write(tx: Tx, registry: Registry) -> None:
    if registry.forgotten:
        tx.write(Q.registrations_of_services_end(batch=[*sorted(registry.forgotten)]))
    await persist.write(tx, registry.shelf)
    if registry.joined:
        tx.write(Q.registrations_insert(batch=[*registry.joined]))
    for ask, told in registry.told:
        tx.emit(persist.event(told, ask.caller.subject, ask.trace))
