"""Services: registration, description and heartbeats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Unpack

from quarterdeck.sdk.errors import NotFound
from quarterdeck.sdk.options import ServiceOptions
from quarterdeck.sdk.resource import Resource, encode_options, without_none
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Health, Page, Service


class Services(Resource):
    async def register(
        self, application_id: str, endpoint_url: str, *, agent_id: str | None = None, **options: Unpack[ServiceOptions]
    ) -> Service:
        """Register an application's service at an endpoint, or replace its description if it is registered.

        With `agent_id`, the id of a session, the registration ends with that session. Only this response contains the
        secret of a new push service. If the response is lost, `rotate_secret` creates another secret.
        """
        fields = {"application_id": application_id, "endpoint_url": endpoint_url, "agent_id": agent_id}
        body = without_none(fields) | encode_options(ServiceOptions, options)
        return await self._change("POST", self._path("agent-services"), Service, body)

    async def get(self, service_id: str) -> Service:
        return await self._get(self._path("agent-services", service_id), Service)

    def list(self, *, application_id: str | None = None, health: Health | None = None) -> AsyncIterator[Service]:
        """Iterate over services, newest first."""
        filters = {"application_id": application_id, "health": health}
        return self._iter_items(self._path("agent-services"), filters, Page[Service])

    async def find(self, application_id: str) -> Service:
        """The newest service of an application. Raises `NotFound` if it has none."""
        async for service in self.list(application_id=application_id):
            return service
        raise NotFound("agent_service_not_found", f"The application {application_id!r} has no service in this zone.")

    async def patch(self, service_id: str, **options: Unpack[ServiceOptions]) -> Service:
        """Change the given fields."""
        path, body = self._path("agent-services", service_id), encode_options(ServiceOptions, options)
        return await self._change("PATCH", path, Service, body)

    async def unregister(self, service_id: str) -> None:
        """Unregister a service and all its registrations. It gets no new invocations, and pending ones are canceled."""
        await self._send(ApiCall("DELETE", self._path("agent-services", service_id), is_idempotent=True))

    async def rotate_secret(self, service_id: str) -> Service:
        """Replace the secret that signs pushes. Only this response contains the new secret."""
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
        """Send a heartbeat with the service's health."""
        body = without_none({"health": health, "active_invocations": active_invocations, "metadata": metadata})
        path = self._path("agent-services", service_id, "heartbeat")
        await self._send(ApiCall("POST", path, body=body, is_idempotent=True))
