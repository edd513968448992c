"""What is asked for, what is stored, and what is shown of services: three different types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.routing import PathId

Ref = tuple[str, str]
"""(zone, service)"""
ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
URL_MAX = 2_048
NO_SESSION = ""
"""Who registered a service that no session registered: the application itself, which never ends."""


class ServiceHealth(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class DeliveryMode(StrEnum):
    PULL = "pull"
    PUSH = "push"


class ServiceSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    push_private_addresses: Annotated[
        bool, Meta(description="allow push to loopback, private and link-local addresses")
    ] = False
    service_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long unregistered services are kept")
    ] = 30.0


# -- asked for ---------------------------------------------------------------------------------------------------


class ServiceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of a service. What is not said stays as it is, or as a new service has it."""

    protocol_versions: (
        Annotated[list[ShortText], Meta(max_length=64, description="of the protocols it speaks")] | UnsetType
    ) = UNSET
    framework_name: Annotated[ShortText, Meta(description="what it was made with")] | UnsetType | None = UNSET
    framework_version: ShortText | UnsetType | None = UNSET
    capabilities: Annotated[list[ShortText], Meta(max_length=256, description="what it says it can do")] | UnsetType = (
        UNSET
    )
    health: Annotated[ServiceHealth, Meta(description="of a new one: starting")] | UnsetType = UNSET
    metadata_json: Annotated[dict[str, object], Meta(description="anything; kept and shown as given")] | UnsetType = (
        UNSET
    )
    metadata: Annotated[dict[str, object], Meta(description="another name for metadata_json")] | UnsetType = UNSET
    delivery: (
        Annotated[DeliveryMode, Meta(description="whether workers claim invocations, or the server posts them to it")]
        | UnsetType
    ) = UNSET


class RegisterSessionServiceBody(ServiceDescription, frozen=True, kw_only=True):
    """A service of the session in the path."""

    endpoint_url: Annotated[str, Meta(max_length=URL_MAX, description="http:// or https://")]
    application_id: Annotated[PathId, Meta(description="if given, the session's own")] | None = None


class RegisterServiceBody(ServiceDescription, frozen=True, kw_only=True):
    application_id: Annotated[PathId, Meta(description="the application that offers it")]
    endpoint_url: Annotated[str, Meta(max_length=URL_MAX, description="http:// or https://")]
    agent_id: (
        Annotated[PathId, Meta(description="a live session of the application; it is registered while that lives")]
        | None
    ) = None


class UpdateServiceBody(ServiceDescription, frozen=True, kw_only=True):
    rotate_secret: Annotated[bool, Meta(description="sign from now on with another secret, and show it")] = False


class ServiceHeartbeatBody(msgspec.Struct, frozen=True, kw_only=True):
    """Empty is fine: that it came is what counts."""

    health: ServiceHealth | UnsetType = UNSET
    status: Annotated[ServiceHealth, Meta(description="another name for health")] | UnsetType = UNSET
    active_invocations: Annotated[int, Meta(ge=0, le=1_000_000_000, description="how many it works on")] | UnsetType = (
        UNSET
    )
    metadata: Annotated[dict[str, object], Meta(description="replaces what was kept as metadata_json")] | UnsetType = (
        UNSET
    )


class SessionHeartbeatBody(ServiceHeartbeatBody, frozen=True, kw_only=True):
    service_id: Annotated[PathId, Meta(description="default: every service of the session")] | None = None


class ServiceUpdate(msgspec.Struct, frozen=True):
    """The same as it is stored: JSON as text. What is unset is not said."""

    protocol_versions: str | UnsetType = UNSET
    framework_name: str | UnsetType | None = UNSET
    framework_version: str | UnsetType | None = UNSET
    capabilities: str | UnsetType = UNSET
    health: ServiceHealth | UnsetType = UNSET
    metadata_json: str | UnsetType = UNSET
    delivery: DeliveryMode | UnsetType = UNSET
    active_invocations: int | UnsetType = UNSET


class _CallerCommand(Command, frozen=True, kw_only=True):
    caller: Caller
    """No server asks for any of it."""


