"""Builds the webhooks component: lanes, the sink that creates deliveries, and the delivery worker."""

from __future__ import annotations

from functools import partial

from quarterdeck.core import metric_table
from quarterdeck.core.clock import DAY
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.webhooks.background import delivery_worker, event_fanout
from quarterdeck.domain.webhooks.background.delivery_worker import DeliveryDeps, DeliveryWorker
from quarterdeck.domain.webhooks.background.event_fanout import FanoutWakeups, WebhookFanout
from quarterdeck.domain.webhooks.model import EndpointResult, WebhookCommand, WebhookSettings
from quarterdeck.domain.webhooks.operations import deliveries
from quarterdeck.domain.webhooks.operations.deliveries import AttemptReporter
from quarterdeck.domain.webhooks.operations.endpoints import EndpointUpdater
from quarterdeck.domain.webhooks.routes import WebhookHandlers, routes
from quarterdeck.domain.webhooks.rules.endpoints import EndpointPolicy
from quarterdeck.domain.webhooks.rules.states import FailurePolicy, RetrySchedule
from quarterdeck.domain.webhooks.sweeps import sweeps
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, PUBLIC_ONLY, OutboundClient, ResponseLimits
from quarterdeck.engine.runtime import Component, Runtime
from quarterdeck.engine.settings import ServerSettings, SinkSettings

RESPONSE_LIMITS = ResponseLimits(head_bytes=16 * 1024, body_bytes=16 * 1024)
"""Small, because only the status of a response is used."""


class Webhooks:
    def __init__(
        self,
        runtime: Runtime,
        derive_secret: SecretDeriver,
        *,
        with_delivery: bool,
        schedule: RetrySchedule | None = None,
    ) -> None:
        """If `with_delivery` is false, as in the sweeper daemon, this process sends nothing."""
        settings, lanes = runtime.settings.section(WebhookSettings), runtime.lanes
        self._private_allowed = runtime.settings.section(ServiceSettings).push_private_addresses
        failure_window_ms = round(settings.webhook_disable_after_days * DAY)
        updater = EndpointUpdater(EndpointPolicy(failure_window_ms, self._private_allowed))
        self.lane: Lane[WebhookCommand, EndpointResult] = lanes.add_write_lane("webhook", updater.run)
        self.fanout_loop, self.fanout = self._build_fanout(runtime)
        workers = []
        if with_delivery:
            reporter = AttemptReporter(FailurePolicy(schedule or RetrySchedule(), failure_window_ms))
            self.claim_lane = lanes.add_write_lane("webhook-take", deliveries.claim_deliveries)
            self.report_lane = lanes.add_write_lane("webhook-report", reporter.report)
            self.fail_pending_lane = lanes.add_write_lane("webhook-settle", deliveries.fail_pending_deliveries)
            workers.append(self._build_delivery_worker(runtime, derive_secret))
        self.component = Component(
            routes(WebhookHandlers(runtime.engine, derive_secret, self.lane.submit)),
            sweeps(runtime.cross_zone_engine, settings, runtime.retention_interval_ms),
            leases=[self.fanout_loop.lease],
            startables=[self.fanout_loop, *workers],
            on_drain=[worker.drain for worker in workers],
        )

    def _build_fanout(self, runtime: Runtime) -> tuple[LeaderLoop, WebhookFanout]:
        wakeups = FanoutWakeups(runtime.wakeups)
        runtime.commit_listeners.append(wakeups.on_commit)
        backlog_max = runtime.settings.section(WebhookSettings).webhook_backlog_max
        fanout = WebhookFanout(
            runtime.cross_zone_engine, wakeups, self.lane.submit, runtime.wakeups.notify, backlog_max
        )
        metrics = runtime.metrics
        metrics.add(metric_table.SINK_LAG_EVENTS, fanout.name, lambda: max(0, fanout.head - fanout.position))
        metrics.add(metric_table.SINK_DELIVERED, fanout.name, lambda: fanout.delivery_count)
        metrics.add(metric_table.SINK_MISSED, fanout.name, lambda: fanout.missed_count)
        timing = LoopTiming(runtime.settings.section(SinkSettings).outbox_interval_ms, event_fanout.GAP_SECONDS)
        return LeaderLoop(fanout.name, runtime.cross_zone_engine, wakeups.wakeups, timing, fanout), fanout

    def _build_delivery_worker(self, runtime: Runtime, derive_secret: SecretDeriver) -> DeliveryWorker:
        deps = DeliveryDeps(
            runtime.cross_zone_engine,
            runtime.wakeups,
            self.claim_lane.submit,
            self.report_lane.submit,
            self.fail_pending_lane.submit,
            self.lane.submit,
            OutboundClient(ALLOW_PRIVATE if self._private_allowed else PUBLIC_ONLY, RESPONSE_LIMITS),
            derive_secret,
        )
        section = runtime.settings.section
        worker = DeliveryWorker(deps, section(WebhookSettings), section(ServerSettings).shutdown_grace_ms / 1000)
        runtime.metrics.add(metric_table.WEBHOOKS_UNDER_WAY, "webhooks", worker.__len__)
        for code in delivery_worker.CODES:
            runtime.metrics.add(metric_table.WEBHOOKS, code, partial(worker.counts.__getitem__, code))
        return worker
