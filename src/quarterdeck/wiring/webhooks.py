"""The room of webhooks: its lanes, the sink that fills it, and whoever delivers."""

from __future__ import annotations

from functools import partial

from quarterdeck.core.clock import DAY
from quarterdeck.core.webhook_signing import Secrets, secrets_from
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.webhooks import delivery_worker, event_fanout, operations as webhooks, routes as webhook_routes
from quarterdeck.domain.webhooks.delivery_worker import Deliverer, Means
from quarterdeck.domain.webhooks.event_fanout import Ears, Teller
from quarterdeck.domain.webhooks.model import Changed, Command, WebhookSettings
from quarterdeck.domain.webhooks.routes import WebhookDesk
from quarterdeck.domain.webhooks.rules import Terms
from quarterdeck.domain.webhooks.rules.states import Patience, Schedule
from quarterdeck.domain.webhooks.sweeps import sweeps
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.leader_loop import Duty, Pace
from quarterdeck.engine.outbound_http import LAB, PUBLIC, Bounds, Outward
from quarterdeck.engine.settings import LogSettings, SinkSettings
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.runtime import Keel, Room

ANSWER = Bounds(head=16 * 1024, body=16 * 1024)
"""Of an answer nothing but its status is wanted."""


def webhook_secrets(issuer: LocalIssuer) -> Secrets:
    """Whoever shares the signing key finds the same."""
    return secrets_from(issuer.derive("webhook secrets"))


async def the_webhooks(keel: Keel, secrets: Secrets, *, delivers: bool) -> tuple[Room, Duty]:
    """The room, and the duty of its sink, which is shown among the others."""
    told = keel.settings.section(WebhookSettings)
    private_allowed = keel.settings.section(ServiceSettings).push_private_addresses
    changer = webhooks.Changer(Terms(_failing_ms(told), private_allowed))
    lane: Lane[Command, Changed] = keel.lanes.writing("webhook", changer.run)
    desk = WebhookDesk(keel.engine, secrets, lane.submit)
    duty = await _sink(keel, lane)
    deliverers = [_deliverer(keel, lane, secrets)] if delivers else []
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    room = Room(
        webhook_routes.routes(desk),
        sweeps(keel.everywhere, told, cleaning_ms),
        leases=[duty.lease],
        runs=[duty, *deliverers],
        on_drain=[each.drain for each in deliverers],
    )
    return room, duty


async def _sink(keel: Keel, lane: Lane[Command, Changed]) -> Duty:
    ears = Ears(keel.wakes)
    keel.heard.append(ears.committed)
    backlog_max = keel.settings.section(WebhookSettings).webhook_backlog_max
    teller = Teller(keel.everywhere, ears, lane.submit, keel.wakes.committed, backlog_max)
    await teller.begin()
    own, metrics = "quarterdeck_sink", keel.metrics
    metrics.gauge(
        f"{own}_lag_events", "Events not told yet", teller.name, lambda: max(0, teller.head - teller.position)
    )
    metrics.counter(f"{own}_delivered", "Entries delivered", teller.name, lambda: teller.told)
    metrics.counter(f"{own}_missed", "Events that went before they were told", teller.name, lambda: teller.missed)
    pace = Pace(keel.settings.section(SinkSettings).outbox_interval_ms, event_fanout.GAP_SECONDS)
    return Duty(teller.name, keel.everywhere, ears.wakes, pace, teller)


def _deliverer(keel: Keel, lane: Lane[Command, Changed], secrets: Secrets) -> Deliverer:
    settings, lanes = keel.settings, keel.lanes
    told = settings.section(WebhookSettings)
    guard = LAB if settings.section(ServiceSettings).push_private_addresses else PUBLIC
    reporter = webhooks.Reporter(Patience(Schedule(), _failing_ms(told)))
    means = Means(
        keel.everywhere,
        keel.wakes,
        lanes.writing("webhook-take", webhooks.take).submit,
        lanes.writing("webhook-report", reporter.report).submit,
        lanes.writing("webhook-settle", webhooks.settle).submit,
        lane.submit,
        Outward(guard, ANSWER),
        secrets,
    )
    deliverer = Deliverer(means, told, settings.server.shutdown_grace_ms / 1000)
    keel.metrics.gauge("quarterdeck_webhooks_under_way", "Deliveries under way", "webhooks", deliverer.__len__)
    for code in delivery_worker.CODES:
        keel.metrics.counter(
            "quarterdeck_webhooks",
            "Attempts to deliver, by what came of them",
            code,
            partial(deliverer.counts.__getitem__, code),
        )
    return deliverer


def _failing_ms(told: WebhookSettings) -> int:
    return round(told.webhook_disable_after_days * DAY)
