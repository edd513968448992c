"""Routes for zones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import ADMIN, LIFECYCLE, Caller
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.zones import operations, rules
from quarterdeck.domain.zones.model import (
    Limits,
    ListZonesQuery,
    Overrides,
    PutZone,
    PutZoneBody,
    QuotasView,
    SetZoneFrozen,
    ShowZone,
    Zone,
    ZoneList,
    ZoneUsage,
    ZoneView,
)
from quarterdeck.domain.zones.operations import PutZoneResult
from quarterdeck.engine.transaction import Engine


@dataclass(frozen=True, slots=True)
class ZoneHandlers:
    cross_zone_engine: Engine
    """Used only to list zones, which requires the scope `quarterdeck.admin`."""
    default_limits: Limits
    submit_put: Callable[[PutZone], Awaitable[PutZoneResult]]
    submit_show: Callable[[ShowZone], Awaitable[ZoneUsage]]
    submit_set_frozen: Callable[[SetZoneFrozen], Awaitable[Zone]]
    check_bearer: Callable[[Caller], Awaitable[None]]
    """Raises if the caller's session has ended. Injected, because sessions are a layer above zones."""

    async def put_zone(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, PutZoneBody)
        result = await self.submit_put(_put_command(call, body.name, body.quotas))
        return Reply(rules.view(result.zone), 201 if result.created else 200)

    async def get_zone(self, call: Call) -> ZoneView:
        return rules.view((await self.submit_show(_show_command(call))).zone)

    async def list_zones(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListZonesQuery)
        await self.check_bearer(call.caller)
        after = paging.decode("zones", query.cursor) if query.cursor else ""
        zones = await self.cross_zone_engine.read(lambda tx: operations.list_zones(tx, after, query.limit + 1))
        count, last = paging.trim_page([zone.id for zone in zones], query.limit)
        cursor = paging.encode("zones", last) if last else None
        body = ZoneList([rules.view(zone) for zone in zones[:count]], cursor)
        return Reply(body, 200, call.next_link(cursor))

    async def get_quotas(self, call: Call) -> QuotasView:
        return rules.quotas_view(await self.submit_show(_show_command(call)), self.default_limits)

    async def put_quotas(self, call: Call) -> QuotasView:
        body = call.body
        assert isinstance(body, Overrides)
        await self.submit_put(_put_command(call, None, body, create_missing=False))
        return await self.get_quotas(call)

    async def freeze(self, call: Call) -> ZoneView:
        return rules.view(await self.submit_set_frozen(SetZoneFrozen(call.zone_id, True, call.caller, call.trace)))

    async def thaw(self, call: Call) -> ZoneView:
        return rules.view(await self.submit_set_frozen(SetZoneFrozen(call.zone_id, False, call.caller, call.trace)))


def _show_command(call: Call) -> ShowZone:
    return ShowZone(call.zone_id, call.caller.bearer)


def _put_command(call: Call, name: str | None, quotas: Overrides | None, *, create_missing: bool = True) -> PutZone:
    caller = call.caller
    return PutZone(call.zone_id, name, quotas, caller.subject, call.trace, create_missing, caller.bearer)


def routes(handlers: ZoneHandlers) -> list[Route]:
    tags = ("zones",)
    zone_errors = ("zone_not_found", "zone_ended")
    return [
        Route(
            "GET", "/zones", handlers.list_zones, "List zones", ADMIN, query=ListZonesQuery, response=ZoneList,
            errors=("invalid_cursor",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}", handlers.put_zone, "Create a zone, or change its name and overrides", ADMIN,
            body=PutZoneBody, response=ZoneView, status=201, errors=("zone_ended",), tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}", handlers.get_zone, "Show a zone", LIFECYCLE, response=ZoneView,
            errors=("zone_not_found",), tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/quotas", handlers.get_quotas, "Show the effective limits and their usage", LIFECYCLE,
            response=QuotasView, errors=("zone_not_found",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}/quotas", handlers.put_quotas, "Set some of a zone's limits", ADMIN, body=Overrides,
            response=QuotasView, errors=zone_errors, tags=tags,
            description="Send only the limits to change; null removes an override. An unknown limit, or one above its "
            "ceiling, is refused with 400.",
        ),
        Route(
            "POST", "/zones/{zone}/freeze", handlers.freeze, "Stop admission to a zone", ADMIN, response=ZoneView,
            errors=zone_errors, tags=tags,
            description="Live sessions continue. Every spawn is refused with 423 `zone_frozen`.",
        ),
        Route(
            "POST", "/zones/{zone}/thaw", handlers.thaw, "Allow admission to a zone again", ADMIN, response=ZoneView,
            errors=zone_errors, tags=tags,
        ),
    ]  # fmt: skip
