"""The route table of zones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.wire import ADMIN, LIFECYCLE, Call, Caller, Reply, Route
from quarterdeck.domain.zones import operations, rules
from quarterdeck.domain.zones.model import (
    Limits,
    ListZonesQuery,
    Overrides,
    PutZone,
    PutZoneBody,
    QuotasView,
    ZoneList,
    ZoneRef,
    ZoneUse,
    ZoneView,
)
from quarterdeck.domain.zones.operations import ZonePut
from quarterdeck.engine.tx import Engine


@dataclass(frozen=True, slots=True)
class ZoneDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    defaults: Limits
    put: Callable[[PutZone], Awaitable[ZonePut]]
    show: Callable[[ZoneRef], Awaitable[ZoneUse]]
    check_bearer: Callable[[Caller], Awaitable[None]]
    """Refuses a token whose session has ended: sessions are above zones, so the composition root lends this."""

    async def put_zone(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, PutZoneBody)
        await self.check_bearer(call.caller)
        done = await self.put(PutZone(call.zone, body.name, body.quotas, call.caller.subject, call.trace))
        return Reply(rules.view(done.zone), 201 if done.created else 200)

    async def get_zone(self, call: Call) -> ZoneView:
        await self.check_bearer(call.caller)
        return rules.view((await self.show(ZoneRef(call.zone))).zone)

    async def list_zones(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListZonesQuery)
        await self.check_bearer(call.caller)
        after = paging.decode("zones", query.cursor) if query.cursor else ""
        zones = await self.engine.read(lambda tx: operations.page(tx, after, query.limit + 1))
        shown, last = paging.clip([zone.id for zone in zones], query.limit)
        cursor = paging.encode("zones", last) if last else None
        body = ZoneList([rules.view(zone) for zone in zones[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))

    async def get_quotas(self, call: Call) -> QuotasView:
        await self.check_bearer(call.caller)
        return rules.quotas_view(await self.show(ZoneRef(call.zone)), self.defaults)

    async def put_quotas(self, call: Call) -> QuotasView:
        body = call.body
        assert isinstance(body, Overrides)
        await self.check_bearer(call.caller)
        await self.put(PutZone(call.zone, None, body, call.caller.subject, call.trace, creates=False))
        return await self.get_quotas(call)


def routes(desk: ZoneDesk) -> list[Route]:
    tags = ("zones",)
    return [
        Route(
            "GET", "/zones", desk.list_zones, "List zones", ADMIN, query=ListZonesQuery, answer=ZoneList,
            refusals=("invalid_cursor",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}", desk.put_zone, "Create a zone, or change its name and overrides", ADMIN,
            body=PutZoneBody, answer=ZoneView, status=201, tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}", desk.get_zone, "Show a zone", LIFECYCLE, answer=ZoneView,
            refusals=("zone_not_found",), tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/quotas", desk.get_quotas, "Show the limits in force and what is used", LIFECYCLE,
            answer=QuotasView, refusals=("zone_not_found",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}/quotas", desk.put_quotas, "Set some of a zone's limits", ADMIN, body=Overrides,
            answer=QuotasView, refusals=("zone_not_found",), tags=tags,
            description="Names what is to change; null takes an override back. Beyond a ceiling, or unknown: 400.",
        ),
    ]  # fmt: skip
