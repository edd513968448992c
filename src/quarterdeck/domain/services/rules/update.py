"""What a change and a heartbeat make of a service."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.services.model import Change, Delivery, Described, HeartbeatBody, Registered, Said, Service
from quarterdeck.domain.services.rules.endpoint_urls import push_problem

T = TypeVar("T")


# -- what is said ------------------------------------------------------------------------------------------------


def said_of(body: Described | HeartbeatBody) -> Said:
    """What a body says, as it is stored. Some things have two names, and are said once."""
    if isinstance(body, HeartbeatBody):
        return Said(
            health=_one("status", body.status, body.health),
            active_invocations=body.active_invocations,
            metadata_json=_text(body.metadata),
        )
    return Said(
        protocol_versions=_text(body.protocol_versions),
        framework_name=body.framework_name,
        framework_version=body.framework_version,
        capabilities=_text(body.capabilities),
        health=body.health,
        metadata_json=_text(_one("metadata", body.metadata, body.metadata_json)),
        delivery=body.delivery,
    )


def _one(name: str, one: T | UnsetType, other: T | UnsetType) -> T | UnsetType:
    if one is UNSET or other is UNSET or one == other:
        return other if one is UNSET else one
    raise Invalid("invalid_body", f"{name} is said twice, and differently.", field=name)


def _text(value: object) -> str | UnsetType:
    return UNSET if value is UNSET else msgspec.json.encode(value).decode()


# -- what it makes -----------------------------------------------------------------------------------------------


def apply(service: Service, said: Said) -> Service:
    """What is said replaces what was there; what is not said stays."""
    told = {name: value for name in Said.__struct_fields__ if (value := getattr(said, name)) is not UNSET}
    return msgspec.structs.replace(service, **told) if told else service


def changed(before: Service, after: Service) -> tuple[str, ...]:
    """The names of what differs."""
    return tuple(
        name
        for name in Service.__struct_fields__
        if name not in ("updated_at", "last_heartbeat_at", "lives") and getattr(before, name) != getattr(after, name)
    )


def change(ask: Change, service: Service, now: Millis, *, private_allowed: bool) -> Registered | Invalid:
    after = apply(service, ask.said)
    begins = begins_push(service, after)
    if begins and (problem := push_problem(after.endpoint_url, private_allowed=private_allowed)):
        return problem
    if begins or ask.rotates:
        after = with_another_secret(after)
    if after != service:
        after = msgspec.structs.replace(after, updated_at=now)
    return Registered(after, shows_secret=begins or ask.rotates)


def begins_push(before: Service | None, after: Service) -> bool:
    """Whether it is pushed to from here on, and was not before."""
    return after.delivery is Delivery.PUSH and (before is None or before.delivery is not Delivery.PUSH)


def with_another_secret(service: Service) -> Service:
    """No secret is shown twice: whoever shows one raises its number. The one before it still signs."""
    return msgspec.structs.replace(service, secret_number=service.secret_number + 1)


def beat(service: Service, said: Said, now: Millis) -> Service:
    """It was heard of. How many invocations it works on is no change of it, as health and metadata are."""
    after = msgspec.structs.replace(apply(service, said), last_heartbeat_at=now)
    moved = (after.health, after.metadata_json) != (service.health, service.metadata_json)
    return msgspec.structs.replace(after, updated_at=now) if moved else after
