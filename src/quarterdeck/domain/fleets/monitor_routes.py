"""The route table of the monitor: who watches over a fleet, and how its members are watched over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import UNSET

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, Route
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import BeatBody, ClaimBody, MonitorBody, ReleaseBody
from quarterdeck.domain.fleets.model.commands import (
    BeatMonitor,
    ClaimMonitor,
    ConfigureMonitor,
    FleetCommand,
    FleetOutcome,
    ReleaseMonitor,
)
from quarterdeck.domain.fleets.model.views import MonitoredView, MonitorView
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.route_params import CHANGE, FLEET, MEMBER, READ, agent_id, here
from quarterdeck.engine.transaction import Engine


@dataclass(frozen=True, slots=True)
class MonitorDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]

    async def show(self, call: Call) -> MonitorView:
        wanted = route_params.of_fleet(call)
        return await route_params.read(self.engine, call, lambda tx: fleet_reads.monitor(tx, wanted))

    async def claim(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, ClaimBody)
        await self.submit(
            ClaimMonitor(
                **here(call),
                pid=body.pid,
                host_id=body.host_id,
                user_id=body.user_id,
                tick_seconds=body.tick_seconds,
                policy=body.policy,
                previous_pid=body.previous_pid,
                is_alive=body.previous_is_alive,
            )
        )
        return await self.show(call)

    async def beat(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, BeatBody)
        await self.submit(BeatMonitor(**here(call), pid=body.pid, host_id=body.host_id, pinged=tuple(body.pinged)))
        return await self.show(call)

    async def release(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, ReleaseBody)
        await self.submit(ReleaseMonitor(**here(call), pid=body.pid, host_id=body.host_id))
        return await self.show(call)

    async def show_member(self, call: Call) -> MonitoredView:
        wanted = route_params.of_member(call)
        return await route_params.read(self.engine, call, lambda tx: fleet_reads.monitored(tx, wanted))

    async def configure(self, call: Call) -> MonitoredView:
        body = call.body
        assert isinstance(body, MonitorBody)
        await self.submit(
            ConfigureMonitor(
                **here(call),
                agent_id=agent_id(call),
                interval_seconds=None if body.interval_seconds is UNSET else body.interval_seconds,
                enabled=None if body.enabled is UNSET else body.enabled,
            )
        )
        return await self.show_member(call)


CLAIMING = (
    "One process watches over a fleet: a second one is refused while the first is heard of. Only on the same host can "
    "be told that the process before has ended, by `previous_pid` and `previous_is_alive`."
)
BEATING = (
    "Still there, and whom it has pinged since the last time. The answer says who is watched over, and whose turn has "
    "come. A process that watches over the fleet no more is refused, and is to stop."
)


def routes(desk: MonitorDesk) -> list[Route]:
    tags, of_fleet, of_member = ("monitor",), f"{FLEET}/monitor", f"{MEMBER}/monitor"
    missing, member = ("fleet_not_found",), ("fleet_member_not_found", "no_placement")
    changes = (*missing, "fleet_deleted")
    return [
        Route(
            "GET", of_fleet, desk.show, "Show who watches over a fleet, and over whom", LIFECYCLE, response=MonitorView,
            tags=tags, errors=missing, permission=READ,
        ),
        Route(
            "POST", f"{of_fleet}/claim", desk.claim, "Begin to watch over a fleet", LIFECYCLE, body=ClaimBody,
            response=MonitorView, tags=tags, errors=(*changes, "monitor_running"), description=CLAIMING, permission=CHANGE,
        ),
        Route(
            "POST", f"{of_fleet}/beat", desk.beat, "Tell that one still watches", LIFECYCLE, body=BeatBody,
            response=MonitorView, tags=tags, errors=(*changes, "not_the_monitor"), description=BEATING, permission=CHANGE,
        ),
        Route(
            "POST", f"{of_fleet}/release", desk.release, "Watch over a fleet no more", LIFECYCLE, body=ReleaseBody,
            response=MonitorView, tags=tags, errors=(*changes, "not_the_monitor"), permission=CHANGE,
        ),
        Route(
            "GET", of_member, desk.show_member, "Show how a member is watched over", LIFECYCLE, response=MonitoredView,
            tags=tags, errors=(*missing, *member), permission=READ,
        ),
        Route(
            "PATCH", of_member, desk.configure, "Change how a member is watched over", LIFECYCLE, body=MonitorBody,
            response=MonitoredView, tags=tags, errors=(*changes, *member), permission=CHANGE,
        ),
    ]  # fmt: skip
