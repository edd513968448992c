"""Whether a service is registered, which service a path names, who may change it, and its view. Also the services of a
batch, as loaded and as changed, and the type of their events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import NotFound, Problem
from quarterdeck.core.ids import Ref
from quarterdeck.core.views import view_of
from quarterdeck.domain.services.model import Service, ServiceView
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.sessions.model import Session

Registration = tuple[str, str, str]
"""(zone id, service id, session id)"""
SPAWN_FOR = "spawn_for"
"""The action for changes to services. A caller that may spawn an application's sessions may change its services."""


@dataclass(frozen=True, slots=True)
class ServiceBatchInput:
    """The rows that were loaded for a batch of commands about services."""

    now: Millis
    sessions: Mapping[Ref, Session]
    changes: BatchChanges
    registrations: Collection[Registration] = field(default_factory=set)


def is_registered(service: Service) -> bool:
    return service.unregistered_at is None and bool(service.is_live)


def resolve_service(loaded: ServiceBatchInput, ref: Ref, session_id: str | None) -> Service | Problem:
    """Return the service that a path names, or the error if it is not found.

    A path with a session reaches only services that this session has registered, and only while it is live.
    """
    zone_id, service_id = ref
    if session_id is not None:
        session = loaded.sessions.get((zone_id, session_id))
        if session is None:
            return session_rules.session_not_found(session_id)
        is_registrant = (zone_id, service_id, session_id) in loaded.registrations
        if not is_registrant or not session_rules.is_live(session, loaded.now):
            return not_found(service_id)
    service = loaded.changes.get(ref)
    return service if service is not None and is_registered(service) else not_found(service_id)


def no_services_problem(loaded: ServiceBatchInput, zone_id: str, session_id: str) -> NotFound:
    """The error for a heartbeat of a session that has no service, has ended, or does not exist."""
    if (zone_id, session_id) not in loaded.sessions:
        return session_rules.session_not_found(session_id)
    return NotFound("agent_service_not_found", f"Session {session_id!r} has no registered service.")


def ownership_problem(caller: Caller, service: Service) -> Problem | None:
    """Return a problem if the caller may not change the service."""
    is_owner = caller.can_act_for(service.application_id, SPAWN_FOR)
    return None if is_owner else session_rules.ownership_required(service.application_id)


def not_found(service_id: str) -> NotFound:
    return NotFound("agent_service_not_found", f"Service {service_id!r} does not exist or is not registered.")


view = view_of(Service, ServiceView)


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that the transaction will append to the log."""

    verb: Literal["register", "change", "unregister"]
    service: Service
    """After the change."""
    before: Service | None = None
    changed_fields: tuple[str, ...] = ()
    reason: str | None = None


class BatchChanges:
    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._loaded: dict[Ref, Service] = {service.ref: service for service in services}
        self._current: dict[Ref, Service] = {}

    def get(self, ref: Ref) -> Service | None:
        return self._current.get(ref) or self._loaded.get(ref)

    def put(self, service: Service) -> None:
        self._current[service.ref] = service

    def add_update(self, before: Service, after: Service) -> None:
        """Add a change that another `BatchChanges` computed."""
        self._loaded[before.ref] = before
        self._current[after.ref] = after

    def inserts(self) -> list[Service]:
        return [service for ref, service in sorted(self._current.items()) if ref not in self._loaded]

    def updates(self) -> Iterator[tuple[Service, Service]]:
        """(before, after) of each changed service, ordered by zone and id."""
        for ref, after in sorted(self._current.items()):
            before = self._loaded.get(ref)
            if before is not None and before != after:
                yield before, after
