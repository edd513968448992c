"""Decides registrations. The result is a new, an existing or a reactivated service.

Application and endpoint identify a service. A repeated registration adds its registrant, replaces the fields in the
request, and leaves the other fields unchanged. A service that was unregistered is reactivated under its old id, with
the defaults of a new service.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid, Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.rules import LivenessFields, session_suspended, suspended_caller_problem
from quarterdeck.domain.services.model import (
    NO_SESSION,
    DeliveryMode,
    Register,
    RegisteredService,
    Service,
    ServiceHealth,
)
from quarterdeck.domain.services.rules.endpoint_urls import push_problem
from quarterdeck.domain.services.rules.states import SPAWN_FOR, BatchChanges, PendingEvent, Registration, is_registered
from quarterdeck.domain.services.rules.update import apply_update, changed_fields, starts_push, with_next_secret
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.sessions.model import Session, State

EndpointKey = tuple[str, str, str]
"""(zone id, application id, endpoint URL)"""
SESSION_ENDED = "session_ended"
"""Event reason: the service was unregistered because its last registrant ended."""


@dataclass(frozen=True, slots=True)
class RegistrationBatchInput:
    """The rows from which registrations are decided, read under the zones' locks."""

    now: Millis
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """For each locked zone, the problem if the zone has ended, or None."""
    sessions: Mapping[Ref, Session] = field(default_factory=dict)
    caller_sessions: Mapping[Ref, LivenessFields] = field(default_factory=dict)
    services: Collection[Service] = ()
    services_with_live_agent: Collection[Ref] = ()
    """Services whose `agent_id` is a live session."""
    registrations: Collection[Registration] = ()
    """Those of the requested registrations that already exist."""


class RegistrationDecider:
    """Decides the registrations of a batch in order. Each decision sees the changes of the earlier ones."""

    def __init__(self, loaded: RegistrationBatchInput, *, private_allowed: bool) -> None:
        self._loaded = loaded
        self._private_allowed = private_allowed
        self._refs: dict[EndpointKey, Ref] = {_endpoint_key(service): service.ref for service in loaded.services}
        self._services_with_live_agent = set(loaded.services_with_live_agent)
        self._registrations = set(loaded.registrations)
        self.changes = BatchChanges(loaded.services)
        self.new_registrations: list[Registration] = []
        self.services_with_stale_registrations: list[Ref] = []
        """Reactivated services that still have registrations of ended sessions, which must be deleted first."""
        self.events: list[tuple[Register, PendingEvent]] = []

    def resolve_application(self, command: Register) -> str | Problem:
        """Return the id of the application that will own the service, or a problem if the command is refused."""
        if problem := self._loaded.zone_problems[command.zone_id] or suspended_caller_problem(
            command.caller, self._loaded.caller_sessions
        ):
            return problem
        if command.session_id is None:
            assert command.application_id is not None  # a request has a session or an application
            is_owner = command.caller.can_act_for(command.application_id, SPAWN_FOR)
            return command.application_id if is_owner else session_rules.ownership_required(command.application_id)
        session = self._loaded.sessions.get((command.zone_id, command.session_id))
        if session is None or not session_rules.is_live(session, self._loaded.now):
            return session_rules.session_not_found(command.session_id)
        if not command.caller.can_act_for(session.application_id, SPAWN_FOR):
            return session_rules.ownership_required(session.application_id)
        if command.application_id not in (None, session.application_id):
            return _application_mismatch(session)
        is_suspended = session.status is State.SUSPENDED
        return session_suspended(session.id) if is_suspended else session.application_id

    def decide(self, command: Register) -> RegisteredService | Problem:
        application_id = self.resolve_application(command)
        if isinstance(application_id, Problem):
            return application_id
        ref = self._refs.get((command.zone_id, application_id, command.endpoint_url))
        previous = self.changes.get(ref) if ref is not None else None
        before = previous if previous is not None and is_registered(previous) else None
        after = apply_update(before or self._new_service(command, application_id, previous), command.update)
        push_starts = starts_push(before, after)
        if after.delivery is DeliveryMode.PUSH and (
            problem := push_problem(after.endpoint_url, private_allowed=self._private_allowed)
        ):
            return problem
        if previous is not None and before is None:
            self._end_previous(command, previous)
        if push_starts:
            after = with_next_secret(after)
        after = self._add_registration(command, before, self._with_agent(command, after))
        return RegisteredService(after, created=before is None, include_secret=push_starts)

    def _new_service(self, command: Register, application_id: str, previous: Service | None) -> Service:
        now = self._loaded.now
        return Service(
            id=previous.id if previous else command.id,
            zone_id=command.zone_id,
            application_id=application_id,
            agent_id=None,
            endpoint_url=command.endpoint_url,
            protocol_versions="[]",
            framework_name=None,
            framework_version=None,
            capabilities="[]",
            health=ServiceHealth.STARTING,
            metadata_json="{}",
            delivery=DeliveryMode.PULL,
            secret_number=previous.secret_number if previous else 0,
            active_invocations=0,
            last_heartbeat_at=None,
            unregistered_at=None,
            created_at=previous.created_at if previous else now,
            updated_at=now,
        )

    def _end_previous(self, command: Register, previous: Service) -> None:
        """End the previous registration period of a service that is about to be reactivated.

        All its registrants have ended, but a sweep may not have unregistered it. The unregister event comes before the
        register event, so that invocations of the old period do not reach the new one.
        """
        if previous.unregistered_at is None:
            unregistered = msgspec.structs.replace(previous, unregistered_at=self._loaded.now, is_live=0)
            self.events.append((command, PendingEvent("unregister", unregistered, previous, reason=SESSION_ENDED)))
            self.services_with_stale_registrations.append(previous.ref)
            self._registrations -= {
                registration for registration in self._registrations if registration[:2] == previous.ref
            }
        self._services_with_live_agent.discard(previous.ref)

    def _with_agent(self, command: Register, service: Service) -> Service:
        """Set `agent_id` to the session of the command, unless `agent_id` already is a live session."""
        if command.session_id is None or (service.agent_id and service.ref in self._services_with_live_agent):
            return service
        self._services_with_live_agent.add(service.ref)
        return msgspec.structs.replace(service, agent_id=command.session_id)

    def _add_registration(self, command: Register, before: Service | None, after: Service) -> Service:
        registration = (*after.ref, command.session_id or NO_SESSION)
        is_new = registration not in self._registrations
        if is_new:
            self._registrations.add(registration)
            self.new_registrations.append(registration)
        field_names = changed_fields(before, after) if before is not None else ()
        if before is not None and not field_names and not is_new:
            return before
        after = msgspec.structs.replace(after, updated_at=self._loaded.now)
        self._refs[_endpoint_key(after)] = after.ref
        self.changes.put(after)
        pending = (
            PendingEvent("register", after) if before is None else PendingEvent("change", after, before, field_names)
        )
        self.events.append((command, pending))
        return after


def _endpoint_key(service: Service) -> EndpointKey:
    return service.zone_id, service.application_id, service.endpoint_url


def _application_mismatch(session: Session) -> Invalid:
    return Invalid(
        "application_mismatch",
        f"Session {session.id!r} belongs to application {session.application_id!r}. Send that id, or omit the field.",
        field="application_id",
    )
