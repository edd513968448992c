"""Builds the delegations component."""

from __future__ import annotations

from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.delegations.operations import create, end_edges, reads
from quarterdeck.domain.delegations.operations.revoke import Revoker
from quarterdeck.domain.delegations.routes import DelegationHandlers, routes
from quarterdeck.domain.delegations.sweeps import sweeps
from quarterdeck.domain.sessions.component import Sessions
from quarterdeck.engine.runtime import Component, Runtime


class Delegations:
    def __init__(self, runtime: Runtime, session_component: Sessions) -> None:
        lanes, settings = runtime.lanes, runtime.settings.section(DelegationSettings)
        revoker = Revoker(session_component.terminator)
        self.delegate_lane = lanes.add_write_lane("delegate", create.create_edges)
        self.revoke_lane = lanes.add_write_lane("revoke", revoker.revoke)
        self.show_lane = lanes.add_read_lane("delegation-show", reads.show)
        self.expire_lane = lanes.add_write_lane("delegation-expire", end_edges.expire_edges)
        handlers = DelegationHandlers(
            runtime.engine,
            self.delegate_lane.submit,
            self.revoke_lane.submit,
            self.show_lane.submit,
            session_component.cascades.finish_cascade,
        )
        self.component = Component(
            routes(handlers),
            sweeps(runtime.cross_zone_engine, self.expire_lane.submit, settings, runtime.retention_interval_ms),
        )
