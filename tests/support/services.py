"""Services for tests: rows and commands with defaults, and a harness with the lanes on a store."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.invocations.operations import find_unreferenced_services
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.component import Services
from quarterdeck.domain.services.model import (
    DeliveryMode,
    Heartbeat,
    HeartbeatResult,
    Register,
    RegisteredService,
    Service,
    ServiceFilter,
    ServiceHealth,
    ServiceSettings,
    ServiceUpdate,
    ShowService,
    Unregister,
    Update,
)
from quarterdeck.domain.services.operations import reads
from quarterdeck.domain.sessions.component import Sessions
from quarterdeck.domain.sessions.model import Session, SessionSettings, StopZone, Suspend, Terminate, Verb
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.lanes import zones_of
from tests.support.builders import APP, NOW, ZONE, admin
from tests.support.runtime import SECRET_DERIVER, RuntimeHarness, open_runtime
from tests.support.structs import build_struct

OTHER_ZONE = "other.zone"
ENDPOINT_URL = "https://agents.example.com/research"
_numbers = itertools.count(1)


def service_row(**fields: object) -> Service:
    """A row that is registered at NOW."""
    defaults: dict[str, object] = {
        "id": f"v{next(_numbers)}",
        "zone_id": ZONE,
        "application_id": APP,
        "agent_id": None,
        "endpoint_url": ENDPOINT_URL,
        "protocol_versions": "[]",
        "framework_name": None,
        "framework_version": None,
        "capabilities": "[]",
        "health": ServiceHealth.STARTING,
        "metadata_json": "{}",
        "delivery": DeliveryMode.PULL,
        "secret_number": 1,
        "active_invocations": 0,
        "last_heartbeat_at": None,
        "unregistered_at": None,
        "created_at": NOW - 1_000,
        "updated_at": NOW - 1_000,
        "is_live": 1,
    }
    row = defaults | fields
    return msgspec.convert([row[name] for name in Service.__struct_fields__], Service)


def register_command(session_id: str | None = None, **fields: object) -> Register:
    """A registration by the zone's administrator, for a session or for the application itself."""
    zone_id = str(fields.pop("zone_id", ZONE))
    defaults: dict[str, object] = {
        "id": new_id(),
        "zone_id": zone_id,
        "caller": admin(zone_id),
        "endpoint_url": ENDPOINT_URL,
        "application_id": None if session_id else APP,
        "session_id": session_id,
    }
    return build_struct(Register, **(defaults | fields))


class ServiceHarness:
    """The lanes of services, connected as in `app.py`, and those that terminate and suspend sessions."""

    def __init__(self, runtime: RuntimeHarness, *, private_allowed: bool = False, chunk: int = 1_000) -> None:
        shared = runtime.with_settings(
            ServiceSettings(push_private_addresses=private_allowed), SessionSettings(cascade_chunk=chunk)
        )
        self.engine, self.lanes = shared.engine, shared.lanes
        parts = Services(shared, SECRET_DERIVER, find_unreferenced_services)
        self.register_lane, self.update_lane = parts.register_lane, parts.update_lane
        self.heartbeat_lane, self.unregister_lane = parts.heartbeat_lane, parts.unregister_lane
        self.show_lane, self.delete_lane = parts.show_lane, parts.delete_lane
        self.sessions = Sessions(shared)
        self.terminate_lane, self.cascade_runner = self.sessions.terminate_lane, self.sessions.cascades

    async def register(self, session: Session | None = None, **fields: object) -> RegisteredService:
        if session is not None:
            fields = {"zone_id": session.zone_id, **fields}
        return await self.register_lane.submit(register_command(session.id if session else None, **fields))

    async def register_service(self, session: Session | None = None, **fields: object) -> Service:
        return (await self.register(session, **fields)).service

    async def update(
        self, target: Service, update_fields: ServiceUpdate | None = None, **fields: object
    ) -> RegisteredService:
        defaults: dict[str, object] = {
            "zone_id": target.zone_id,
            "caller": admin(target.zone_id),
            "service_id": target.id,
            "update": update_fields or ServiceUpdate(),
        }
        return await self.update_lane.submit(build_struct(Update, **(defaults | fields)))

    async def heartbeat(
        self, service_id: str | None, update_fields: ServiceUpdate | None = None, **fields: object
    ) -> HeartbeatResult:
        defaults: dict[str, object] = {"zone_id": ZONE, "caller": admin(), "update": update_fields or ServiceUpdate()}
        return await self.heartbeat_lane.submit(build_struct(Heartbeat, service_id=service_id, **(defaults | fields)))

    async def unregister(self, target: Service, session_id: str | None = None, as_caller: Caller | None = None) -> None:
        caller = as_caller or admin(target.zone_id)
        await self.unregister_lane.submit(
            Unregister(zone_id=target.zone_id, caller=caller, service_id=target.id, session_id=session_id)
        )

    async def read(self, target: Service, session_id: str | None = None) -> Service:
        return await self.show_lane.submit(ShowService(target.zone_id, target.id, session_id))

    async def list_services(self, **fields: object) -> list[Service]:
        defaults: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        filters = build_struct(ServiceFilter, **(defaults | fields))
        return await self.engine.read(lambda tx: reads.list_services(tx, filters), zones=zones_of([filters]))

    async def load_registered(self, *refs: tuple[str, str]) -> dict[tuple[str, str], Service]:
        """Load services as other components do."""
        zones = {zone_id for zone_id, _ in refs}
        [rows] = await self.engine.read(lambda tx: tx.read(services.load_statement(sorted(refs))), zones=zones)
        return services.decode_registered(rows)

    async def terminate(self, session: Session) -> None:
        await self.cascade_runner.terminate(Terminate(session.zone_id, session.id, "finished", admin(session.zone_id)))

    async def stop_zone(self, zone_id: str, *, ends: bool = True) -> None:
        await self.cascade_runner.stop_zone(StopZone(zone_id, "finished", admin(zone_id), ends))

    async def suspend(self, session: Session) -> None:
        await self.sessions.suspend_lane.submit(
            Suspend(session.zone_id, session.id, Verb.SUSPEND, admin(session.zone_id))
        )


# -- observation


@contextlib.asynccontextmanager
async def open_replicas(url: str) -> AsyncIterator[tuple[RuntimeHarness, list[ServiceHarness]]]:
    async with open_runtime(url) as first, open_runtime(url) as second:
        await first.put_zone()
        harnesses = [ServiceHarness(first), ServiceHarness(second)]
        yield first, harnesses
        for harness in harnesses:
            await harness.lanes.drain()


async def events_of(runtime: RuntimeHarness, service: Service) -> list[Event]:
    return [event for event in await runtime.read_log() if event.subject == service.id]


async def event_types(runtime: RuntimeHarness, service: Service) -> list[str]:
    return [event.type.removeprefix("service.") for event in await events_of(runtime, service)]


async def is_registered(harness: ServiceHarness, service: Service) -> bool:
    """Whether the service is registered. Reading, listing and loading must agree."""
    try:
        await harness.read(service)
        is_shown = True
    except Problem as problem:
        assert problem.code == "agent_service_not_found"
        is_shown = False
    is_listed = service.id in [
        listed_service.id for listed_service in await harness.list_services(zone_id=service.zone_id)
    ]
    is_found = service.ref in await harness.load_registered(service.ref)
    assert is_shown == is_listed == is_found
    return is_shown


def count_registrations(runtime: RuntimeHarness) -> int:
    return runtime.database.count("service_sessions")
