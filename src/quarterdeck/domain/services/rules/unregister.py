"""How a service changes when some or all of its registrations are deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.rules.batch_changes import PendingEvent


@dataclass(frozen=True, slots=True)
class RegistrationRemoval:
    """A service that has just lost some or all of its registrations."""

    service: Service
    removed_sessions: Collection[str]
    """Ids of the sessions whose registrations were deleted. Empty if a request found none to delete."""
    has_registration: bool
    """Whether a registration is left. The registration of an expired session counts until it is deleted."""
    successor_id: str | None
    """The id of the first live session among the remaining registrants, or None."""


def apply_removal(removal: RegistrationRemoval, reason: str, now: Millis) -> PendingEvent | None:
    """Return the event for the removal, with the changed service. None if the service was already unregistered."""
    service = removal.service
    if service.unregistered_at is not None:
        return None
    if not removal.has_registration:
        unregistered = msgspec.structs.replace(service, unregistered_at=now, updated_at=now, is_live=0)
        return PendingEvent("unregister", unregistered, service, reason=reason)
    after = msgspec.structs.replace(service, updated_at=now)
    if service.agent_id not in removal.removed_sessions:
        return PendingEvent("change", after, service, reason=reason)
    reassigned = msgspec.structs.replace(after, agent_id=removal.successor_id)
    return PendingEvent("change", reassigned, service, ("agent_id",), reason)
