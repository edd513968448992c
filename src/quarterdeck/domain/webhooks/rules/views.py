"""The responses for endpoints and deliveries."""

from __future__ import annotations

from quarterdeck.core.views import view_of
from quarterdeck.domain.webhooks.model import Delivery, DeliveryView, Endpoint, EndpointView
from quarterdeck.domain.webhooks.rules.endpoints import decode_types

endpoint_view = view_of(Endpoint, EndpointView, types=decode_types)
delivery_view = view_of(Delivery, DeliveryView, webhook_id="endpoint_id", event="type")
