"""Routes for services. Most actions have two paths: below the session that registered the service, and without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import Listing, Page, PageQuery
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.services.model import (
    Heartbeat,
    HeartbeatResult,
    ListServicesQuery,
    Register,
    RegisteredService,
    RegisterServiceBody,
    RegisterSessionServiceBody,
    Service,
    ServiceFilter,
    ServiceHealth,
    ServiceHeartbeatBody,
    ServiceView,
    SessionHeartbeatBody,
    SessionHeartbeatView,
    ShowService,
    Unregister,
    UnregisterResult,
    Update,
    UpdateServiceBody,
)
from quarterdeck.domain.services.operations import reads
from quarterdeck.domain.services.rules import endpoint_urls, states
from quarterdeck.domain.services.rules.update import update_from_body
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Service]("agent-services")


@dataclass(frozen=True, slots=True)
class ServiceHandlers:
    engine: Engine
    secrets: SecretDeriver
    submit_register: Callable[[Register], Awaitable[RegisteredService]]
    submit_update: Callable[[Update], Awaitable[RegisteredService]]
    submit_heartbeat: Callable[[Heartbeat], Awaitable[HeartbeatResult]]
    submit_unregister: Callable[[Unregister], Awaitable[UnregisterResult]]
    submit_show: Callable[[ShowService], Awaitable[Service]]

    async def register(self, call: Call[RegisterServiceBody, None]) -> Reply[ServiceView]:
        body = call.body
        return await self._register(call, body, body.agent_id)

    async def register_for_session(self, call: Call[RegisterSessionServiceBody, None]) -> Reply[ServiceView]:
        return await self._register(call, call.body, call.params["id"])

    async def list_services(self, call: Call[None, ListServicesQuery]) -> Reply[Page[ServiceView]]:
        return await self._list(call, application_id=call.query.application_id, health=call.query.health)

    async def list_session_services(self, call: Call[None, PageQuery]) -> Reply[Page[ServiceView]]:
        return await self._list(call, session_id=call.params["id"])

    async def show(self, call: Call[None, None]) -> ServiceView:
        service_id, session_id = _service_and_session(call)
        command = ShowService(call.zone_id, service_id, session_id, call.caller.bearer)
        return states.view(await self.submit_show(command))

    async def update(self, call: Call[UpdateServiceBody, None]) -> Reply[ServiceView]:
        body = call.body
        service_id, session_id = _service_and_session(call)
        updated = await self.submit_update(
            Update(
                **call.caller_fields,
                service_id=service_id,
                session_id=session_id,
                update=update_from_body(body),
                rotate_secret=body.rotate_secret,
            )
        )
        return self._service_reply(updated, 200)

    async def heartbeat(self, call: Call[ServiceHeartbeatBody, None]) -> ServiceView:
        result = await self._record_heartbeat(call, call.body, *_service_and_session(call))
        return states.view(result.services[0])

    async def session_heartbeat(self, call: Call[SessionHeartbeatBody, None]) -> SessionHeartbeatView:
        body = call.body
        result = await self._record_heartbeat(call, body, body.service_id, call.params["id"])
        return SessionHeartbeatView(len(result.services), iso(result.at))

    async def unregister(self, call: Call[None, None]) -> Reply[None]:
        service_id, session_id = _service_and_session(call)
        await self.submit_unregister(Unregister(**call.caller_fields, service_id=service_id, session_id=session_id))
        return Reply(None, 204)

    async def _register(
        self, call: AnyCall, body: RegisterSessionServiceBody | RegisterServiceBody, session_id: str | None
    ) -> Reply[ServiceView]:
        if problem := endpoint_urls.endpoint_problem(body.endpoint_url):
            raise problem
        registered = await self.submit_register(
            Register(
                id=new_id(),
                **call.caller_fields,
                endpoint_url=body.endpoint_url,
                application_id=body.application_id,
                session_id=session_id,
                update=update_from_body(body),
            )
        )
        return self._service_reply(registered, 201 if registered.created else 200)

    def _service_reply(self, result: RegisteredService, status: int) -> Reply[ServiceView]:
        service = result.service
        if not result.include_secret:
            return Reply(states.view(service), status)
        secret = self.secrets(service.zone_id, service.id, service.secret_number)
        # No proxy may cache the response, because it contains the secret.
        view = msgspec.structs.replace(states.view(service), secret=secret)
        return Reply(view, status, [("cache-control", "no-store")])

    async def _record_heartbeat(
        self, call: AnyCall, body: ServiceHeartbeatBody, service_id: str | None, session_id: str | None
    ) -> HeartbeatResult:
        return await self.submit_heartbeat(
            Heartbeat(**call.caller_fields, service_id=service_id, session_id=session_id, update=update_from_body(body))
        )

    async def _list(
        self,
        call: Call[None, PageQuery],
        session_id: str | None = None,
        application_id: str | None = None,
        health: ServiceHealth | None = None,
    ) -> Reply[Page[ServiceView]]:
        filters = ServiceFilter(
            **LISTING.page_fields(call), session_id=session_id, application_id=application_id, health=health
        )
        rows = await self.engine.read(lambda tx: reads.list_services(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, states.view, Page)


def _service_and_session(call: AnyCall) -> tuple[str, str | None]:
    """Return the service id from the path, and the session id if the path has one."""
    if "service" in call.params:
        return call.params["service"], call.params["id"]
    return call.params["id"], None


REGISTER_DESCRIPTION = (
    "Application and endpoint identify a service. Returns 201 for a new service or one that was unregistered. Returns "
    "200 for a registered one; fields in the request then replace the stored values, and omitted fields keep theirs. "
    "The response contains the secret that signs pushes (Standard Webhooks) only if delivery becomes `push`. If you "
    "lose the secret, rotate it."
)
SESSION_LIFETIME_DESCRIPTION = (
    " The registration ends with the session. The service stays registered while it has another registration."
)
UPDATE_DESCRIPTION = (
    "Fields in the request replace the stored values; omitted fields keep theirs. The response contains the secret if "
    "`rotate_secret` is true or delivery becomes `push`. It is a new secret each time. Pushes are signed with the new "
    "secret and with the previous one."
)
HEARTBEAT_DESCRIPTION = (
    "The body may be empty, or contain health, active invocations and metadata. The heartbeat writes an event only if "
    "the health changes."
)
UNREGISTER_DESCRIPTION = (
    "Returns 204, also for a repeated request. When no registration is left, the service's pending and running "
    "invocations are canceled. "
)


def routes(handlers: ServiceHandlers) -> list[Route]:
    session_path, base_path = "/zones/{zone}/agents/{id}", "/zones/{zone}/agent-services"
    tags = ("services",)
    register_errors = (
        "invalid_endpoint_url", "application_ownership_required", "agent_not_found", "application_mismatch",
        "agent_suspended", "zone_not_found", "zone_ended",
    )  # fmt: skip
    return [
        Route(
            "POST", f"{session_path}/services", handlers.register_for_session, "Register a service of a session",
            LIFECYCLE, status=201, errors=register_errors, tags=tags,
            description=REGISTER_DESCRIPTION + SESSION_LIFETIME_DESCRIPTION, returns_existing=True,
        ),
        Route(
            "GET", f"{session_path}/services", handlers.list_session_services,
            "List a session's services, newest first", LIFECYCLE, errors=("agent_not_found", "invalid_cursor"),
            tags=tags,
        ),
        Route(
            "POST", base_path, handlers.register, "Register a service of an application", LIFECYCLE, status=201,
            errors=register_errors, tags=tags, returns_existing=True,
            description=REGISTER_DESCRIPTION + " With `agent_id`, the registration ends with "
            "that session. Without it, the service stays registered until it is unregistered or its zone ends.",
        ),
        Route(
            "GET", base_path, handlers.list_services, "List services, newest first", LIFECYCLE,
            errors=("zone_not_found", "invalid_cursor"), tags=tags,
        ),
        Route(
            "POST", f"{session_path}/heartbeat", handlers.session_heartbeat,
            "Send a heartbeat for a session's services", LIFECYCLE, tags=tags, description=HEARTBEAT_DESCRIPTION,
            errors=("agent_not_found", "agent_service_not_found", "application_ownership_required"),
        ),
        *_service_routes(
            handlers, session_path + "/services/{service}", ("agent_not_found",),
            "Deletes only this session's registration.",
        ),
        *_service_routes(handlers, base_path + "/{id}", (), "Deletes all registrations of the service."),
    ]  # fmt: skip


def _service_routes(
    handlers: ServiceHandlers, path: str, not_found_errors: tuple[str, ...], unregister_effect: str
) -> list[Route]:
    """Return the routes for one service, below `path`."""
    not_found_errors = (*not_found_errors, "agent_service_not_found")
    owner_errors = (*not_found_errors, "application_ownership_required")
    tags = ("services",)
    return [
        Route("GET", path, handlers.show, "Show a service", LIFECYCLE, errors=not_found_errors, tags=tags),
        Route(
            "PATCH", path, handlers.update, "Change a service", LIFECYCLE,
            errors=(*owner_errors, "invalid_endpoint_url"), tags=tags, description=UPDATE_DESCRIPTION,
        ),
        Route(
            "DELETE", path, handlers.unregister, "Unregister a service", LIFECYCLE, status=204, errors=owner_errors,
            tags=tags, description=UNREGISTER_DESCRIPTION + unregister_effect,
        ),
        Route(
            "POST", f"{path}/heartbeat", handlers.heartbeat, "Send a heartbeat for a service", LIFECYCLE,
            errors=owner_errors, tags=tags, description=HEARTBEAT_DESCRIPTION,
        ),
    ]  # fmt: skip
