"""Request bodies, commands, rows, results and views of services."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.ids import Ref
from quarterdeck.core.paging import PageFilter, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.core.views import JsonText

ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
URL_MAX = 2_048
NO_SESSION = ""
"""The session id of a registration that the application itself made."""


class ServiceHealth(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class DeliveryMode(StrEnum):
    PULL = "pull"
    PUSH = "push"


class ServiceSettings(msgspec.Struct, frozen=True):
    push_private_addresses: Annotated[
        bool, Meta(description="allow push to loopback, private and link-local addresses")
    ] = False
    service_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long unregistered services are kept")
    ] = 30.0


# -- requested ---------------------------------------------------------------------------------------------------


class ServiceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that describe a service. An omitted field keeps its value. A new service gets the default."""

    protocol_versions: (
        Annotated[list[ShortText], Meta(max_length=64, description="protocol versions that the service supports")]
        | UnsetType
    ) = UNSET
    framework_name: (
        Annotated[ShortText, Meta(description="the framework that the service is built with")] | UnsetType | None
    ) = UNSET
    framework_version: ShortText | UnsetType | None = UNSET
    capabilities: (
        Annotated[list[ShortText], Meta(max_length=256, description="what the service declares it can do")] | UnsetType
    ) = UNSET
    health: Annotated[ServiceHealth, Meta(description="default for a new service: starting")] | UnsetType = UNSET
    metadata_json: (
        Annotated[dict[str, object], Meta(description="any object; stored and returned unchanged")] | UnsetType
    ) = UNSET
    metadata: Annotated[dict[str, object], Meta(description="another name for metadata_json")] | UnsetType = UNSET
    delivery: (
        Annotated[
            DeliveryMode,
            Meta(description="pull: workers claim invocations; push: the server posts them to the endpoint"),
        ]
        | UnsetType
    ) = UNSET


class RegisterSessionServiceBody(ServiceDescription, frozen=True, kw_only=True):
    """A service that the session in the path registers."""

    endpoint_url: Annotated[str, Meta(max_length=URL_MAX, description="http:// or https://")]
    application_id: Annotated[PathId, Meta(description="if given, it must be the session's application")] | None = None


class RegisterServiceBody(ServiceDescription, frozen=True, kw_only=True):
    application_id: Annotated[PathId, Meta(description="the application that offers the service")]
    endpoint_url: Annotated[str, Meta(max_length=URL_MAX, description="http:// or https://")]
    agent_id: (
        Annotated[PathId, Meta(description="a live session of the application; the registration ends with the session")]
        | None
    ) = None


class UpdateServiceBody(ServiceDescription, frozen=True, kw_only=True):
    rotate_secret: Annotated[bool, Meta(description="sign with a new secret from now on, and return it")] = False


class ServiceHeartbeatBody(msgspec.Struct, frozen=True, kw_only=True):
    """All fields are optional. An empty body is a valid heartbeat."""

    health: ServiceHealth | UnsetType = UNSET
    status: Annotated[ServiceHealth, Meta(description="another name for health")] | UnsetType = UNSET
    active_invocations: (
        Annotated[
            int, Meta(ge=0, le=1_000_000_000, description="how many invocations the service is currently working on")
        ]
        | UnsetType
    ) = UNSET
    metadata: Annotated[dict[str, object], Meta(description="replaces metadata_json")] | UnsetType = UNSET


class SessionHeartbeatBody(ServiceHeartbeatBody, frozen=True, kw_only=True):
    service_id: Annotated[PathId, Meta(description="default: every service of the session")] | None = None


class ServiceUpdate(msgspec.Struct, frozen=True):
    """The fields of a request as stored, with JSON as text. Unset fields keep their values."""

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
    """Required here: the server itself never submits these commands."""


class Register(_CallerCommand, frozen=True, kw_only=True):
    """Register a service. The id is generated before the batch and used if the service is new."""

    id: str
    endpoint_url: str
    application_id: str | None
    """None: the application of the session."""
    session_id: str | None
    """None: the application itself registers it."""
    update: ServiceUpdate = ServiceUpdate()


class Update(_CallerCommand, frozen=True, kw_only=True):
    service_id: str
    session_id: str | None = None
    """The session in the request's path. It must have registered the service."""
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
    """Delete only this session's registration. None: delete all registrations of the service."""


class DeleteService(msgspec.Struct, frozen=True):
    """Sent by retention: delete a service if it was unregistered before the given time."""

    zone_id: str
    service_id: str
    before: Millis


class ShowService(msgspec.Struct, frozen=True):
    zone_id: str
    service_id: str
    session_id: str | None = None
    bearer: Bearer | None = None


class ServiceFilter(PageFilter, frozen=True, kw_only=True):
    session_id: str | None = None
    application_id: str | None = None
    health: ServiceHealth | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Service(msgspec.Struct, frozen=True, array_like=True):
    """A row of `agent_services`, in the order of the `columns` line of `queries.sql`."""

    id: str
    zone_id: str
    application_id: str
    agent_id: str | None
    endpoint_url: str
    protocol_versions: JsonText
    framework_name: str | None
    framework_version: str | None
    capabilities: JsonText
    health: ServiceHealth
    metadata_json: JsonText
    delivery: DeliveryMode
    secret_number: int
    """Number of the current secret. 0 if the service has never had one."""
    active_invocations: int
    last_heartbeat_at: Millis | None
    unregistered_at: Millis | None
    created_at: Millis
    updated_at: Millis
    is_live: int = 1
    """Not a column. 1 if at least one registrant is live. A session that has ended is not live, even before a cascade
    or a sweep has deleted its registration."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class RegisteredService(msgspec.Struct, frozen=True):
    """Result of a registration or an update."""

    service: Service
    created: bool = False
    include_secret: bool = False
    """Whether the response contains the secret."""


class HeartbeatResult(msgspec.Struct, frozen=True):
    services: tuple[Service, ...]
    """The services that the heartbeat applied to."""
    at: Millis
    """Time of the transaction."""


class UnregisterResult(msgspec.Struct, frozen=True):
    pass


class DeleteResult(msgspec.Struct, frozen=True):
    is_deleted: bool
    """False if the service was registered again or is already deleted."""


# -- returned ----------------------------------------------------------------------------------------------------


class ServiceView(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    application_id: str
    agent_id: Annotated[str, Meta(description="a session that registered the service")] | None
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
    secret: Annotated[str, Meta(description="the secret that signs pushes; returned only once")] | UnsetType = UNSET


class SessionHeartbeatView(msgspec.Struct, frozen=True):
    services: Annotated[int, Meta(description="how many services the heartbeat applied to")]
    last_heartbeat_at: str


class ListServicesQuery(PageQuery, frozen=True):
    application_id: PathId | None = None
    health: ServiceHealth | None = None
