"""The route table of services: each verb by the session that registered a service, and by the service alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.core.webhook_signing import Secrets
from quarterdeck.domain.services import operations, rules
from quarterdeck.domain.services.model import (
    AgentHeartbeatBody,
    Beat,
    Beaten,
    Change,
    ChangeBody,
    HeartbeatBody,
    HeartbeatView,
    ListOwnServicesQuery,
    ListServicesQuery,
    Register,
    RegisterBody,
    Registered,
    RegisterServiceBody,
    Service,
    ServiceFilter,
    ServiceList,
    ServiceRef,
    ServiceView,
    Unregister,
    Unregistered,
)
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Engine

LISTING = "agent-services"


@dataclass(frozen=True, slots=True)
class ServiceDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    secrets: Secrets
    submit_register: Callable[[Register], Awaitable[Registered]]
    submit_change: Callable[[Change], Awaitable[Registered]]
    submit_beat: Callable[[Beat], Awaitable[Beaten]]
    submit_unregister: Callable[[Unregister], Awaitable[Unregistered]]
    submit_show: Callable[[ServiceRef], Awaitable[Service]]

    async def register(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, RegisterServiceBody)
        return await self._register(call, body, body.agent_id)

    async def register_own(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, RegisterBody)
        return await self._register(call, body, call.params["id"])

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListServicesQuery)
        before = paging.decode(LISTING, query.cursor) if query.cursor else None
        wanted = ServiceFilter(
            call.zone,
            query.limit,
            before,
            application_id=query.application_id,
            health=query.health,
            bearer=call.caller.bearer,
        )
        return await self._page(call, wanted)

    async def list_own(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListOwnServicesQuery)
        before = paging.decode(LISTING, query.cursor) if query.cursor else None
        wanted = ServiceFilter(call.zone, query.limit, before, session_id=call.params["id"], bearer=call.caller.bearer)
        return await self._page(call, wanted)

    async def show(self, call: Call) -> ServiceView:
        service_id, session_id = _named(call)
        ref = ServiceRef(call.zone, service_id, session_id, call.caller.bearer)
        return rules.view(await self.submit_show(ref))

    async def change(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, ChangeBody)
        service_id, session_id = _named(call)
        changed = await self.submit_change(
            Change(
                zone_id=call.zone,
                caller=call.caller,
                trace=call.trace,
                service_id=service_id,
                session_id=session_id,
                said=rules.said_of(body),
                rotates=body.rotate_secret,
            )
        )
        return self._shown(changed, 200)

    async def heartbeat(self, call: Call) -> ServiceView:
        body = call.body
        assert isinstance(body, HeartbeatBody)
        beaten = await self._beat(call, body, *_named(call))
        return rules.view(beaten.services[0])

    async def agent_heartbeat(self, call: Call) -> HeartbeatView:
        body = call.body
        assert isinstance(body, AgentHeartbeatBody)
        beaten = await self._beat(call, body, body.service_id, call.params["id"])
        return HeartbeatView(len(beaten.services), iso(beaten.at))

    async def unregister(self, call: Call) -> Reply:
        service_id, session_id = _named(call)
        await self.submit_unregister(
            Unregister(
                zone_id=call.zone, caller=call.caller, trace=call.trace, service_id=service_id, session_id=session_id
            )
        )
        return Reply(None, 204)

    async def _register(self, call: Call, body: RegisterBody | RegisterServiceBody, session_id: str | None) -> Reply:
        if problem := rules.endpoint_problem(body.endpoint_url):
            raise problem
        registered = await self.submit_register(
            Register(
                id=new_id(),
                zone_id=call.zone,
                caller=call.caller,
                trace=call.trace,
                endpoint_url=body.endpoint_url,
                application_id=body.application_id,
                session_id=session_id,
                said=rules.said_of(body),
            )
        )
        return self._shown(registered, 201 if registered.created else 200)

    def _shown(self, outcome: Registered, status: int) -> Reply:
        service = outcome.service
        if not outcome.shows_secret:
            return Reply(rules.view(service), status)
        secret = self.secrets(service.zone_id, service.id, service.secret_number)
        # Nobody between the two ends may keep the one answer that holds a secret.
        return Reply(rules.view(service, secret), status, [("cache-control", "no-store")])

    async def _beat(self, call: Call, body: HeartbeatBody, service_id: str | None, session_id: str | None) -> Beaten:
        return await self.submit_beat(
            Beat(
                zone_id=call.zone,
                caller=call.caller,
                trace=call.trace,
                service_id=service_id,
                session_id=session_id,
                said=rules.said_of(body),
            )
        )

    async def _page(self, call: Call, wanted: ServiceFilter) -> Reply:
        asked = msgspec.structs.replace(wanted, limit=wanted.limit + 1)
        services = await self.engine.read(lambda tx: operations.page(tx, asked), zones=zones_of([asked]))
        shown, last = paging.clip([service.id for service in services], wanted.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = ServiceList([rules.view(service) for service in services[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))


def _named(call: Call) -> tuple[str, str | None]:
    """The service a path names, and the session it leads through, if it does."""
    if "service" in call.params:
        return call.params["service"], call.params["id"]
    return call.params["id"], None


REGISTERING = (
    "A service is known by its application and its endpoint: 201 when it is new or comes back, 200 when it is known, "
    "and then what is said replaces what was there and what is not said stays. With `delivery: push` the 201 holds the "
    "secret that pushes are signed with (Standard Webhooks), this once; if that answer was lost, rotate it."
)
WHILE = " It is registered while one of the sessions that registered it lives."
CHANGING = (
    "What is said replaces what was there. The secret is in the answer when `rotate_secret` is true, and when the "
    "delivery becomes push: another each time, and the one before it still signs."
)
BEATING = "An empty body is fine. Health and metadata may be told along; only a change of health is an event."
UNREGISTERING = "204, and 204 again when repeated. What was still to be invoked is canceled. "


def routes(desk: ServiceDesk) -> list[Route]:
    own, base = "/zones/{zone}/agents/{id}", "/zones/{zone}/agent-services"
    tags = ("services",)
    registers = (
        "invalid_endpoint_url", "application_ownership_required", "agent_not_found", "application_mismatch",
        "agent_suspended", "zone_not_found", "zone_ended",
    )  # fmt: skip
    return [
        Route(
            "POST", f"{own}/services", desk.register_own, "Register a service of a session", LIFECYCLE,
            body=RegisterBody, answer=ServiceView, status=201, refusals=registers, tags=tags,
            description=REGISTERING + WHILE, may_be_known=True,
        ),
        Route(
            "GET", f"{own}/services", desk.list_own, "List a session's services, newest first", LIFECYCLE,
            query=ListOwnServicesQuery, answer=ServiceList, refusals=("agent_not_found", "invalid_cursor"), tags=tags,
        ),
        Route(
            "POST", base, desk.register, "Register a service of an application", LIFECYCLE, body=RegisterServiceBody,
            answer=ServiceView, status=201, refusals=registers, tags=tags, may_be_known=True,
            description=REGISTERING + " With an `agent_id` it is that session's; without one it stays until it is "
            "unregistered.",
        ),
        Route(
            "GET", base, desk.list_all, "List services, newest first", LIFECYCLE, query=ListServicesQuery,
            answer=ServiceList, refusals=("zone_not_found", "invalid_cursor"), tags=tags,
        ),
        Route(
            "POST", f"{own}/heartbeat", desk.agent_heartbeat, "Tell that a session's services live", LIFECYCLE,
            body=AgentHeartbeatBody, answer=HeartbeatView, tags=tags, description=BEATING,
            refusals=("agent_not_found", "agent_service_not_found", "application_ownership_required"),
        ),
        *_of_one(desk, own + "/services/{service}", ("agent_not_found",), "Only this session's registration."),
        *_of_one(desk, base + "/{id}", (), "Whoever registered it."),
    ]  # fmt: skip


def _of_one(desk: ServiceDesk, path: str, missing: tuple[str, ...], whose: str) -> list[Route]:
    """What can be done with one service, by either of its paths."""
    missing = (*missing, "agent_service_not_found")
    owned = (*missing, "application_ownership_required")
    tags = ("services",)
    return [
        Route("GET", path, desk.show, "Show a service", LIFECYCLE, answer=ServiceView, refusals=missing, tags=tags),
        Route(
            "PATCH", path, desk.change, "Change a service", LIFECYCLE, body=ChangeBody, answer=ServiceView,
            refusals=(*owned, "invalid_endpoint_url"), tags=tags, description=CHANGING,
        ),
        Route(
            "DELETE", path, desk.unregister, "Unregister a service", LIFECYCLE, status=204, refusals=owned, tags=tags,
            description=UNREGISTERING + whose,
        ),
        Route(
            "POST", f"{path}/heartbeat", desk.heartbeat, "Tell that a service lives", LIFECYCLE, body=HeartbeatBody,
            answer=ServiceView, refusals=owned, tags=tags, description=BEATING,
        ),
    ]  # fmt: skip
