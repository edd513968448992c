"""The responses for endpoints and deliveries."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.domain.webhooks.model import Delivery, DeliveryView, Endpoint, EndpointView
from quarterdeck.domain.webhooks.rules.endpoints import decode_types


def endpoint_view(row: Endpoint, secret: str | UnsetType = UNSET) -> EndpointView:
    return EndpointView(
        id=row.id,
        zone_id=row.zone_id,
        url=row.url,
        description=row.description,
        types=decode_types(row),
        enabled=bool(row.enabled),
        disabled_reason=row.disabled_reason,
        failing_since=iso_or_none(row.failing_since),
        rotated_at=iso_or_none(row.rotated_at),
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        secret=secret,
    )


def delivery_view(row: Delivery) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        webhook_id=row.endpoint_id,
        event=row.type,
        status=row.status,
        attempts=row.attempts,
        next_at=iso_or_none(row.next_at),
        answer_status=row.answer_status,
        error=row.error,
        body=msgspec.Raw(row.body.encode()),
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        delivered_at=iso_or_none(row.delivered_at),
    )
