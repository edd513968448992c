"""Written by `make sdk` from `sdk/services.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Unpack

from quarterdeck.sdk import services
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import ServiceOptions
from quarterdeck.sdk.types import Health, Service


class Services:
    def __init__(self, inner: services.Services, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def register(
        self, application_id: str, endpoint_url: str, *, agent_id: str | None = None, **options: Unpack[ServiceOptions]
    ) -> Service:
        """Registers what an application offers at an endpoint, or describes anew what it offers there already. With an
        `agent_id` it is registered for as long as that session lives. The secret of a new push service is in this
        answer and in no later one; if the answer was lost, `rotate_secret` gives another."""
        return self._loop_thread.run(self._inner.register(application_id, endpoint_url, agent_id=agent_id, **options))

    def get(self, service_id: str) -> Service:
        return self._loop_thread.run(self._inner.get(service_id))

    def list(self, *, application_id: str | None = None, health: Health | None = None) -> Iterator[Service]:
        """Newest first."""
        return self._loop_thread.iterate(self._inner.list(application_id=application_id, health=health))

    def find(self, application_id: str) -> Service:
        """The service of an application, the newest if it has several."""
        return self._loop_thread.run(self._inner.find(application_id))

    def patch(self, service_id: str, **options: Unpack[ServiceOptions]) -> Service:
        """Changes what is named, and leaves the rest."""
        return self._loop_thread.run(self._inner.patch(service_id, **options))

    def unregister(self, service_id: str) -> None:
        """Takes a service back, whoever registered it: nothing new is asked of it, and what waits is canceled."""
        self._loop_thread.run(self._inner.unregister(service_id))

    def rotate_secret(self, service_id: str) -> Service:
        """From now on pushes are signed with another secret, which this answer shows."""
        return self._loop_thread.run(self._inner.rotate_secret(service_id))

    def heartbeat(
        self,
        service_id: str,
        *,
        health: Health | None = None,
        active_invocations: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Says that it is there, and how it is."""
        self._loop_thread.run(
            self._inner.heartbeat(service_id, health=health, active_invocations=active_invocations, metadata=metadata)
        )
