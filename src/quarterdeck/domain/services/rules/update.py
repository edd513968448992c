"""How updates, heartbeats and deleted registrations change a service."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.services.model import (
    DeliveryMode,
    RegisteredService,
    Service,
    ServiceDescription,
    ServiceHeartbeatBody,
    ServiceUpdate,
    Update,
)
from quarterdeck.domain.services.rules.endpoint_urls import push_problem
from quarterdeck.domain.services.rules.states import PendingEvent

T = TypeVar("T")


# -- fields of a request -----------------------------------------------------------------------------------------


def update_from_body(body: ServiceDescription | ServiceHeartbeatBody) -> ServiceUpdate:
    """Convert a body to the values to store. A field that has two names may use either name."""
    if isinstance(body, ServiceHeartbeatBody):
        return ServiceUpdate(
            health=_merge_alias("status", body.status, body.health),
            active_invocations=body.active_invocations,
            metadata_json=_json_text(body.metadata),
        )
    return ServiceUpdate(
        protocol_versions=_json_text(body.protocol_versions),
        framework_name=body.framework_name,
        framework_version=body.framework_version,
        capabilities=_json_text(body.capabilities),
        health=body.health,
        metadata_json=_json_text(_merge_alias("metadata", body.metadata, body.metadata_json)),
        delivery=body.delivery,
    )


def _merge_alias(alias_name: str, alias_value: T | UnsetType, value: T | UnsetType) -> T | UnsetType:
    if alias_value is UNSET or value is UNSET or alias_value == value:
        return value if alias_value is UNSET else alias_value
    raise Invalid(
        "invalid_body",
        f"`{alias_name}` and its other name have different values. Send only one of them.",
        field=alias_name,
    )


def _json_text(value: object) -> str | UnsetType:
    return UNSET if value is UNSET else msgspec.json.encode(value).decode()


# -- decisions ---------------------------------------------------------------------------------------------------


def apply_update(service: Service, update: ServiceUpdate) -> Service:
    """Replace the given fields; unset fields keep their values."""
    values = {name: value for name in ServiceUpdate.__struct_fields__ if (value := getattr(update, name)) is not UNSET}
    return msgspec.structs.replace(service, **values) if values else service


def changed_fields(before: Service, after: Service) -> tuple[str, ...]:
    """Names of the fields that differ, except timestamps and `is_live`."""
    return tuple(
        name
        for name in Service.__struct_fields__
        if name not in ("updated_at", "last_heartbeat_at", "is_live") and getattr(before, name) != getattr(after, name)
    )


def update_service(
    command: Update, service: Service, now: Millis, *, private_allowed: bool
) -> RegisteredService | Invalid:
    after = apply_update(service, command.update)
    push_starts = starts_push(service, after)
    if push_starts and (problem := push_problem(after.endpoint_url, private_allowed=private_allowed)):
        return problem
    if push_starts or command.rotate_secret:
        after = with_next_secret(after)
    if after != service:
        after = msgspec.structs.replace(after, updated_at=now)
    return RegisteredService(after, include_secret=push_starts or command.rotate_secret)


def starts_push(before: Service | None, after: Service) -> bool:
    """Whether this change sets delivery to push."""
    return after.delivery is DeliveryMode.PUSH and (before is None or before.delivery is not DeliveryMode.PUSH)


def with_next_secret(service: Service) -> Service:
    """Switch to the next secret, so that no secret is returned twice. Pushes are also signed with the previous one."""
    return msgspec.structs.replace(service, secret_number=service.secret_number + 1)


def apply_heartbeat(service: Service, update: ServiceUpdate, now: Millis) -> Service:
    """Record a heartbeat. `updated_at` changes only with health or metadata, not with `active_invocations`."""
    after = msgspec.structs.replace(apply_update(service, update), last_heartbeat_at=now)
    is_changed = (after.health, after.metadata_json) != (service.health, service.metadata_json)
    return msgspec.structs.replace(after, updated_at=now) if is_changed else after


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
