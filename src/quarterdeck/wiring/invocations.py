"""Builds the component of invocations and its push delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from quarterdeck.core.webhook_signing import Secrets
from quarterdeck.domain.invocations import operations as invocations, routes as invocation_routes
from quarterdeck.domain.invocations.model import Command, InvocationSettings, Outcome
from quarterdeck.domain.invocations.push_delivery import Means, Pusher
from quarterdeck.domain.invocations.routes import InvocationDesk
from quarterdeck.domain.invocations.rules.push_protocol import CODES
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.engine.outbound_http import LAB, PUBLIC, Outward
from quarterdeck.engine.settings import LogSettings
from quarterdeck.runtime import Keel, Room


def invocations_room(keel: Keel, secrets: Secrets | None) -> Room:
    """With the secrets to sign by, what is to be pushed is pushed."""
    told = keel.settings.section(InvocationSettings)
    waiters, poll_seconds = invocations.Waiters(), told.claim_poll_ms / 1000
    look = invocations.Look(keel.engine, waiters, poll_seconds)
    exchange = invocations.Exchange(told.lease_ms, waiters)
    lane: Lane[Command, Outcome] = keel.lanes.writing("invocation", exchange.run)
    settle = keel.lanes.writing("invocation-settle", invocations.settle)
    show = keel.lanes.reading("invocation-show", invocations.show)
    desk = InvocationDesk(keel.engine, lane.submit, show.submit, waiters, told)
    waiters.unwanted = desk.release
    pushers = [] if secrets is None else [the_pusher(keel, lane.submit, secrets)]
    keel.metrics.gauge("quarterdeck_claims_waiting", "Claims that wait for work", "invocations", waiters.__len__)
    return Room(
        invocation_routes.routes(desk),
        invocation_sweeps(
            keel.everywhere,
            lane.submit,
            settle.submit,
            told,
            keel.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
        runs=[Lookout(keel.wakes, waiters, look, poll_seconds, "invocation-lookout"), *pushers],
        on_drain=[waiters.close, *(pusher.drain for pusher in pushers)],
    )


def the_pusher(keel: Keel, submit: Callable[[Command], Awaitable[Outcome]], secrets: Secrets) -> Pusher:
    settings = keel.settings
    guard = LAB if settings.section(ServiceSettings).push_private_addresses else PUBLIC
    means = Means(keel.engine, keel.everywhere, keel.wakes, submit, Outward(guard), secrets)
    pusher = Pusher(means, settings.section(InvocationSettings), settings.server.shutdown_grace_ms / 1000)
    keel.metrics.gauge("quarterdeck_pushes_under_way", "Pushes under way", "invocations", pusher.__len__)
    for code in CODES:
        keel.metrics.counter(
            "quarterdeck_pushes", "Pushes, by what came of them", code, partial(pusher.counts.__getitem__, code)
        )
    return pusher
