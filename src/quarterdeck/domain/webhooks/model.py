"""What is asked for, what is stored, and what is shown of webhooks: three different types."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command

Ref = tuple[str, str]
"""(zone, endpoint)"""
ENDPOINTS_MAX = 50
"""Endpoints in one zone."""
URL_MAX = 2_048
TYPES_MAX = 64


class DeliveryState(StrEnum):
    """Of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class DeliveryVerb(StrEnum):
    DELIVER = "deliver"
    RETRY = "retry"
    GIVE_UP = "give_up"
    REPLAY = "replay"


class DisableReason(StrEnum):
    """Why an endpoint hears of nothing."""

    BY_HAND = "by_hand"
    GONE = "gone"
    """It answered 410."""
    FAILING = "failing"
    """Nothing has reached it for days."""
    BACKLOG_FULL = "backlog_full"
    """More waited for it than may."""


class WebhookSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    webhook_timeout_ms: Annotated[int, Meta(ge=10, le=120_000, description="for an endpoint to answer a delivery")] = (
        15_000
    )
    webhook_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="how often deliveries are looked for if no commit wakes")
    ] = 1_000
    webhook_concurrency: Annotated[int, Meta(ge=1, le=10_000, description="deliveries at once, in one server")] = 64
    webhook_zone_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="deliveries at once, in one server, for one zone")
    ] = 16
    webhook_endpoint_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="deliveries at once, in one server, to one endpoint")
    ] = 4
    webhook_disable_after_days: Annotated[
        float, Meta(gt=0, le=365, description="for how long an endpoint may fail before it is disabled")
    ] = 5.0
    webhook_backlog_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="deliveries that may wait for one endpoint, about")
    ] = 10_000
    webhook_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long deliveries that are over are kept")
    ] = 30.0


# -- asked for ---------------------------------------------------------------------------------------------------

Url = Annotated[str, Meta(max_length=URL_MAX, description="https://…, of a public host")]
Description = Annotated[str, Meta(max_length=500, description="for people")]
EventType = Annotated[str, Meta(min_length=1, max_length=64)]
EventTypes = Annotated[
    list[EventType],
    Meta(
        min_length=1,
        max_length=TYPES_MAX,
        description="what it hears of: task.status_changed, alert, a type of the log such as task.created or "
        "agent.stale, or * for everything of tasks and agents; default: task.status_changed and alert",
    ),
]


class CreateWebhookBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    url: Url
    description: Description | None = None
    types: EventTypes | None = None


class UpdateWebhookBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What is said replaces what was there."""

    url: Url | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    types: EventTypes | UnsetType = UNSET
    enabled: Annotated[bool, Meta(description="whether it hears of anything")] | UnsetType = UNSET


class EndpointCommand(Command, frozen=True, kw_only=True):
    """What everything that is asked of the lane has."""

    id: str
    """Of the endpoint."""

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
    """By the server, for what it has met."""

    reason: DisableReason
    url: str | None = None
    """Where it was met. Of another address nothing is known."""


WebhookCommand = Create | Update | RotateSecret | Remove | SendTest | Replay | Disable


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Up to so many deliveries of an endpoint that are due, to be sent by whoever asks."""

    zone_id: str
    endpoint_id: str
    limit: int
    lease_ms: int


class ReportAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an attempt."""

    zone_id: str
    endpoint_id: str
    id: str
    lease_expires_at: Millis
    """The end of the attempt's lease. One whose lease has passed to another counts no more."""
    attempt: int
    answer_status: int | None = None
    error: str | None = None
    """None: it was delivered."""
    retry_after_ms: Millis = 0
    """What the endpoint has asked for before the next attempt."""
    jitter: float = 0.0


class FailPending(msgspec.Struct, frozen=True):
    """Ends what waits for an endpoint that hears of nothing any more."""

    zone_id: str
    endpoint_id: str
    limit: int


class EndpointFilter(msgspec.Struct, frozen=True):
    zone_id: str
    caller: Caller
    id: str | None = None
    """None: all of the zone."""


class DeliveryFilter(msgspec.Struct, frozen=True):
    """Which deliveries of an endpoint are wanted, newest first."""

    zone_id: str
    endpoint_id: str
    caller: Caller
    limit: int
    before: str | None = None
    status: DeliveryState | None = None


class DeliveriesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    status: DeliveryState | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """A row of `webhook_endpoints`, in the order of the `columns` line of `queries.sql`."""

    zone_id: str
    id: str
    url: str
    description: str | None
    types: str
    """JSON: a list of names."""
    secret_number: int
    rotated_at: Millis | None
    enabled: int
    disabled_reason: str | None
    position: int
    """It hears of what stands behind this in the log."""
    failing_since: Millis | None
    """The first failure since anything was delivered."""
    created_by: str
    created_at: Millis
    updated_at: Millis
    removed_at: Millis | None

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A row of `webhook_deliveries`, likewise."""

    endpoint_id: str
    zone_id: str
    id: str
    """Of the event it tells of: what the receiver knows it by."""
    pos: int
    type: str
    """What its body calls the event."""
    body: str
    trace: str | None
    status: DeliveryState
    attempts: int
    """Since it was made, or sent again by hand."""
    queue: str | None
    """The endpoint, as long as it is pending."""
    next_at: Millis | None
    """When it is due; while it is being sent, when that is taken for lost."""
    answer_status: int | None
    error: str | None
    created_at: Millis
    updated_at: Millis
    delivered_at: Millis | None


class EndpointResult(msgspec.Struct, frozen=True):
    """The outcome of a verb: the endpoint as it is now."""

    endpoint: Endpoint
    include_secret: bool = False
    delivery: Delivery | None = None
    is_repeat: bool = False
    """It was made before, by the same request."""


class ClaimedDeliveries(msgspec.Struct, frozen=True):
    endpoint: Endpoint | None
    """None: there is none."""
    deliveries: tuple[Delivery, ...]
    claimed_at: Millis


class ReportResult(msgspec.Struct, frozen=True):
    is_current: bool
    """Whether the attempt was still the one that counts."""
    disable_reason: DisableReason | None = None
    """Why the endpoint is to hear of nothing any more."""


class FailPendingResult(msgspec.Struct, frozen=True):
    count: int


# -- shown -------------------------------------------------------------------------------------------------------


class EndpointView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    url: str
    description: str | None
    types: list[str]
    enabled: bool
    disabled_reason: Annotated[str, Meta(description="by_hand, gone, failing or backlog_full")] | None
    failing_since: Annotated[str, Meta(description="the first failure since anything was delivered")] | None
    rotated_at: Annotated[str, Meta(description="for a day after it, the secret before still signs")] | None
    created_by: str
    created_at: str
    updated_at: str
    secret: Annotated[str, Meta(description="shown once: deliveries are signed with it")] | UnsetType = UNSET


class EndpointList(msgspec.Struct, frozen=True, rename="camel"):
    items: list[EndpointView]
    next_cursor: str | None = None


class DeliveryView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: Annotated[str, Meta(description="its webhook-id: that of the event it tells of")]
    webhook_id: str
    event: str
    status: DeliveryState
    attempts: int
    next_at: Annotated[str, Meta(description="when it is tried again, or what is under way is taken for lost")] | None
    answer_status: Annotated[int, Meta(description="of the last answer")] | None
    error: Annotated[str, Meta(description="why the last attempt was none")] | None
    body: msgspec.Raw
    created_at: str
    updated_at: str
    delivered_at: str | None


class DeliveryList(msgspec.Struct, frozen=True, rename="camel"):
    items: list[DeliveryView]
    next_cursor: str | None
