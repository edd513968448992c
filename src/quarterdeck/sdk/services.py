"""Services: registered, described, kept alive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Unpack

from quarterdeck.sdk.errors import NotFound
from quarterdeck.sdk.options import ServiceOptions, encode_options
from quarterdeck.sdk.resource import Resource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Health, Page, Service


class Services(Resource):
    async def register(
        self, application_id: str, endpoint_url: str, *, agent_id: str | None = None, **options: Unpack[ServiceOptions]
    ) -> Service:
        """Registers what an application offers at an endpoint, or describes anew what it offers there already. With an
        `agent_id` it is registered for as long as that session lives. The secret of a new push service is in this
        answer and in no later one; if the answer was lost, `rotate_secret` gives another."""
        body = {"application_id": application_id, "endpoint_url": endpoint_url, "agent_id": agent_id}
        body = {name: value for name, value in body.items() if value is not None}
        return await self._call(
            ApiCall(
                "POST",
                self._path("agent-services"),
                body=body | encode_options(ServiceOptions, options),
                is_idempotent=True,
            ),
            Service,
        )

    async def get(self, service_id: str) -> Service:
        return await self._get(self._path("agent-services", service_id), Service)

    def list(self, *, application_id: str | None = None, health: Health | None = None) -> AsyncIterator[Service]:
        """Newest first."""
        filters = {"application_id": application_id, "health": health}
        return self._iter_items(self._path("agent-services"), filters, Page[Service])

    async def find(self, application_id: str) -> Service:
        """The service of an application, the newest if it has several."""
        async for service in self.list(application_id=application_id):
            return service
        raise NotFound("agent_service_not_found", f"The application {application_id!r} offers no service here.")

    async def patch(self, service_id: str, **options: Unpack[ServiceOptions]) -> Service:
        """Changes what is named, and leaves the rest."""
        return await self._call(
            ApiCall(
                "PATCH",
                self._path("agent-services", service_id),
                body=encode_options(ServiceOptions, options),
                is_idempotent=True,
            ),
            Service,
        )

    async def unregister(self, service_id: str) -> None:
        """Takes a service back, whoever registered it: nothing new is asked of it, and what waits is canceled."""
        await self._transport.send(ApiCall("DELETE", self._path("agent-services", service_id), is_idempotent=True))

    async def rotate_secret(self, service_id: str) -> Service:
        """From now on pushes are signed with another secret, which this answer shows."""
        return await self._call(
            ApiCall("PATCH", self._path("agent-services", service_id), body={"rotate_secret": True}), Service
        )

    async def heartbeat(
        self,
        service_id: str,
        *,
        health: Health | None = None,
        active_invocations: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Says that it is there, and how it is."""
        fields = {"health": health, "active_invocations": active_invocations, "metadata": metadata}
        body = {name: value for name, value in fields.items() if value is not None}
        path = self._path("agent-services", service_id, "heartbeat")
        await self._transport.send(ApiCall("POST", path, body=body, is_idempotent=True))
