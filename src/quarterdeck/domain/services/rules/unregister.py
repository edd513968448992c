"""What becomes of a service when some of those who registered it are gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.rules.batch_changes import Told


@dataclass(frozen=True, slots=True)
class Left:
    """A service, after those who leave it have left."""

    service: Service
    by: Collection[str]
    """The sessions that left; nobody, if it was taken away from all."""
    is_registered: bool
    """Whether anybody is left. One of whom nobody knows yet that it has ended goes in its turn."""
    heir: str | None
    """The first of the sessions left that lives."""


def left_behind(left: Left, reason: str, now: Millis) -> Told | None:
    """The step it takes; None if it was gone already."""
    service = left.service
    if service.unregistered_at is not None:
        return None
    if not left.is_registered:
        gone = msgspec.structs.replace(service, unregistered_at=now, updated_at=now, lives=0)
        return Told("unregister", gone, service, reason=reason)
    after = msgspec.structs.replace(service, updated_at=now)
    if service.agent_id not in left.by:
        return Told("change", after, service, reason=reason)
    led = msgspec.structs.replace(after, agent_id=left.heir)
    return Told("change", led, service, ("agent_id",), reason)
