"""The route table of the monitor: who watches over a fleet, and how its members are watched over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import UNSET

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, Route
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import (
    ClaimMonitorBody,
    ConfigureMonitorBody,
    MonitorHeartbeatBody,
    ReleaseMonitorBody,
)
from quarterdeck.domain.fleets.model.commands import (
    ClaimMonitor,
    ConfigureMonitor,
    FleetCommand,
    FleetOutcome,
    RecordMonitorHeartbeat,
    ReleaseMonitor,
)
from quarterdeck.domain.fleets.model.views import MonitoredMemberView, MonitorView
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.route_params import (
    CHANGE_PERMISSION,
    FLEET_PATH,
    MEMBER_PATH,
    READ_PERMISSION,
    command_fields,
    path_agent_id,
)
from quarterdeck.engine.transaction import Engine


@dataclass(frozen=True, slots=True)
class MonitorHandlers:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]

    async def show(self, call: Call) -> MonitorView:
        request = route_params.fleet_request(call)
        return await route_params.read_for_call(self.engine, call, lambda tx: fleet_reads.get_monitor(tx, request))

    async def claim(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, ClaimMonitorBody)
        await self.submit(
            ClaimMonitor(
                **command_fields(call),
                pid=body.pid,
                host_id=body.host_id,
                user_id=body.user_id,
                tick_seconds=body.tick_seconds,
                policy=body.policy,
                previous_pid=body.previous_pid,
                previous_is_alive=body.previous_is_alive,
            )
        )
        return await self.show(call)

    async def record_heartbeat(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, MonitorHeartbeatBody)
        await self.submit(
            RecordMonitorHeartbeat(
                **command_fields(call), pid=body.pid, host_id=body.host_id, pinged=tuple(body.pinged)
            )
        )
        return await self.show(call)

    async def release(self, call: Call) -> MonitorView:
        body = call.body
        assert isinstance(body, ReleaseMonitorBody)
        await self.submit(ReleaseMonitor(**command_fields(call), pid=body.pid, host_id=body.host_id))
        return await self.show(call)

    async def show_member(self, call: Call) -> MonitoredMemberView:
        request = route_params.member_request(call)
        return await route_params.read_for_call(
            self.engine, call, lambda tx: fleet_reads.get_monitored_member(tx, request)
        )

    async def configure(self, call: Call) -> MonitoredMemberView:
        body = call.body
        assert isinstance(body, ConfigureMonitorBody)
        await self.submit(
            ConfigureMonitor(
                **command_fields(call),
                agent_id=path_agent_id(call),
                interval_seconds=None if body.interval_seconds is UNSET else body.interval_seconds,
                enabled=None if body.enabled is UNSET else body.enabled,
            )
        )
        return await self.show_member(call)


CLAIM_DESCRIPTION = (
    "One process watches over a fleet: a second one is refused while the first is heard of. Only on the same host can "
    "be told that the process before has ended, by `previous_pid` and `previous_is_alive`."
)
HEARTBEAT_DESCRIPTION = (
    "Still there, and whom it has pinged since the last time. The answer says who is watched over, and whose turn has "
    "come. A process that watches over the fleet no more is refused, and is to stop."
)


def routes(handlers: MonitorHandlers) -> list[Route]:
    tags, monitor_path, member_monitor_path = ("monitor",), f"{FLEET_PATH}/monitor", f"{MEMBER_PATH}/monitor"
    not_found_errors, member_errors = ("fleet_not_found",), ("fleet_member_not_found", "no_placement")
    change_errors = (*not_found_errors, "fleet_deleted")
    return [
        Route(
            "GET", monitor_path, handlers.show, "Show who watches over a fleet, and over whom", LIFECYCLE, response=MonitorView,
            tags=tags, errors=not_found_errors, permission=READ_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/claim", handlers.claim, "Begin to watch over a fleet", LIFECYCLE, body=ClaimMonitorBody,
            response=MonitorView, tags=tags, errors=(*change_errors, "monitor_running"), description=CLAIM_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/beat", handlers.record_heartbeat, "Tell that one still watches", LIFECYCLE, body=MonitorHeartbeatBody,
            response=MonitorView, tags=tags, errors=(*change_errors, "not_the_monitor"), description=HEARTBEAT_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/release", handlers.release, "Watch over a fleet no more", LIFECYCLE, body=ReleaseMonitorBody,
            response=MonitorView, tags=tags, errors=(*change_errors, "not_the_monitor"), permission=CHANGE_PERMISSION,
        ),
        Route(
            "GET", member_monitor_path, handlers.show_member, "Show how a member is watched over", LIFECYCLE, response=MonitoredMemberView,
            tags=tags, errors=(*not_found_errors, *member_errors), permission=READ_PERMISSION,
        ),
        Route(
            "PATCH", member_monitor_path, handlers.configure, "Change how a member is watched over", LIFECYCLE, body=ConfigureMonitorBody,
            response=MonitoredMemberView, tags=tags, errors=(*change_errors, *member_errors), permission=CHANGE_PERMISSION,
        ),
    ]  # fmt: skip
