"""Unregisters services, by request and when a session or a zone ends. Deletes them after the retention period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.services.model import NO_SESSION, DeleteResult, DeleteService, Unregister, UnregisterResult
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import LoadedServices, decode_services, load
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import states
from quarterdeck.domain.services.rules.registration import SESSION_ENDED
from quarterdeck.domain.services.rules.states import BatchChanges
from quarterdeck.domain.services.rules.update import RegistrationRemoval, apply_removal
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import chunks

REQUESTED = "requested"
ZONE_ENDED = "zone_ended"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why registrations were deleted, for the event."""

    actor: str
    trace: str | None
    reason: str


async def unregister(tx: Transaction, commands: Sequence[Unregister]) -> list[UnregisterResult | Problem | Busy]:
    """Delete all registrations of services, or those of single sessions. A repeated command changes nothing."""
    loaded = await load(tx, commands, lock_zones=True)
    outcomes = [loaded.batch.problem(command) or _decide_one(loaded, command) for command in commands]
    accepted = [
        command for command, outcome in zip(commands, outcomes, strict=True) if isinstance(outcome, UnregisterResult)
    ]
    removed_sessions = _sessions_by_service(await _delete_registrations(tx, accepted))
    for command in accepted:
        if command.session_id is None:
            # Unregister the service even if it has no registrations: an operator may have deleted them by hand.
            removed_sessions.setdefault((command.zone_id, command.service_id), set())
    causes = {
        (command.zone_id, command.service_id): Cause(command.caller.subject, command.trace, REQUESTED)
        for command in accepted
    }
    await _apply_removals(tx, removed_sessions, causes)
    return outcomes


def _decide_one(loaded: LoadedServices, command: Unregister) -> UnregisterResult | Problem:
    service = loaded.input.changes.get((command.zone_id, command.service_id))
    if command.session_id is not None:
        session = loaded.input.sessions.get((command.zone_id, command.session_id))
        if session is None:
            return session_rules.session_not_found(command.session_id)
        if service is not None and service.application_id != session.application_id:
            service = None
    if service is None:
        return states.not_found(command.service_id)
    return states.ownership_problem(command.caller, service) or UnregisterResult()


async def _delete_registrations(tx: Transaction, commands: Sequence[Unregister]) -> list[Row]:
    """Return the deleted rows as (zone id, service id, session id)."""
    whole_services = sorted(
        {(command.zone_id, command.service_id) for command in commands if command.session_id is None}
    )
    single_registrations = sorted(
        {
            (command.zone_id, command.service_id, command.session_id)
            for command in commands
            if command.session_id is not None
        }
    )
    statements = [
        Q.registrations_delete_of_services(batch=whole_services) if whole_services else None,
        Q.registrations_delete(batch=single_registrations) if single_registrations else None,
    ]
    results = await tx.read(*(statement for statement in statements if statement)) if commands else []
    return [row for rows in results for row in rows]


async def on_session_or_zone_ended(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """A transaction listener, called in the transaction that emits the events.

    Deletes the registrations of ended sessions, and unregisters services that have no other registration. When a zone
    ends, the registrations that its applications made themselves are deleted too.
    """
    causes: dict[Ref, Cause] = {}
    for event in events:
        if event.type == "session.terminate":
            causes[event.zone_id, event.subject] = Cause(event.actor, event.trace, SESSION_ENDED)
        elif event.type == "zone.end":
            causes[event.zone_id, NO_SESSION] = Cause(event.actor, event.trace, ZONE_ENDED)
    rows: list[Row] = []
    for piece in chunks(sorted(causes)):
        rows += (await tx.read(Q.registrations_delete_of_sessions(batch=piece)))[0]
    removed_sessions = _sessions_by_service(rows)
    # If several registrations of a service were deleted, the event names the cause for the lowest session id.
    service_causes = {ref: causes[ref[0], min(session_ids)] for ref, session_ids in removed_sessions.items()}
    await _apply_removals(tx, removed_sessions, service_causes)


def _sessions_by_service(rows: Iterable[Row]) -> dict[Ref, set[str]]:
    sessions: dict[Ref, set[str]] = {}
    for zone_id, service_id, session_id in rows:
        sessions.setdefault((str(zone_id), str(service_id)), set()).add(str(session_id))
    return sessions


async def _apply_removals(
    tx: Transaction, removed_sessions: Mapping[Ref, set[str]], causes: Mapping[Ref, Cause]
) -> None:
    """Unregister the services that have no registration left, and update the others.

    `removed_sessions` maps each service to the sessions whose registrations were deleted.
    """
    for piece in chunks(sorted(removed_sessions)):
        [rows] = await tx.read(Q.services_registration_state(batch=piece))
        services = decode_services(row[:-1] for row in rows)
        changes = BatchChanges(services)
        for service, row in zip(services, rows, strict=True):
            successor_id = None if row[-1] is None else str(row[-1])
            cause = causes[service.ref]
            # In rows of `services_registration_state`, this field is 1 if any registration is left, live or not.
            has_registration = bool(service.is_live)
            removal = RegistrationRemoval(service, removed_sessions[service.ref], has_registration, successor_id)
            if pending := apply_removal(removal, cause.reason, tx.now):
                changes.put(pending.service)
                tx.emit(persist.to_new_event(pending, cause.actor, cause.trace))
        await persist.write_services(tx, changes)


async def delete_past_retention(
    tx: Transaction, commands: Sequence[DeleteService]
) -> list[DeleteResult | Problem | Busy]:
    """Takes the zone's lock, because a registration can reactivate a service. The service must not be deleted between
    the moment a registration finds it and the commit."""
    locked, _ = await access.lock(tx, commands)
    batch = sorted(
        {
            (command.zone_id, command.service_id, command.before)
            for command in commands
            if command.zone_id in locked.zones
        }
    )
    [deleted_rows] = await tx.read(Q.services_delete_expired(batch=batch))
    deleted = {(str(zone_id), str(service_id)) for zone_id, service_id in deleted_rows}
    return [
        locked.lock_failures.get(command.zone_id) or DeleteResult((command.zone_id, command.service_id) in deleted)
        for command in commands
    ]
