"""Builds the invocations component and its push delivery."""

from __future__ import annotations

from functools import partial
from typing import cast

from quarterdeck.core import metric_table
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.invocations.background.push_delivery import PushDeps, PushWorker
from quarterdeck.domain.invocations.model import InvocationSettings
from quarterdeck.domain.invocations.operations import on_session_ended, reads
from quarterdeck.domain.invocations.operations.batch import BatchRunner, SubmitInvocationCommand
from quarterdeck.domain.invocations.operations.long_poll import ClaimPolls, ReadyPollWaker
from quarterdeck.domain.invocations.routes import InvocationHandlers, routes
from quarterdeck.domain.invocations.rules.push_protocol import CODES
from quarterdeck.domain.invocations.sweeps import sweeps
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, PUBLIC_ONLY, OutboundClient
from quarterdeck.engine.runtime import Component, Runtime
from quarterdeck.engine.settings import ServerSettings


class Invocations:
    def __init__(self, runtime: Runtime, derive_secret: SecretDeriver | None) -> None:
        """`derive_secret` derives the keys that sign pushes. If it is None, this process pushes nothing."""
        settings = runtime.settings.section(InvocationSettings)
        self.polls, poll_seconds = ClaimPolls(), settings.claim_poll_ms / 1000
        lane = runtime.lanes.add_write_lane("invocation", BatchRunner(settings.lease_ms, self.polls).run)
        self.submit = cast(SubmitInvocationCommand, lane.submit)
        self.backlog_lane = runtime.lanes.add_write_lane("invocation-settle", on_session_ended.process_backlogs)
        self.show_lane = runtime.lanes.add_read_lane("invocation-show", reads.show)
        handlers = InvocationHandlers(runtime.engine, self.submit, self.show_lane.submit, self.polls, settings)
        self.polls.on_undelivered = handlers.release_undelivered
        runtime.metrics.add(metric_table.CLAIMS_WAITING, "invocations", self.polls.__len__)
        claim_wakeups = ReadyPollWaker(runtime.engine, self.polls, poll_seconds)
        watcher = Watcher(runtime.wakeups, self.polls, claim_wakeups, poll_seconds, "invocation-lookout")
        push_workers = [] if derive_secret is None else [self._build_push_worker(runtime, derive_secret)]
        self.component = Component(
            routes(handlers),
            sweeps(
                runtime.cross_zone_engine,
                self.submit,
                self.backlog_lane.submit,
                settings,
                runtime.retention_interval_ms,
            ),
            startables=[watcher, *push_workers],
            on_drain=[self.polls.close, *(push_worker.drain for push_worker in push_workers)],
        )

    def _build_push_worker(self, runtime: Runtime, derive_secret: SecretDeriver) -> PushWorker:
        section = runtime.settings.section
        guard = ALLOW_PRIVATE if section(ServiceSettings).push_private_addresses else PUBLIC_ONLY
        deps = PushDeps(
            runtime.engine,
            runtime.cross_zone_engine,
            runtime.wakeups,
            self.submit,
            OutboundClient(guard),
            derive_secret,
        )
        worker = PushWorker(deps, section(InvocationSettings), section(ServerSettings).shutdown_grace_ms / 1000)
        runtime.metrics.add(metric_table.PUSHES_UNDER_WAY, "invocations", worker.__len__)
        for code in CODES:
            runtime.metrics.add(metric_table.PUSHES, code, partial(worker.counts.__getitem__, code))
        return worker
