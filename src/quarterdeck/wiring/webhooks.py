"""Builds the webhooks component: lanes, the sink that creates deliveries, and the delivery worker."""

from __future__ import annotations

from functools import partial

from quarterdeck.core.clock import DAY
from quarterdeck.core.webhook_signing import SecretDeriver, secret_deriver
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.webhooks import delivery_worker, event_fanout, operations as webhooks, routes as webhook_routes
from quarterdeck.domain.webhooks.delivery_worker import DeliveryDeps, DeliveryWorker
from quarterdeck.domain.webhooks.event_fanout import FanoutWakeups, WebhookFanout
from quarterdeck.domain.webhooks.model import EndpointResult, WebhookCommand, WebhookSettings
from quarterdeck.domain.webhooks.routes import WebhookHandlers
from quarterdeck.domain.webhooks.rules import EndpointPolicy
from quarterdeck.domain.webhooks.rules.states import FailurePolicy, RetrySchedule
from quarterdeck.domain.webhooks.sweeps import sweeps
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, PUBLIC_ONLY, OutboundClient, ResponseLimits
from quarterdeck.engine.settings import LogSettings, SinkSettings
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.runtime import Component, Runtime

RESPONSE_LIMITS = ResponseLimits(head_bytes=16 * 1024, body_bytes=16 * 1024)
"""Small, because only the status of a response is used."""


def webhook_secret_deriver(issuer: LocalIssuer) -> SecretDeriver:
    """Servers with the same signing key derive the same secrets."""
    return secret_deriver(issuer.derive_secret("webhook secrets"))


async def build_webhooks(
    runtime: Runtime, derive_secret: SecretDeriver, *, with_delivery: bool
) -> tuple[Component, LeaderLoop]:
    """Return the component and the leader loop of its sink, which the sink routes list."""
    settings = runtime.settings.section(WebhookSettings)
    private_allowed = runtime.settings.section(ServiceSettings).push_private_addresses
    updater = webhooks.EndpointUpdater(EndpointPolicy(_disable_after_ms(settings), private_allowed))
    lane: Lane[WebhookCommand, EndpointResult] = runtime.lanes.add_write_lane("webhook", updater.run)
    handlers = WebhookHandlers(runtime.engine, derive_secret, lane.submit)
    leader_loop = await _build_fanout(runtime, lane)
    workers = [_build_delivery_worker(runtime, lane, derive_secret)] if with_delivery else []
    cleanup_interval_ms = runtime.settings.section(LogSettings).retention_cleanup_interval_ms
    component = Component(
        webhook_routes.routes(handlers),
        sweeps(runtime.cross_zone_engine, settings, cleanup_interval_ms),
        leases=[leader_loop.lease],
        startables=[leader_loop, *workers],
        on_drain=[worker.drain for worker in workers],
    )
    return component, leader_loop


async def _build_fanout(runtime: Runtime, lane: Lane[WebhookCommand, EndpointResult]) -> LeaderLoop:
    fanout_wakeups = FanoutWakeups(runtime.wakeups)
    runtime.commit_listeners.append(fanout_wakeups.on_commit)
    backlog_max = runtime.settings.section(WebhookSettings).webhook_backlog_max
    fanout = WebhookFanout(runtime.cross_zone_engine, fanout_wakeups, lane.submit, runtime.wakeups.notify, backlog_max)
    await fanout.create_sink()
    prefix, metrics = "quarterdeck_sink", runtime.metrics
    metrics.add_gauge(
        f"{prefix}_lag_events", "Events not delivered yet", fanout.name, lambda: max(0, fanout.head - fanout.position)
    )
    metrics.add_counter(f"{prefix}_delivered", "Entries delivered", fanout.name, lambda: fanout.delivery_count)
    metrics.add_counter(
        f"{prefix}_missed", "Events deleted before they were delivered", fanout.name, lambda: fanout.missed_count
    )
    timing = LoopTiming(runtime.settings.section(SinkSettings).outbox_interval_ms, event_fanout.GAP_SECONDS)
    return LeaderLoop(fanout.name, runtime.cross_zone_engine, fanout_wakeups.wakeups, timing, fanout)


def _build_delivery_worker(
    runtime: Runtime, lane: Lane[WebhookCommand, EndpointResult], derive_secret: SecretDeriver
) -> DeliveryWorker:
    settings, lanes = runtime.settings, runtime.lanes
    webhook_settings = settings.section(WebhookSettings)
    guard = ALLOW_PRIVATE if settings.section(ServiceSettings).push_private_addresses else PUBLIC_ONLY
    reporter = webhooks.AttemptReporter(FailurePolicy(RetrySchedule(), _disable_after_ms(webhook_settings)))
    deps = DeliveryDeps(
        runtime.cross_zone_engine,
        runtime.wakeups,
        lanes.add_write_lane("webhook-take", webhooks.claim_deliveries).submit,
        lanes.add_write_lane("webhook-report", reporter.report).submit,
        lanes.add_write_lane("webhook-settle", webhooks.fail_pending_deliveries).submit,
        lane.submit,
        OutboundClient(guard, RESPONSE_LIMITS),
        derive_secret,
    )
    worker = DeliveryWorker(deps, webhook_settings, settings.server.shutdown_grace_ms / 1000)
    runtime.metrics.add_gauge("quarterdeck_webhooks_under_way", "Deliveries in progress", "webhooks", worker.__len__)
    for code in delivery_worker.CODES:
        runtime.metrics.add_counter(
            "quarterdeck_webhooks", "Delivery attempts, by outcome", code, partial(worker.counts.__getitem__, code)
        )
    return worker


def _disable_after_ms(settings: WebhookSettings) -> int:
    return round(settings.webhook_disable_after_days * DAY)
