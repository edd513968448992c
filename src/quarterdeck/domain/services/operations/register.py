"""Registers services: loads under the zones' locks, decides with `rules.registration`, persists the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.services.model import NO_SESSION, Register, RegisteredService
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import decode_services
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules.registration import RegistrationBatchInput, RegistrationDecider
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction


class Registrar:
    """`private_allowed`: whether the server may push to private addresses."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed

    async def register(self, tx: Transaction, commands: Sequence[Register]) -> list[RegisteredService | Problem | Busy]:
        named_sessions = {
            (command.zone_id, command.session_id) for command in commands if command.session_id is not None
        }
        batch, [session_rows] = await access.lock(
            tx, commands, sessions.load_statement(sorted(named_sessions)) if named_sessions else None
        )
        loaded = RegistrationBatchInput(
            tx.now,
            zone_rules.ended_zone_problems(batch.zones.values()),
            sessions.decode_sessions(session_rows),
            batch.sessions,
        )
        problems = [batch.problem(command) for command in commands]
        accepted = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
        decider = await self._load_decider(tx, accepted, loaded)
        outcomes = [problem or decider.decide(command) for command, problem in zip(commands, problems, strict=True)]
        await _persist(tx, decider)
        return outcomes

    async def _load_decider(
        self, tx: Transaction, commands: Sequence[Register], loaded: RegistrationBatchInput
    ) -> RegistrationDecider:
        """Load the services that the commands name, and return the decider for the batch.

        A service is found by application and endpoint. The session of a command determines the application, so `loaded`
        already has the sessions.
        """
        preliminary = RegistrationDecider(loaded, private_allowed=self._private_allowed)
        requested: set[tuple[str, str, str, str]] = set()
        for command in commands:
            application_id = preliminary.resolve_application(command)
            if isinstance(application_id, str):
                requested.add((command.zone_id, application_id, command.endpoint_url, command.session_id or NO_SESSION))
        if not requested:
            return preliminary
        endpoints = sorted({key[:3] for key in requested})
        rows, registration_rows = await tx.read(
            Q.services_of_endpoints(batch=endpoints), Q.registrations_of_endpoints(batch=sorted(requested))
        )
        services = decode_services(row[:-1] for row in rows)
        return RegistrationDecider(
            dataclasses.replace(
                loaded,
                services=services,
                services_with_live_agent={service.ref for service, row in zip(services, rows, strict=True) if row[-1]},
                registrations={
                    (str(zone_id), str(service_id), str(session_id))
                    for zone_id, service_id, session_id in registration_rows
                },
            ),
            private_allowed=self._private_allowed,
        )


async def _persist(tx: Transaction, decider: RegistrationDecider) -> None:
    if decider.services_with_stale_registrations:
        tx.write(Q.registrations_delete_of_services(batch=sorted(decider.services_with_stale_registrations)))
    await persist.write_services(tx, decider.changes)
    if decider.new_registrations:
        tx.write(Q.registrations_insert(batch=[*decider.new_registrations]))
    for command, pending in decider.events:
        tx.emit(persist.to_new_event(pending, command.caller.subject, command.trace))