class Register(_CallerCommand, frozen=True, kw_only=True):
    """A registration on its way through the lane. The id is made before, for the case that the service is new."""

    id: str
    endpoint_url: str
    application_id: str | None
    """None: that of the session."""
    session_id: str | None
    """None: the application itself registers it."""
    update: ServiceUpdate = ServiceUpdate()


class Update(_CallerCommand, frozen=True, kw_only=True):
    service_id: str
    session_id: str | None = None
    """The session through whose path it was asked for, which must have registered it."""
    update: ServiceUpdate = ServiceUpdate()
    rotate_secret: bool = False


class Heartbeat(_CallerCommand, frozen=True, kw_only=True):
    service_id: str | None
    """None: every service of the session."""
    session_id: str | None = None
    update: ServiceUpdate = ServiceUpdate()


class Unregister(_CallerCommand, frozen=True, kw_only=True):
    service_id: str
    session_id: str | None = None
    """Only this session's registration; without one, everybody's."""


class DeleteExpired(msgspec.Struct, frozen=True):
    """By the retention: what was unregistered before a time, and nobody needs."""

    zone_id: str
    service_id: str
    before: Millis


class ServiceRef(msgspec.Struct, frozen=True):
    zone_id: str
    service_id: str
    session_id: str | None = None
    bearer: Bearer | None = None


class ServiceFilter(msgspec.Struct, frozen=True):
    """Which services of a zone are wanted, newest first."""

    zone_id: str
    limit: int
    before: str | None = None
    session_id: str | None = None
    application_id: str | None = None
    health: ServiceHealth | None = None
    bearer: Bearer | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Service(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_services`, in the order of the `columns` line of `queries.sql`."""

    id: str
    zone_id: str
    application_id: str
    agent_id: str | None
    endpoint_url: str
    protocol_versions: str
    framework_name: str | None
    framework_version: str | None
    capabilities: str
    health: ServiceHealth
    metadata_json: str
    delivery: DeliveryMode
    secret_number: int
    """Of the secret that was shown last; 0, if none ever was."""
    active_invocations: int
    last_heartbeat_at: Millis | None
    unregistered_at: Millis | None
    created_at: Millis
    updated_at: Millis
    is_live: int = 1
    """Not a column: whether any of those who registered it lives. An ended session's registration counts for nothing,
    whether or not a chunk or a sweep has come to it yet."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class RegisteredService(msgspec.Struct, frozen=True):
    """The outcome of a registration or a change: the service as it is now."""

    service: Service
    created: bool = False
    include_secret: bool = False
    """Whether this answer is the one that shows it."""


class HeartbeatResult(msgspec.Struct, frozen=True):
    """The outcome of a heartbeat: the services it was for."""

    services: tuple[Service, ...]
    at: Millis


class UnregisterResult(msgspec.Struct, frozen=True):
    pass


class DeleteResult(msgspec.Struct, frozen=True):
    is_deleted: bool
    """If not, it was registered again meanwhile."""


# -- shown -------------------------------------------------------------------------------------------------------


class ServiceView(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    application_id: str
    agent_id: Annotated[str, Meta(description="a session that registered it and lives")] | None
    endpoint_url: str
    protocol_versions: msgspec.Raw
    framework_name: str | None
    framework_version: str | None
    capabilities: msgspec.Raw
    health: ServiceHealth
    metadata_json: msgspec.Raw
    delivery: DeliveryMode
    active_invocations: int
    last_heartbeat_at: str | None
    created_at: str
    updated_at: str
    secret: Annotated[str, Meta(description="shown once: pushes are signed with it")] | UnsetType = UNSET


class ServiceList(msgspec.Struct, frozen=True):
    items: list[ServiceView]
    next_cursor: str | None


class SessionHeartbeatView(msgspec.Struct, frozen=True):
    services: Annotated[int, Meta(description="how many services it was for")]
    last_heartbeat_at: str


class ListServicesQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    application_id: PathId | None = None
    health: ServiceHealth | None = None


class ListSessionServicesQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
