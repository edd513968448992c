"""Builds the zones component."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.domain.zones import operations
from quarterdeck.domain.zones.model import DEFAULT_ZONE, Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneHandlers, routes
from quarterdeck.engine.lanes import LaneCommand, Operation
from quarterdeck.engine.runtime import Component, Runtime


class BearerCommand(LaneCommand, Protocol):
    @property
    def bearer(self) -> Bearer | None: ...


C = TypeVar("C", bound=BearerCommand)
R = TypeVar("R")


class CallerCheck(Protocol):
    """Adds the check of callers to an operation. Passed in, because sessions and agents are layers above zones."""

    def __call__(self, operation: Operation[C, R], *, writes: bool = True) -> Operation[C, R]: ...


class Zones:
    def __init__(
        self, runtime: Runtime, with_check: CallerCheck, check_bearer: Callable[[Caller], Awaitable[None]]
    ) -> None:
        lanes = runtime.lanes
        lanes.wait_for_zone = partial(operations.wait_for_lock, runtime.engine)
        self.put_lane = lanes.add_write_lane("zone", with_check(operations.put_zones))
        self.show_lane = lanes.add_read_lane("zone-show", with_check(operations.show_zones, writes=False))
        self.freeze_lane = lanes.add_write_lane("zone-freeze", with_check(operations.set_zones_frozen))
        handlers = ZoneHandlers(
            runtime.cross_zone_engine,
            runtime.settings.section(Limits),
            self.put_lane.submit,
            self.show_lane.submit,
            self.freeze_lane.submit,
            check_bearer,
        )
        self.component = Component(routes(handlers))

    async def create_default_zone(self) -> None:
        await self.put_lane.submit(PutZone(DEFAULT_ZONE, None, None, "server"))
