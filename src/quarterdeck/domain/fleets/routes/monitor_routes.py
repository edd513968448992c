"""The routes for the monitor: which process monitors a fleet, and how often it pings each member."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import AnyCall, Call, Route
from quarterdeck.domain.fleets.model.bodies import (
    ClaimMonitorBody,
    ConfigureMonitorBody,
    MonitorHeartbeatBody,
    ReleaseMonitorBody,
)
from quarterdeck.domain.fleets.model.commands import (
    ClaimMonitor,
    ConfigureMonitor,
    RecordMonitorHeartbeat,
    ReleaseMonitor,
)
from quarterdeck.domain.fleets.model.views import MonitoredMemberView, MonitorView
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand
from quarterdeck.domain.fleets.routes import request_fields
from quarterdeck.domain.fleets.routes.request_fields import (
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
    engine: Engine
    submit: SubmitFleetCommand

    async def show(self, call: AnyCall) -> MonitorView:
        request = request_fields.fleet_request(call)
        return await self.engine.read(lambda tx: fleet_reads.get_monitor(tx, request), zones=call.zones)

    async def claim(self, call: Call[ClaimMonitorBody, None]) -> MonitorView:
        body = call.body
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

    async def record_heartbeat(self, call: Call[MonitorHeartbeatBody, None]) -> MonitorView:
        body = call.body
        await self.submit(
            RecordMonitorHeartbeat(
                **command_fields(call), pid=body.pid, host_id=body.host_id, pinged_agent_ids=tuple(body.pinged)
            )
        )
        return await self.show(call)

    async def release(self, call: Call[ReleaseMonitorBody, None]) -> MonitorView:
        body = call.body
        await self.submit(ReleaseMonitor(**command_fields(call), pid=body.pid, host_id=body.host_id))
        return await self.show(call)

    async def show_member(self, call: AnyCall) -> MonitoredMemberView:
        request = request_fields.member_request(call)
        return await self.engine.read(lambda tx: fleet_reads.get_monitored_member(tx, request), zones=call.zones)

    async def configure(self, call: Call[ConfigureMonitorBody, None]) -> MonitoredMemberView:
        body = call.body
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
    "One process monitors a fleet. A second process is refused while the heartbeat of the first is recent. A process "
    "of the same user on the same host can report with `previous_pid` and `previous_is_alive` that the first exited."
)
HEARTBEAT_DESCRIPTION = (
    "Records the heartbeat and the members pinged since the last one. The response lists the monitored members and "
    "says which of them are due for a ping. A process that no longer monitors the fleet is refused and must stop."
)


def routes(handlers: MonitorHandlers) -> list[Route]:
    tags, monitor_path, member_monitor_path = ("monitor",), f"{FLEET_PATH}/monitor", f"{MEMBER_PATH}/monitor"
    not_found_errors, member_errors = ("fleet_not_found",), ("fleet_member_not_found", "no_placement")
    change_errors = (*not_found_errors, "fleet_deleted")
    return [
        Route(
            "GET", monitor_path, handlers.show, "Show the monitor of a fleet and the members it watches", LIFECYCLE,
            tags=tags, errors=not_found_errors, permission=READ_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/claim", handlers.claim, "Become the monitor of a fleet", LIFECYCLE, tags=tags,
            errors=(*change_errors, "monitor_running"), description=CLAIM_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/beat", handlers.record_heartbeat, "Send a monitor heartbeat", LIFECYCLE, tags=tags,
            errors=(*change_errors, "not_the_monitor"), description=HEARTBEAT_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        Route(
            "POST", f"{monitor_path}/release", handlers.release, "Stop monitoring a fleet", LIFECYCLE, tags=tags,
            errors=(*change_errors, "not_the_monitor"), permission=CHANGE_PERMISSION,
        ),
        Route(
            "GET", member_monitor_path, handlers.show_member, "Show how a member is monitored", LIFECYCLE, tags=tags,
            errors=(*not_found_errors, *member_errors), permission=READ_PERMISSION,
        ),
        Route(
            "PATCH", member_monitor_path, handlers.configure, "Configure how a member is monitored", LIFECYCLE,
            tags=tags, errors=(*change_errors, *member_errors), permission=CHANGE_PERMISSION,
        ),
    ]  # fmt: skip
