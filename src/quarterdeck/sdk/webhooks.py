"""Webhooks: HTTP endpoints that receive the events of a zone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from quarterdeck.sdk.options import WebhookChanges, WebhookOptions
from quarterdeck.sdk.resource import WorkResource, encode_camel_options, ensure_key
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.work_types import Webhook, WebhookDelivery, WorkPage


class Webhooks(WorkResource):
    async def create(self, url: str, *, key: str | None = None, **options: Unpack[WebhookOptions]) -> Webhook:
        """Register an endpoint that gets all later events. Repeated calls with the same `key` register it only once.

        Only this response contains the secret that signs deliveries.
        """
        body = {"url": url, **encode_camel_options(WebhookOptions, options)}
        return await self._call(ApiCall("POST", self._path("webhooks"), body=body, key=ensure_key(key)), Webhook)

    async def get(self, webhook_id: str) -> Webhook:
        return await self._get(self._path("webhooks", webhook_id), Webhook)

    def list(self) -> AsyncIterator[Webhook]:
        """Iterate over webhooks, newest first."""
        return self._iter_items(self._path("webhooks"), {"limit": None}, WorkPage[Webhook])

    async def patch(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Change the given fields."""
        body = encode_camel_options(WebhookChanges, changes, keep_none=True)
        return await self._change("PATCH", self._path("webhooks", webhook_id), Webhook, body)

    async def rotate_secret(self, webhook_id: str) -> Webhook:
        """Replace the secret. Only this response contains the new one. Not retried after a lost response."""
        return await self._call(ApiCall("POST", self._path("webhooks", webhook_id, "rotate-secret")), Webhook)

    async def remove(self, webhook_id: str) -> None:
        """Remove a webhook. Not retried after a lost response, because a repeated call would raise `NotFound`."""
        await self._send(ApiCall("DELETE", self._path("webhooks", webhook_id)))

    async def test(self, webhook_id: str) -> WebhookDelivery:
        """Send a `webhook.test` event. Not retried after a lost response."""
        return await self._call(ApiCall("POST", self._path("webhooks", webhook_id, "test")), WebhookDelivery)

    def deliveries(
        self, webhook_id: str, *, status: Literal["pending", "delivered", "failed"] | None = None
    ) -> AsyncIterator[WebhookDelivery]:
        """Iterate over the deliveries of a webhook, newest first."""
        path = self._path("webhooks", webhook_id, "deliveries")
        return self._iter_items(path, {"status": status}, WorkPage[WebhookDelivery])

    async def replay(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a delivery again, with the same id."""
        path = self._path("webhooks", webhook_id, "deliveries", delivery_id, "replay")
        return await self._change("POST", path, WebhookDelivery)
