"""What becomes of a service when some of those who registered it are gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.rules.batch_changes import PendingEvent


@dataclass(frozen=True, slots=True)
class RegistrationRemoval:
    """A service, after those who leave it have left."""

    service: Service
    removed_sessions: Collection[str]
    """The sessions that left; nobody, if it was taken away from all."""
    is_registered: bool
    """Whether anybody is left. One of whom nobody knows yet that it has ended goes in its turn."""
    successor: str | None
    """The first of the sessions left that lives."""


def apply_removal(removal: RegistrationRemoval, reason: str, now: Millis) -> PendingEvent | None:
    """The step it takes; None if it was gone already."""
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
