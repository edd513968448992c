"""What is forgotten: deliveries that are over, and endpoints that were removed once nothing of theirs is left."""

from __future__ import annotations

from quarterdeck.core.clock import DAY
from quarterdeck.domain.webhooks import operations
from quarterdeck.domain.webhooks.model import WebhookSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

RETENTION = "webhook-retention"
BATCH = 500


def sweeps(everywhere: Engine, settings: WebhookSettings, retention_every_ms: int) -> list[Sweep]:
    window = round(settings.webhook_retention_days * DAY)

    async def forget(batch: int) -> int:
        return await everywhere.transact(lambda tx: operations.forget(tx, window, batch))

    return [Sweep(RETENTION, retention_every_ms, BATCH, forget)]
