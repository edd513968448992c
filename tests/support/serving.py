"""Services as tests write them: rows and asks with plain defaults, and the room's lanes on a store."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.model import (
    DeliveryMode,
    Heartbeat,
    HeartbeatResult,
    Register,
    RegisteredService,
    Service,
    ServiceFilter,
    ServiceHealth,
    ServiceRef,
    ServiceUpdate,
    Unregister,
    Update,
)
from quarterdeck.domain.sessions.model import Session, StopZone, Suspend, Terminate, Verb
from quarterdeck.domain.sessions.operations import CascadeRunner, Terminator, suspend_or_resume
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.lanes import Lanes, zones_of
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Engine
from quarterdeck.store.interface import Store
from tests.support.asking import APP, NOW, ZONE, admin
from tests.support.keel import Keel, keel_on
from tests.support.making import struct_of

OTHER = "other.zone"
URL = "https://agents.example.com/research"
_numbers = itertools.count(1)


def service(**stored: object) -> Service:
    """A row that is registered at NOW."""
    plain: dict[str, object] = {
        "id": f"v{next(_numbers)}",
        "zone_id": ZONE,
        "application_id": APP,
        "agent_id": None,
        "endpoint_url": URL,
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
    row = plain | stored
    return msgspec.convert([row[name] for name in Service.__struct_fields__], Service)


def registering(session_id: str | None = None, **asked: object) -> Register:
    """A registration by the zone's administrator, of a session or of the application itself."""
    zone_id = str(asked.pop("zone_id", ZONE))
    plain: dict[str, object] = {
        "id": new_id(),
        "zone_id": zone_id,
        "caller": admin(zone_id),
        "endpoint_url": URL,
        "application_id": None if session_id else APP,
        "session_id": session_id,
    }
    return struct_of(Register, **(plain | asked))


class Serving:
    """The lanes of services, as `app.py` puts them together, beside those that end and suspend sessions."""

    def __init__(self, store: Store, *, private_allowed: bool = False, chunk: int = 1_000) -> None:
        self.engine = Engine(store, (services.on_session_ended,))
        self.lanes = Lanes(self.engine, EngineSettings())
        registrar = services.Registrar(private_allowed=private_allowed)
        changer = services.Updater(private_allowed=private_allowed)
        self.registers = self.lanes.add_write_lane("service-register", registrar.register)
        self.changes = self.lanes.add_write_lane("service-change", changer.update)
        self.beats = self.lanes.add_write_lane("service-heartbeat", services.record_heartbeats)
        self.unregisters = self.lanes.add_write_lane("service-unregister", services.unregister)
        self.shows = self.lanes.add_read_lane("service-show", services.show)
        self.forgets = self.lanes.add_write_lane("service-forget", services.delete_expired)
        self.holds = self.lanes.add_write_lane("hold", suspend_or_resume)
        ender = Terminator(chunk)
        self.endings = self.lanes.add_write_lane("terminate", ender.terminate_sessions)
        self.stops = self.lanes.add_write_lane("zone-stop", ender.stop_zones)
        self.settles = self.lanes.add_write_lane("settle", ender.finish_cascades)
        self.finisher = CascadeRunner(self.endings.submit, self.stops.submit, self.settles.submit)

    async def register(self, session: Session | None = None, **asked: object) -> RegisteredService:
        if session is not None:
            asked = {"zone_id": session.zone_id, **asked}
        return await self.registers.submit(registering(session.id if session else None, **asked))

    async def make(self, session: Session | None = None, **asked: object) -> Service:
        return (await self.register(session, **asked)).service

    async def change(self, target: Service, said: ServiceUpdate | None = None, **asked: object) -> RegisteredService:
        plain: dict[str, object] = {
            "zone_id": target.zone_id,
            "caller": admin(target.zone_id),
            "service_id": target.id,
            "update": said or ServiceUpdate(),
        }
        return await self.changes.submit(struct_of(Update, **(plain | asked)))

    async def beat(self, service_id: str | None, said: ServiceUpdate | None = None, **asked: object) -> HeartbeatResult:
        plain: dict[str, object] = {"zone_id": ZONE, "caller": admin(), "update": said or ServiceUpdate()}
        return await self.beats.submit(struct_of(Heartbeat, service_id=service_id, **(plain | asked)))

    async def unregister(self, target: Service, session_id: str | None = None, by: Caller | None = None) -> None:
        caller = by or admin(target.zone_id)
        await self.unregisters.submit(
            Unregister(zone_id=target.zone_id, caller=caller, service_id=target.id, session_id=session_id)
        )

    async def show(self, target: Service, session_id: str | None = None) -> Service:
        return await self.shows.submit(ServiceRef(target.zone_id, target.id, session_id))

    async def page(self, **wanted: object) -> list[Service]:
        plain: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        asked = struct_of(ServiceFilter, **(plain | wanted))
        return await self.engine.read(lambda tx: services.list_services(tx, asked), zones=zones_of([asked]))

    async def found(self, *refs: tuple[str, str]) -> dict[tuple[str, str], Service]:
        """As the rooms above load them."""
        zones = {zone_id for zone_id, _ in refs}
        [rows] = await self.engine.read(lambda tx: tx.read(services.load_statement(sorted(refs))), zones=zones)
        return services.decode_registered(rows)

    async def end(self, session: Session) -> None:
        await self.finisher.terminate(Terminate(session.zone_id, session.id, "over", admin(session.zone_id)))

    async def end_zone(self, zone_id: str, *, ends: bool = True) -> None:
        await self.finisher.stop_zone(StopZone(zone_id, "over", admin(zone_id), ends))

    async def suspend(self, session: Session) -> None:
        await self.holds.submit(Suspend(session.zone_id, session.id, Verb.SUSPEND, admin(session.zone_id)))


# -- looking from outside


@contextlib.asynccontextmanager
async def replicas(url: str) -> AsyncIterator[tuple[Keel, list[Serving]]]:
    async with keel_on(url) as first, keel_on(url) as second:
        await first.zone()
        made = [Serving(first.store), Serving(second.store)]
        yield first, made
        for each in made:
            await each.lanes.drain()


async def told(keel: Keel, service: Service) -> list[Event]:
    return [event for event in await keel.log() if event.subject == service.id]


async def told_types(keel: Keel, service: Service) -> list[str]:
    return [event.type.removeprefix("service.") for event in await told(keel, service)]


async def is_there(serving: Serving, service: Service) -> bool:
    """Whether it is, by every way to it: they must agree."""
    try:
        await serving.show(service)
        shown = True
    except Problem as problem:
        assert problem.code == "agent_service_not_found"
        shown = False
    listed = service.id in [one.id for one in await serving.page(zone_id=service.zone_id)]
    found = service.ref in await serving.found(service.ref)
    assert shown == listed == found
    return shown


def registrations(keel: Keel) -> int:
    return keel.side.count("service_sessions")
