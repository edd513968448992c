"""Builds the services component."""

from __future__ import annotations

from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.services.operations import reads, unregister, update
from quarterdeck.domain.services.operations.register import Registrar
from quarterdeck.domain.services.operations.update import Updater
from quarterdeck.domain.services.routes import ServiceHandlers, routes
from quarterdeck.domain.services.sweeps import FindUnreferenced, sweeps
from quarterdeck.engine.runtime import Component, Runtime


class Services:
    def __init__(self, runtime: Runtime, derive_secret: SecretDeriver, find_unreferenced: FindUnreferenced) -> None:
        """`derive_secret` derives the secrets that sign pushes. `find_unreferenced` finds services without invocations;
        it is passed in, because invocations are a layer above services."""
        lanes, settings = runtime.lanes, runtime.settings.section(ServiceSettings)
        registrar = Registrar(private_allowed=settings.push_private_addresses)
        updater = Updater(private_allowed=settings.push_private_addresses)
        self.register_lane = lanes.add_write_lane("service-register", registrar.register)
        self.update_lane = lanes.add_write_lane("service-change", updater.update)
        self.heartbeat_lane = lanes.add_write_lane("service-heartbeat", update.record_heartbeats)
        self.unregister_lane = lanes.add_write_lane("service-unregister", unregister.unregister)
        self.show_lane = lanes.add_read_lane("service-show", reads.show)
        self.delete_lane = lanes.add_write_lane("service-forget", unregister.delete_past_retention)
        handlers = ServiceHandlers(
            runtime.engine,
            derive_secret,
            self.register_lane.submit,
            self.update_lane.submit,
            self.heartbeat_lane.submit,
            self.unregister_lane.submit,
            self.show_lane.submit,
        )
        self.component = Component(
            routes(handlers),
            sweeps(
                runtime.cross_zone_engine,
                find_unreferenced,
                self.delete_lane.submit,
                settings,
                runtime.retention_interval_ms,
            ),
        )
