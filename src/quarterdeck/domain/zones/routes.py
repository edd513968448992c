"""The route table of zones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import ADMIN, LIFECYCLE, Caller
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.zones import operations, rules
from quarterdeck.domain.zones.model import (
    FreezeZone,
    Limits,
    ListZonesQuery,
    Overrides,
    PutZone,
    PutZoneBody,
    QuotasView,
    Zone,
    ZoneList,
    ZoneRef,
    ZoneUse,
    ZoneView,
)
from quarterdeck.domain.zones.operations import ZonePut
from quarterdeck.engine.transaction import Engine


@dataclass(frozen=True, slots=True)
class ZoneDesk:
    """What the handlers need, handed over by the composition root."""

    everywhere: Engine
    """For the list: whoever may see it crosses zones."""
    defaults: Limits
    put: Callable[[PutZone], Awaitable[ZonePut]]
    show: Callable[[ZoneRef], Awaitable[ZoneUse]]
    freeze_or_thaw: Callable[[FreezeZone], Awaitable[Zone]]
    check_bearer: Callable[[Caller], Awaitable[None]]
    """Refuses a token whose session has ended: sessions are above zones, so the composition root lends this."""

    async def put_zone(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, PutZoneBody)
        done = await self.put(_asked(call, body.name, body.quotas))
        return Reply(rules.view(done.zone), 201 if done.created else 200)

    async def get_zone(self, call: Call) -> ZoneView:
        return rules.view((await self.show(_ref(call))).zone)

    async def list_zones(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListZonesQuery)
        await self.check_bearer(call.caller)
        after = paging.decode("zones", query.cursor) if query.cursor else ""
        zones = await self.everywhere.read(lambda tx: operations.page(tx, after, query.limit + 1))
        shown, last = paging.clip([zone.id for zone in zones], query.limit)
        cursor = paging.encode("zones", last) if last else None
        body = ZoneList([rules.view(zone) for zone in zones[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))

    async def get_quotas(self, call: Call) -> QuotasView:
        return rules.quotas_view(await self.show(_ref(call)), self.defaults)

    async def put_quotas(self, call: Call) -> QuotasView:
        body = call.body
        assert isinstance(body, Overrides)
        await self.put(_asked(call, None, body, creates=False))
        return await self.get_quotas(call)

    async def freeze(self, call: Call) -> ZoneView:
        return rules.view(await self.freeze_or_thaw(FreezeZone(call.zone, True, call.caller, call.trace)))

    async def thaw(self, call: Call) -> ZoneView:
        return rules.view(await self.freeze_or_thaw(FreezeZone(call.zone, False, call.caller, call.trace)))


def _ref(call: Call) -> ZoneRef:
    return ZoneRef(call.zone, call.caller.bearer)


def _asked(call: Call, name: str | None, quotas: Overrides | None, *, creates: bool = True) -> PutZone:
    caller = call.caller
    return PutZone(call.zone, name, quotas, caller.subject, call.trace, creates, caller.bearer)


def routes(desk: ZoneDesk) -> list[Route]:
    tags = ("zones",)
    ended = ("zone_not_found", "zone_ended")
    return [
        Route(
            "GET", "/zones", desk.list_zones, "List zones", ADMIN, query=ListZonesQuery, answer=ZoneList,
            refusals=("invalid_cursor",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}", desk.put_zone, "Create a zone, or change its name and overrides", ADMIN,
            body=PutZoneBody, answer=ZoneView, status=201, refusals=("zone_ended",), tags=tags,
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
            answer=QuotasView, refusals=ended, tags=tags,
            description="Names what is to change; null takes an override back. Beyond a ceiling, or unknown: 400.",
        ),
        Route(
            "POST", "/zones/{zone}/freeze", desk.freeze, "Stop every admission to a zone", ADMIN, answer=ZoneView,
            refusals=ended, tags=tags, description="Who runs goes on; every spawn is refused with 423 `zone_frozen`.",
        ),
        Route(
            "POST", "/zones/{zone}/thaw", desk.thaw, "Allow admission to a zone again", ADMIN, answer=ZoneView,
            refusals=ended, tags=tags,
        ),
    ]  # fmt: skip
