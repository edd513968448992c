"""The retention sweep: deletes ended deliveries, and removed endpoints that have no deliveries left."""

from __future__ import annotations

from quarterdeck.core.clock import DAY
from quarterdeck.domain.webhooks.model import WebhookSettings
from quarterdeck.domain.webhooks.operations import endpoints
from quarterdeck.engine.sweep_passes import delete_past_retention
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

RETENTION = "webhook-retention"
BATCH = 500


def sweeps(cross_zone_engine: Engine, settings: WebhookSettings, retention_sweep_interval_ms: int) -> list[Sweep]:
    retention_ms = round(settings.webhook_retention_days * DAY)
    # The larger number counts: a pass is full, and the next follows at once, if either statement reached its limit.
    run_once = delete_past_retention(cross_zone_engine, retention_ms, endpoints.retention_statements, count=max)
    return [Sweep(RETENTION, retention_sweep_interval_ms, BATCH, run_once)]
