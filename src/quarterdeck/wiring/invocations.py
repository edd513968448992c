"""Builds the invocations component and its push delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.invocations import operations as invocations, routes as invocation_routes
from quarterdeck.domain.invocations.model import InvocationCommand, InvocationResult, InvocationSettings
from quarterdeck.domain.invocations.push_delivery import PushDeps, PushWorker
from quarterdeck.domain.invocations.routes import InvocationHandlers
from quarterdeck.domain.invocations.rules.push_protocol import CODES
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, PUBLIC_ONLY, OutboundClient
from quarterdeck.engine.settings import LogSettings
from quarterdeck.runtime import Component, Runtime


def build_invocations(runtime: Runtime, derive_secret: SecretDeriver | None) -> Component:
    """`derive_secret` derives the keys that sign pushes. If it is None, this process pushes nothing."""
    settings = runtime.settings.section(InvocationSettings)
    polls, poll_seconds = invocations.ClaimPolls(), settings.claim_poll_ms / 1000
    claim_wakeups = invocations.ReadyPollWaker(runtime.engine, polls, poll_seconds)
    batch_runner = invocations.BatchRunner(settings.lease_ms, polls)
    lane: Lane[InvocationCommand, InvocationResult] = runtime.lanes.add_write_lane("invocation", batch_runner.run)
    process_backlogs = runtime.lanes.add_write_lane("invocation-settle", invocations.process_backlogs)
    show = runtime.lanes.add_read_lane("invocation-show", invocations.show)
    handlers = InvocationHandlers(runtime.engine, lane.submit, show.submit, polls, settings)
    polls.on_undelivered = handlers.release_undelivered
    push_workers = [] if derive_secret is None else [build_push_worker(runtime, lane.submit, derive_secret)]
    runtime.metrics.add_gauge("quarterdeck_claims_waiting", "Claims waiting for work", "invocations", polls.__len__)
    return Component(
        invocation_routes.routes(handlers),
        invocation_sweeps(
            runtime.cross_zone_engine,
            lane.submit,
            process_backlogs.submit,
            settings,
            runtime.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
        startables=[Watcher(runtime.wakeups, polls, claim_wakeups, poll_seconds, "invocation-lookout"), *push_workers],
        on_drain=[polls.close, *(push_worker.drain for push_worker in push_workers)],
    )


def build_push_worker(
    runtime: Runtime, submit: Callable[[InvocationCommand], Awaitable[InvocationResult]], derive_secret: SecretDeriver
) -> PushWorker:
    settings = runtime.settings
    guard = ALLOW_PRIVATE if settings.section(ServiceSettings).push_private_addresses else PUBLIC_ONLY
    deps = PushDeps(
        runtime.engine, runtime.cross_zone_engine, runtime.wakeups, submit, OutboundClient(guard), derive_secret
    )
    push_worker = PushWorker(deps, settings.section(InvocationSettings), settings.server.shutdown_grace_ms / 1000)
    runtime.metrics.add_gauge("quarterdeck_pushes_under_way", "Pushes in progress", "invocations", push_worker.__len__)
    for code in CODES:
        runtime.metrics.add_counter(
            "quarterdeck_pushes", "Pushes, by outcome", code, partial(push_worker.counts.__getitem__, code)
        )
    return push_worker
