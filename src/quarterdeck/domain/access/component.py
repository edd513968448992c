"""Builds the access component."""

from __future__ import annotations

from quarterdeck.domain.access.operations import role_assignments
from quarterdeck.domain.access.routes import RoleHandlers, routes
from quarterdeck.engine.runtime import Component, Runtime


class RoleAssignments:
    def __init__(self, runtime: Runtime) -> None:
        self.lane = runtime.lanes.add_write_lane("member", role_assignments.change_roles)
        self.component = Component(routes(RoleHandlers(runtime.engine, self.lane.submit)))
