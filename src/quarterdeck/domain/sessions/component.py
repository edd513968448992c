"""Builds the sessions component, and the termination of subtrees that other components share."""

from __future__ import annotations

from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.operations import counts, reads, suspend
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.operations.terminate import CascadeRunner, Terminator
from quarterdeck.domain.sessions.routes import SessionHandlers, routes
from quarterdeck.domain.sessions.sweeps import CountReconciler, sweeps
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.runtime import Component, Runtime


class Sessions:
    def __init__(self, runtime: Runtime) -> None:
        lanes, settings = runtime.lanes, runtime.settings.section(SessionSettings)
        self.spawner = Spawner(runtime.settings.section(Limits))
        self.spawn_lane = lanes.add_write_lane("spawn", self.spawner.spawn)
        self.suspend_lane = lanes.add_write_lane("hold", suspend.suspend_or_resume)
        self.repair_counts_lane = lanes.add_write_lane("recount", counts.repair_zone_counts)
        self.show_lane = lanes.add_read_lane("session-show", reads.show_sessions)
        self.terminator = Terminator(settings.cascade_chunk)
        self.terminate_lane = lanes.add_write_lane("terminate", self.terminator.terminate_sessions)
        self.stop_zone_lane = lanes.add_write_lane("zone-stop", self.terminator.stop_zones)
        self.finish_cascade_lane = lanes.add_write_lane("settle", self.terminator.finish_cascades)
        self.cascades = CascadeRunner(
            self.terminate_lane.submit, self.stop_zone_lane.submit, self.finish_cascade_lane.submit
        )
        self.explainer = Explainer(self.spawner)
        handlers = SessionHandlers(
            runtime.engine,
            self.spawn_lane.submit,
            self.suspend_lane.submit,
            self.show_lane.submit,
            self.cascades,
            self.explainer,
        )
        interval_ms, engine = runtime.retention_interval_ms, runtime.cross_zone_engine
        self.component = Component(
            routes(handlers),
            [
                *sweeps(engine, self.cascades, settings, interval_ms),
                CountReconciler(engine, self.repair_counts_lane.submit).sweep(settings.reconcile_interval_ms),
                KeyRetention(engine, settings.session_retention_days, interval_ms).sweep(),
            ],
        )
