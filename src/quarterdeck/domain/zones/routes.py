"""Routes for zones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core.caller import ADMIN, LIFECYCLE, Caller
from quarterdeck.core.paging import Listing, Page, PageQuery
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.zones import operations
from quarterdeck.domain.zones.model import (
    Limits,
    Overrides,
    PutZone,
    PutZoneBody,
    QuotasView,
    SetZoneFrozen,
    ShowZone,
    Zone,
    ZoneUsage,
    ZoneView,
)
from quarterdeck.domain.zones.operations import PutZoneResult
from quarterdeck.domain.zones.rules import limits
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Zone]("zones")


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

    async def put_zone(self, call: Call[PutZoneBody, None]) -> Reply[ZoneView]:
        body = call.body
        result = await self.submit_put(_put_command(call, body.name, body.quotas))
        return Reply(limits.view(result.zone), 201 if result.created else 200)

    async def get_zone(self, call: Call[None, None]) -> ZoneView:
        return limits.view((await self.submit_show(_show_command(call))).zone)

    async def list_zones(self, call: Call[None, PageQuery]) -> Reply[Page[ZoneView]]:
        await self.check_bearer(call.caller)
        after, limit = LISTING.start_key(call.query) or "", call.query.limit + 1
        zones = await self.cross_zone_engine.read(lambda tx: operations.list_zones(tx, after, limit))
        return LISTING.reply(call, zones, limits.view, Page)

    async def get_quotas(self, call: AnyCall) -> QuotasView:
        return limits.quotas_view(await self.submit_show(_show_command(call)), self.default_limits)

    async def put_quotas(self, call: Call[Overrides, None]) -> QuotasView:
        await self.submit_put(_put_command(call, None, call.body, create_missing=False))
        return await self.get_quotas(call)

    async def freeze(self, call: Call[None, None]) -> ZoneView:
        return limits.view(await self.submit_set_frozen(SetZoneFrozen(call.zone_id, True, call.caller, call.trace)))

    async def thaw(self, call: Call[None, None]) -> ZoneView:
        return limits.view(await self.submit_set_frozen(SetZoneFrozen(call.zone_id, False, call.caller, call.trace)))


def _show_command(call: AnyCall) -> ShowZone:
    return ShowZone(call.zone_id, call.caller.bearer)


def _put_command(call: AnyCall, name: str | None, quotas: Overrides | None, *, create_missing: bool = True) -> PutZone:
    caller = call.caller
    return PutZone(call.zone_id, name, quotas, caller.subject, call.trace, create_missing, caller.bearer)


def routes(handlers: ZoneHandlers) -> list[Route]:
    tags = ("zones",)
    zone_errors = ("zone_not_found", "zone_ended")
    return [
        Route("GET", "/zones", handlers.list_zones, "List zones", ADMIN, errors=("invalid_cursor",), tags=tags),
        Route(
            "PUT", "/zones/{zone}", handlers.put_zone, "Create a zone, or change its name and overrides", ADMIN,
            status=201, errors=("zone_ended",), tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}", handlers.get_zone, "Show a zone", LIFECYCLE, errors=("zone_not_found",), tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/quotas", handlers.get_quotas, "Show the effective limits and their usage", LIFECYCLE,
            errors=("zone_not_found",), tags=tags,
        ),
        Route(
            "PUT", "/zones/{zone}/quotas", handlers.put_quotas, "Set some of a zone's limits", ADMIN,
            errors=zone_errors, tags=tags,
            description="Send only the limits to change; null removes an override. An unknown limit, or one above its "
            "ceiling, is refused with 400.",
        ),
        Route(
            "POST", "/zones/{zone}/freeze", handlers.freeze, "Stop admission to a zone", ADMIN, errors=zone_errors,
            tags=tags, description="Live sessions continue. Every spawn is refused with 423 `zone_frozen`.",
        ),
        Route(
            "POST", "/zones/{zone}/thaw", handlers.thaw, "Allow admission to a zone again", ADMIN, errors=zone_errors,
            tags=tags,
        ),
    ]  # fmt: skip
