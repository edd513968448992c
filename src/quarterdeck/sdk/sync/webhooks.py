"""Written by `make sdk` from `sdk/webhooks.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Unpack

from quarterdeck.sdk import webhooks
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import WebhookChanges, WebhookOptions
from quarterdeck.sdk.work_types import Webhook, WebhookDelivery


class Webhooks:
    def __init__(self, inner: webhooks.Webhooks, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def create(self, url: str, *, key: str | None = None, **options: Unpack[WebhookOptions]) -> Webhook:
        """Has an endpoint told from now on, once for each `key`. The answer holds the secret that deliveries are signed
        with, this once."""
        return self._loop_thread.run(self._inner.create(url, key=key, **options))

    def get(self, webhook_id: str) -> Webhook:
        return self._loop_thread.run(self._inner.get(webhook_id))

    def list(self) -> Iterator[Webhook]:
        """Newest first."""
        return self._loop_thread.iterate(self._inner.list())

    def patch(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        return self._loop_thread.run(self._inner.patch(webhook_id, **changes))

    def rotate_secret(self, webhook_id: str) -> Webhook:
        """The answer holds the new secret, this once. Not repeated after a lost answer."""
        return self._loop_thread.run(self._inner.rotate_secret(webhook_id))

    def remove(self, webhook_id: str) -> None:
        """Not repeated after a lost answer: it would not be found."""
        self._loop_thread.run(self._inner.remove(webhook_id))

    def test(self, webhook_id: str) -> WebhookDelivery:
        """Sends a `webhook.test`. Not repeated after a lost answer."""
        return self._loop_thread.run(self._inner.test(webhook_id))

    def deliveries(
        self, webhook_id: str, *, status: Literal["pending", "delivered", "failed"] | None = None
    ) -> Iterator[WebhookDelivery]:
        """What was sent, newest first."""
        return self._loop_thread.iterate(self._inner.deliveries(webhook_id, status=status))

    def replay(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Sends a delivery again, with the same id."""
        return self._loop_thread.run(self._inner.replay(webhook_id, delivery_id))
