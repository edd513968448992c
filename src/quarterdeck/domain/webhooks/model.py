"""Webhooks as requested, as stored and as returned: three different types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.ids import Ref
from quarterdeck.core.paging import PageQuery
from quarterdeck.core.views import JsonText

ENDPOINTS_MAX = 50
"""Maximum endpoints per zone."""
URL_MAX = 2_048
TYPES_MAX = 64


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class DeliveryVerb(StrEnum):
    DELIVER = "deliver"
    RETRY = "retry"
    GIVE_UP = "give_up"
    REPLAY = "replay"


class DisableReason(StrEnum):
    """Why an endpoint is disabled."""

    BY_HAND = "by_hand"
    GONE = "gone"
    """The endpoint answered 410."""
    FAILING = "failing"
    """All deliveries failed for `webhook_disable_after_days`."""
    BACKLOG_FULL = "backlog_full"
    """More than `webhook_backlog_max` deliveries were pending."""


class WebhookSettings(msgspec.Struct, frozen=True):
    webhook_timeout_ms: Annotated[int, Meta(ge=10, le=120_000, description="timeout of one delivery attempt")] = 15_000
    webhook_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="interval of the search for due deliveries without a wake-up")
    ] = 1_000
    webhook_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="maximum concurrent deliveries in one server")
    ] = 64
    webhook_zone_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="maximum concurrent deliveries in one server for one zone")
    ] = 16
    webhook_endpoint_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="maximum concurrent deliveries in one server to one endpoint")
    ] = 4
    webhook_disable_after_days: Annotated[
        float, Meta(gt=0, le=365, description="how long an endpoint may fail before it is disabled")
    ] = 5.0
    webhook_backlog_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="approximate maximum of pending deliveries of one endpoint")
    ] = 10_000
    webhook_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long ended deliveries are kept")
    ] = 30.0


# -- requested ---------------------------------------------------------------------------------------------------

Url = Annotated[str, Meta(max_length=URL_MAX, description="https:// URL of a public host")]
Description = Annotated[str, Meta(max_length=500, description="free text")]
EventType = Annotated[str, Meta(min_length=1, max_length=64)]
EventTypes = Annotated[
    list[EventType],
    Meta(
        min_length=1,
        max_length=TYPES_MAX,
        description="event types to deliver: task.status_changed, alert, a type of the log such as task.created or "
        "agent.stale, or * for all events of tasks and agents; default: task.status_changed and alert",
    ),
]


class CreateWebhookBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    url: Url
    description: Description | None = None
    types: EventTypes | None = None


class UpdateWebhookBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Given fields replace the stored values; omitted fields keep theirs."""

    url: Url | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    types: EventTypes | UnsetType = UNSET
    enabled: Annotated[bool, Meta(description="whether events are delivered to it")] | UnsetType = UNSET


class EndpointCommand(Command, frozen=True, kw_only=True):
    """A command of the webhook lane."""

    id: str
    """The endpoint's id."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Create(EndpointCommand, frozen=True, kw_only=True):
    url: str
    types: tuple[str, ...]
    description: str | None = None
    idempotency_key: str | None = None
    request_digest: str = ""


class Update(EndpointCommand, frozen=True, kw_only=True):
    url: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    types: tuple[str, ...] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class RotateSecret(EndpointCommand, frozen=True, kw_only=True):
    pass


class Remove(EndpointCommand, frozen=True, kw_only=True):
    pass


class SendTest(EndpointCommand, frozen=True, kw_only=True):
    delivery_id: str


class Replay(EndpointCommand, frozen=True, kw_only=True):
    delivery_id: str


class Disable(EndpointCommand, frozen=True, kw_only=True):
    """Submitted by the server, never by a request."""

    reason: DisableReason
    url: str | None = None
    """The URL that failed. If the endpoint has a different URL now, it is not disabled."""


WebhookCommand = Create | Update | RotateSecret | Remove | SendTest | Replay | Disable


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Lease up to `limit` due deliveries of an endpoint to the sender of this command."""

    zone_id: str
    endpoint_id: str
    limit: int
    lease_ms: int


class ReportAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Report the outcome of an attempt."""

    zone_id: str
    endpoint_id: str
    id: str
    lease_expires_at: Millis
    """Identifies the attempt. The report is ignored if the delivery has a different lease by now."""
    attempt: int
    answer_status: int | None = None
    error: str | None = None
    """None if the delivery succeeded."""
    retry_after_ms: Millis = 0
    """The delay that the endpoint requested with Retry-After."""
    jitter: float = 0.0


class FailPending(msgspec.Struct, frozen=True):
    """Fail up to `limit` pending deliveries of a disabled or removed endpoint."""

    zone_id: str
    endpoint_id: str
    limit: int


class EndpointFilter(msgspec.Struct, frozen=True):
    zone_id: str
    caller: Caller
    id: str | None = None
    """None: all endpoints of the zone."""


class DeliveryFilter(msgspec.Struct, frozen=True):
    """Filter for a page of deliveries, newest first."""

    zone_id: str
    endpoint_id: str
    caller: Caller
    limit: int
    before: str | None = None
    status: DeliveryState | None = None


class DeliveriesQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    status: DeliveryState | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """A row of `webhook_endpoints`, in the order of the `columns` line of `queries.sql`."""

    zone_id: str
    id: str
    url: str
    description: str | None
    types: JsonText
    """A JSON array of event types."""
    secret_number: int
    rotated_at: Millis | None
    enabled: int
    disabled_reason: str | None
    position: int
    """A log position: only later events are delivered."""
    failing_since: Millis | None
    """The first failure since the last successful delivery."""
    created_by: str
    created_at: Millis
    updated_at: Millis
    removed_at: Millis | None

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A row of `webhook_deliveries`, in the order of the `columns delivery` line of `queries.sql`."""

    endpoint_id: str
    zone_id: str
    id: str
    """The id of the event. The receiver gets it as `webhook-id`."""
    pos: int
    type: str
    """The value of `event` in the body."""
    body: JsonText
    trace: str | None
    status: DeliveryState
    attempts: int
    """Attempts since it was created or replayed."""
    queue: str | None
    """The endpoint id while it is pending, else None."""
    next_at: Millis | None
    """When it is due; while it is being sent, when its lease expires."""
    answer_status: int | None
    error: str | None
    created_at: Millis
    updated_at: Millis
    delivered_at: Millis | None


class EndpointResult(msgspec.Struct, frozen=True):
    """The result of a command: the endpoint after it."""

    endpoint: Endpoint
    include_secret: bool = False
    delivery: Delivery | None = None
    is_repeat: bool = False
    """An earlier request with the same idempotency key created the endpoint."""


class ClaimedDeliveries(msgspec.Struct, frozen=True):
    endpoint: Endpoint | None
    """None if it does not exist."""
    deliveries: tuple[Delivery, ...]
    claimed_at: Millis


class ReportResult(msgspec.Struct, frozen=True):
    is_current: bool
    """Whether the report was accepted; False if the lease had expired or the delivery was replayed."""
    disable_reason: DisableReason | None = None
    """Why the endpoint must be disabled, or None."""


class FailPendingResult(msgspec.Struct, frozen=True):
    count: int


# -- returned ----------------------------------------------------------------------------------------------------


class EndpointView(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    url: str
    description: str | None
    types: list[str]
    enabled: bool
    disabled_reason: Annotated[str, Meta(description="by_hand, gone, failing or backlog_full")] | None
    failing_since: Annotated[str, Meta(description="the first failure since the last successful delivery")] | None
    rotated_at: Annotated[str, Meta(description="for a day after a rotation the previous secret signs too")] | None
    created_by: str
    created_at: str
    updated_at: str
    secret: Annotated[str, Meta(description="signs the deliveries; returned only once")] | UnsetType = UNSET


class EndpointList(msgspec.Struct, frozen=True, rename="camel"):
    items: list[EndpointView]
    next_cursor: str | None = None


class DeliveryView(msgspec.Struct, frozen=True, rename="camel"):
    id: Annotated[str, Meta(description="the webhook-id header: the id of the event")]
    webhook_id: str
    event: str
    status: DeliveryState
    attempts: int
    next_at: (
        Annotated[
            str, Meta(description="when the next attempt is due, or when the lease of the running attempt expires")
        ]
        | None
    )
    answer_status: Annotated[int, Meta(description="HTTP status of the last response")] | None
    error: Annotated[str, Meta(description="why the last attempt failed")] | None
    body: msgspec.Raw
    created_at: str
    updated_at: str
    delivered_at: str | None
