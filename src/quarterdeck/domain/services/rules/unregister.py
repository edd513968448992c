"""What follows for a service when some of its registrations are deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.rules.batch_changes import PendingEvent


@dataclass(frozen=True, slots=True)
class RegistrationRemoval:
    """A service whose registrations were just deleted, all or some."""

    service: Service
    removed_sessions: Collection[str]
    """Sessions whose registrations were deleted. May be empty if the service was unregistered by name."""
    is_registered: bool
    """Whether a registration is left. One of an expired session counts until its end is processed."""
    successor: str | None
    """The first live session among the remaining registrants."""


def apply_removal(removal: RegistrationRemoval, reason: str, now: Millis) -> PendingEvent | None:
    """The event of the removal, or None if the service was already unregistered."""
    service = removal.service
    if service.unregistered_at is not None:
        return None
    if not removal.is_registered:
        unregistered = msgspec.structs.replace(service, unregistered_at=now, updated_at=now, is_live=0)
        return PendingEvent("unregister", unregistered, service, reason=reason)
    after = msgspec.structs.replace(service, updated_at=now)
    if service.agent_id not in removal.removed_sessions:
        return PendingEvent("change", after, service, reason=reason)
    reassigned = msgspec.structs.replace(after, agent_id=removal.successor)
    return PendingEvent("change", reassigned, service, ("agent_id",), reason)
