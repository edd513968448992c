"""Builds the API keys component."""

from __future__ import annotations

from quarterdeck.domain.api_keys import operations
from quarterdeck.domain.api_keys.routes import KeyHandlers, routes
from quarterdeck.engine.runtime import Component, Runtime


class ApiKeys:
    def __init__(self, runtime: Runtime, default_scopes: tuple[str, ...]) -> None:
        """`default_scopes` are the scopes of a key that is created without scopes."""
        self.create_lane = runtime.lanes.add_write_lane("key-create", operations.create_keys)
        self.revoke_lane = runtime.lanes.add_write_lane("key-revoke", operations.revoke_keys)
        self.authenticate_lane = runtime.lanes.add_read_lane("key-find", operations.authenticate_keys)
        handlers = KeyHandlers(runtime.engine, default_scopes, self.create_lane.submit, self.revoke_lane.submit)
        self.component = Component(routes(handlers))
