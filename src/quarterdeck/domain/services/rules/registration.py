"""What a registration makes: a new service, a known one, or one that was gone.

A service is known by its application and its endpoint. Whoever registers it again adds itself to those who registered
it, says anew what it says, and leaves the rest as it was. One that was gone comes back under its id, with nothing left
of what was said of it before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid, Problem
from quarterdeck.domain.services.model import THE_APPLICATION, Delivery, Health, Ref, Register, Registered, Service
from quarterdeck.domain.services.rules.batch_changes import Shelf, Told
from quarterdeck.domain.services.rules.endpoint_urls import push_problem
from quarterdeck.domain.services.rules.states import SPAWN_FOR, Registration, is_registered
from quarterdeck.domain.services.rules.update import apply, begins_push, changed, with_another_secret
from quarterdeck.domain.sessions import rules as session_rules
from quarterdeck.domain.sessions.model import Session, State

Key = tuple[str, str, str]
"""(zone, application, endpoint)"""
SESSION_ENDED = "session_ended"
"""Why a service went that nobody took away."""


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that decides, read under the zones' locks."""

    now: Millis
    zones: Mapping[str, Problem | None] = field(default_factory=dict)
    """Of each zone that was locked: why nothing may be registered in it, if nothing may."""
    sessions: Mapping[Ref, Session] = field(default_factory=dict)
    services: Collection[Service] = ()
    with_live_agent: Collection[Ref] = ()
    """The services whose `agent_id` still lives."""
    registrations: Collection[Registration] = ()
    """Of those that are asked for, the ones that are there already."""


class Registry:
    """The services that a batch of registrations is about, as they change."""

    def __init__(self, known: Known, *, private_allowed: bool) -> None:
        self._known = known
        self._private_allowed = private_allowed
        self._ids: dict[Key, Ref] = {_key(service): service.ref for service in known.services}
        self._with_live_agent = set(known.with_live_agent)
        self._registrations = set(known.registrations)
        self.shelf = Shelf(known.services)
        self.joined: list[Registration] = []
        self.forgotten: list[Ref] = []
        """Services that come back while registrations of ended sessions still stand: those go first."""
        self.told: list[tuple[Register, Told]] = []

    def application_of(self, ask: Register) -> str | Problem:
        """The application a service will be of; or why this caller may not register it."""
        if problem := self._known.zones[ask.zone_id] or session_rules.asleep(ask.caller, self._known.sessions):
            return problem
        if ask.session_id is None:
            assert ask.application_id is not None  # one of the two is in every request
            owned = ask.caller.may_act_for(ask.application_id, SPAWN_FOR)
            return ask.application_id if owned else session_rules.ownership_required(ask.application_id)
        session = self._known.sessions.get((ask.zone_id, ask.session_id))
        if session is None or not session_rules.is_live(session, self._known.now):
            return session_rules.not_found(ask.session_id)
        if not ask.caller.may_act_for(session.application_id, SPAWN_FOR):
            return session_rules.ownership_required(session.application_id)
        if ask.application_id not in (None, session.application_id):
            return _mismatch(session)
        asleep = session.status is State.SUSPENDED
        return session_rules.suspended(session.id) if asleep else session.application_id

    def decide(self, ask: Register) -> Registered | Problem:
        application_id = self.application_of(ask)
        if isinstance(application_id, Problem):
            return application_id
        ref = self._ids.get((ask.zone_id, application_id, ask.endpoint_url))
        known = self.shelf.get(ref) if ref is not None else None
        before = known if known is not None and is_registered(known) else None
        after = apply(before or self._fresh(ask, application_id, known), ask.said)
        begins = begins_push(before, after)
        if after.delivery is Delivery.PUSH and (
            problem := push_problem(after.endpoint_url, private_allowed=self._private_allowed)
        ):
            return problem
        if known is not None and before is None:
            self._bring_back(ask, known)
        if begins:
            after = with_another_secret(after)
        after = self._join(ask, before, self._led(ask, after))
        return Registered(after, created=before is None, shows_secret=begins)

    def _fresh(self, ask: Register, application_id: str, known: Service | None) -> Service:
        now = self._known.now
        return Service(
            id=known.id if known else ask.id,
            zone_id=ask.zone_id,
            application_id=application_id,
            agent_id=None,
            endpoint_url=ask.endpoint_url,
            protocol_versions="[]",
            framework_name=None,
            framework_version=None,
            capabilities="[]",
            health=Health.STARTING,
            metadata_json="{}",
            delivery=Delivery.PULL,
            secret_number=known.secret_number if known else 0,
            active_invocations=0,
            last_heartbeat_at=None,
            unregistered_at=None,
            created_at=known.created_at if known else now,
            updated_at=now,
        )

    def _bring_back(self, ask: Register, known: Service) -> None:
        """Whoever registered it before has ended, whether or not a sweep has come: its end is told before its return,
        so that whatever was asked of the one is not asked of the other."""
        if known.unregistered_at is None:
            gone = msgspec.structs.replace(known, unregistered_at=self._known.now, lives=0)
            self.told.append((ask, Told("unregister", gone, known, reason=SESSION_ENDED)))
            self.forgotten.append(known.ref)
            self._registrations -= {one for one in self._registrations if one[:2] == known.ref}
        self._with_live_agent.discard(known.ref)

    def _led(self, ask: Register, service: Service) -> Service:
        """The first session that registered it leads it while it lives; then the one that comes."""
        if ask.session_id is None or (service.agent_id and service.ref in self._with_live_agent):
            return service
        self._with_live_agent.add(service.ref)
        return msgspec.structs.replace(service, agent_id=ask.session_id)

    def _join(self, ask: Register, before: Service | None, after: Service) -> Service:
        registration = (*after.ref, ask.session_id or THE_APPLICATION)
        joins = registration not in self._registrations
        if joins:
            self._registrations.add(registration)
            self.joined.append(registration)
        names = changed(before, after) if before is not None else ()
        if before is not None and not names and not joins:
            return before
        after = msgspec.structs.replace(after, updated_at=self._known.now)
        self._ids[_key(after)] = after.ref
        self.shelf.put(after)
        told = Told("register", after) if before is None else Told("change", after, before, names)
        self.told.append((ask, told))
        return after


def _key(service: Service) -> Key:
    return service.zone_id, service.application_id, service.endpoint_url


def _mismatch(session: Session) -> Invalid:
    return Invalid(
        "application_mismatch",
        f"The session {session.id!r} is of the application {session.application_id!r}, and so are its services.",
        field="application_id",
    )
