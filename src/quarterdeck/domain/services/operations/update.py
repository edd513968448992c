"""Updates services and records their heartbeats, under the zones' locks."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import Heartbeat, HeartbeatResult, RegisteredService, Service, Update
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import LoadedServices, load
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import states
from quarterdeck.domain.services.rules.states import BatchChanges, PendingEvent
from quarterdeck.domain.services.rules.update import apply_heartbeat, changed_fields, update_service
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction


class Updater:
    """`private_allowed`: whether the server may push to private addresses."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed

    async def update(self, tx: Transaction, commands: Sequence[Update]) -> list[RegisteredService | Problem | Busy]:
        loaded = await load(tx, commands, lock_zones=True)
        outcomes = [loaded.batch.problem(command) or self._update_one(tx, loaded, command) for command in commands]
        await persist.write_services(tx, loaded.input.changes)
        return outcomes

    def _update_one(self, tx: Transaction, loaded: LoadedServices, command: Update) -> RegisteredService | Problem:
        service = states.resolve_service(loaded.input, (command.zone_id, command.service_id), command.session_id)
        if isinstance(service, Problem):
            return service
        if problem := states.ownership_problem(command.caller, service):
            return problem
        outcome = update_service(command, service, tx.now, private_allowed=self._private_allowed)
        if isinstance(outcome, Problem):
            return outcome
        if field_names := changed_fields(service, outcome.service):
            loaded.input.changes.put(outcome.service)
            pending = PendingEvent("change", outcome.service, service, field_names)
            tx.emit(persist.to_new_event(pending, command.caller.subject, command.trace))
        return outcome


async def record_heartbeats(tx: Transaction, commands: Sequence[Heartbeat]) -> list[HeartbeatResult | Problem | Busy]:
    loaded = await load(tx, commands, lock_zones=True)
    outcomes = [loaded.batch.problem(command) or _record_heartbeat(tx, loaded, command) for command in commands]
    await _persist(tx, loaded.input.changes)
    return outcomes


def _record_heartbeat(tx: Transaction, loaded: LoadedServices, command: Heartbeat) -> HeartbeatResult | Problem:
    services = _target_services(loaded, command)
    if isinstance(services, Problem):
        return services
    for service in services:
        if problem := states.ownership_problem(command.caller, service):
            return problem
    return HeartbeatResult(
        tuple(_apply_heartbeat(tx, loaded.input.changes, command, service) for service in services), tx.now
    )


def _target_services(loaded: LoadedServices, command: Heartbeat) -> list[Service] | Problem:
    """Return the service that the heartbeat names, or all services of its session."""
    if command.service_id is not None:
        service = states.resolve_service(loaded.input, (command.zone_id, command.service_id), command.session_id)
        return service if isinstance(service, Problem) else [service]
    assert command.session_id is not None  # a heartbeat without a service has a session in its path
    outcomes = [
        states.resolve_service(loaded.input, ref, command.session_id)
        for ref in loaded.services_by_session.get((command.zone_id, command.session_id), ())
    ]
    services = [service for service in outcomes if isinstance(service, Service)]
    return services or states.no_services_problem(loaded.input, command.zone_id, command.session_id)


def _apply_heartbeat(tx: Transaction, changes: BatchChanges, command: Heartbeat, service: Service) -> Service:
    after = apply_heartbeat(service, command.update, tx.now)
    changes.put(after)
    if after.health is not service.health:
        pending = PendingEvent("change", after, service, ("health",))
        tx.emit(persist.to_new_event(pending, command.caller.subject, command.trace))
    return after


async def _persist(tx: Transaction, changes: BatchChanges) -> None:
    """Write the services. If a heartbeat did not change `updated_at`, a cheaper statement writes only two columns."""
    heartbeat_only: list[tuple[str, str, int, int]] = []
    others = BatchChanges()
    for before, after in changes.updates():
        if after.updated_at == before.updated_at:
            heartbeat_only.append((*after.ref, 0, after.active_invocations))
        else:
            others.add_update(before, after)
    if heartbeat_only:
        await persist.update_checked(
            tx, Q.services_record_heartbeats(batch=heartbeat_only, now=tx.now), len(heartbeat_only)
        )
    await persist.write_services(tx, others)
