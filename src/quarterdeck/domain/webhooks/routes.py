"""Routes for webhooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from quarterdeck.core import idempotency
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.webhooks.model import (
    Create,
    CreateWebhookBody,
    DeliveriesQuery,
    Delivery,
    DeliveryFilter,
    DeliveryView,
    Endpoint,
    EndpointFilter,
    EndpointList,
    EndpointResult,
    EndpointView,
    Remove,
    Replay,
    RotateSecret,
    SendTest,
    Update,
    UpdateWebhookBody,
    WebhookCommand,
)
from quarterdeck.domain.webhooks.operations import reads
from quarterdeck.domain.webhooks.rules import endpoints
from quarterdeck.domain.webhooks.rules.views import delivery_view, endpoint_view
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Delivery]("webhook-deliveries")
READ_PERMISSION, CHANGE_PERMISSION = "webhooks.read", "webhooks.change"


@dataclass(frozen=True, slots=True)
class WebhookHandlers:
    engine: Engine
    secrets: SecretDeriver
    submit: Callable[[WebhookCommand], Awaitable[EndpointResult]]

    async def create(self, call: Call[CreateWebhookBody, None]) -> Reply[EndpointView]:
        body = call.body
        key = idempotency.request_key(call.idempotency_key, None)
        command = Create(
            **call.caller_fields,
            id=new_id(),
            url=body.url,
            types=endpoints.normalize_types(body.types),
            description=body.description,
            idempotency_key=key,
            request_digest="" if key is None else idempotency.request_digest(body),
        )
        result = await self.submit(command)
        return self._secret_reply(result, 200 if result.is_repeat else 201)

    async def list_webhooks(self, call: Call[None, None]) -> EndpointList:
        return EndpointList([endpoint_view(row) for row in await self._list_endpoints(call, None)])

    async def show(self, call: Call[None, None]) -> EndpointView:
        [row] = await self._list_endpoints(call, call.params["id"])
        return endpoint_view(row)

    async def update(self, call: Call[UpdateWebhookBody, None]) -> EndpointView:
        body = call.body
        command = Update(
            **call.caller_fields,
            id=call.params["id"],
            url=body.url,
            description=body.description,
            types=UNSET if body.types is UNSET else endpoints.normalize_types(body.types),
            enabled=body.enabled,
        )
        return endpoint_view((await self.submit(command)).endpoint)

    async def rotate_secret(self, call: Call[None, None]) -> Reply[EndpointView]:
        command = RotateSecret(**call.caller_fields, id=call.params["id"])
        return self._secret_reply(await self.submit(command), 200)

    async def remove(self, call: Call[None, None]) -> Reply[None]:
        await self.submit(Remove(**call.caller_fields, id=call.params["id"]))
        return Reply(None, 204)

    async def send_test(self, call: Call[None, None]) -> Reply[DeliveryView]:
        command = SendTest(**call.caller_fields, id=call.params["id"], delivery_id=new_id())
        return _delivery_reply(await self.submit(command))

    async def replay(self, call: Call[None, None]) -> Reply[DeliveryView]:
        command = Replay(**call.caller_fields, id=call.params["id"], delivery_id=call.params["delivery"])
        return _delivery_reply(await self.submit(command))

    async def list_deliveries(self, call: Call[None, DeliveriesQuery]) -> Reply[CamelPage[DeliveryView]]:
        query, before = call.query, LISTING.start_key(call.query)
        filters = DeliveryFilter(call.zone_id, call.params["id"], call.caller, query.limit + 1, before, query.status)
        rows = await self.engine.read(lambda tx: reads.list_deliveries(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, delivery_view, CamelPage)

    async def _list_endpoints(self, call: AnyCall, endpoint_id: str | None) -> list[Endpoint]:
        filters = EndpointFilter(call.zone_id, call.caller, endpoint_id)
        return await self.engine.read(lambda tx: reads.list_endpoints(tx, filters), zones=call.zones)

    def _secret_reply(self, result: EndpointResult, status: int) -> Reply[EndpointView]:
        row = result.endpoint
        secret = self.secrets(*row.ref, row.secret_number) if result.include_secret else UNSET
        # This response may contain a secret: no HTTP cache may store it.
        view = msgspec.structs.replace(endpoint_view(row), secret=secret)
        return Reply(view, status, [("cache-control", "no-store")])


def _delivery_reply(result: EndpointResult) -> Reply[DeliveryView]:
    assert result.delivery is not None  # both commands return a delivery
    return Reply(delivery_view(result.delivery), 202)


CREATE_DESCRIPTION = (
    "Only this response contains the secret that signs deliveries (Standard Webhooks). If the response is lost, repeat "
    "the request with its Idempotency-Key, or rotate the secret. Only events after the creation are delivered."
)
UPDATE_DESCRIPTION = (
    "Given fields replace the stored values; omitted fields keep theirs. `enabled: true` enables a disabled webhook "
    "again, for later events only. Deliveries that were pending when it was disabled have failed; they can be "
    "replayed."
)
ROTATE_DESCRIPTION = "Only this response contains the new secret. For a day, the previous secret signs deliveries too."
REPLAY_DESCRIPTION = (
    "Sends a delivery in any state again at once, with the same `webhook-id`. The count of attempts starts again at 0."
)


def routes(handlers: WebhookHandlers) -> list[Route]:
    base_path, webhook_path = "/api/v1/webhooks", "/api/v1/webhooks/{id}"
    tags, not_found_errors = ("webhooks",), ("webhook_not_found",)
    body_errors = ("invalid_webhook_url", "invalid_webhook_type")
    change_errors = (*not_found_errors, "zone_ended")
    return [
        Route(
            "POST", base_path, handlers.create, "Create a webhook", LIFECYCLE, status=201, tags=tags,
            description=CREATE_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=(*body_errors, "zone_ended", "webhook_limit_exceeded", "idempotency_key_conflict"),
        ),
        Route(
            "GET", base_path, handlers.list_webhooks, "List webhooks, newest first", LIFECYCLE, tags=tags,
            permission=READ_PERMISSION,
        ),
        Route(
            "GET", webhook_path, handlers.show, "Show a webhook", LIFECYCLE, tags=tags, errors=not_found_errors,
            permission=READ_PERMISSION,
        ),
        Route(
            "PATCH", webhook_path, handlers.update, "Change a webhook", LIFECYCLE, tags=tags,
            errors=(*change_errors, *body_errors), description=UPDATE_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "DELETE", webhook_path, handlers.remove, "Remove a webhook", LIFECYCLE, status=204, tags=tags,
            errors=change_errors, permission=CHANGE_PERMISSION, description="Pending deliveries are not sent.",
        ),
        Route(
            "POST", f"{webhook_path}/rotate-secret", handlers.rotate_secret, "Rotate the secret of a webhook",
            LIFECYCLE, tags=tags, errors=change_errors, description=ROTATE_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "POST", f"{webhook_path}/test", handlers.send_test, "Send a test delivery", LIFECYCLE, status=202,
            tags=tags, errors=(*change_errors, "webhook_disabled"), permission=CHANGE_PERMISSION,
        ),
        Route(
            "GET", f"{webhook_path}/deliveries", handlers.list_deliveries, "List deliveries of a webhook, newest first",
            LIFECYCLE, tags=tags, errors=(*not_found_errors, "invalid_cursor"), permission=READ_PERMISSION,
        ),
        Route(
            "POST", webhook_path + "/deliveries/{delivery}/replay", handlers.replay, "Replay a delivery", LIFECYCLE,
            status=202, tags=tags, description=REPLAY_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=(*change_errors, "delivery_not_found", "webhook_disabled"),
        ),
    ]  # fmt: skip
