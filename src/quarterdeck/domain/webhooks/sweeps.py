"""The retention sweep: deletes ended deliveries, and removed endpoints that have no deliveries left."""

from __future__ import annotations

from quarterdeck.core.clock import DAY
from quarterdeck.domain.webhooks import operations
from quarterdeck.domain.webhooks.model import WebhookSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

RETENTION = "webhook-retention"
BATCH = 500


def sweeps(cross_zone_engine: Engine, settings: WebhookSettings, retention_sweep_interval_ms: int) -> list[Sweep]:
    retention_ms = round(settings.webhook_retention_days * DAY)

    async def delete_past_retention(batch: int) -> int:
        return await cross_zone_engine.transact(lambda tx: operations.delete_past_retention(tx, retention_ms, batch))

    return [Sweep(RETENTION, retention_sweep_interval_ms, BATCH, delete_past_retention)]
