"""The client for one zone of a server."""

from __future__ import annotations

from types import TracebackType
from typing import Self, get_type_hints

from quarterdeck.client.discovery import ServerLocation, resolve_zone
from quarterdeck.sdk.agents import Agents
from quarterdeck.sdk.coordinator import Coordinator
from quarterdeck.sdk.costs import Budgets, Costs
from quarterdeck.sdk.delegations import Delegations
from quarterdeck.sdk.events import Events
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.members import Members
from quarterdeck.sdk.services import Services
from quarterdeck.sdk.sessions import Sessions
from quarterdeck.sdk.tasks import Tasks
from quarterdeck.sdk.transport import Options, TokenSource, Transport
from quarterdeck.sdk.webhooks import Webhooks
from quarterdeck.sdk.zones import Zones


class Quarterdeck:
    """A client for one zone. It connects on the first call. `close` closes all connections."""

    zones: Zones
    sessions: Sessions
    services: Services
    invocations: Invocations
    delegations: Delegations
    events: Events
    agents: Agents
    tasks: Tasks
    members: Members
    coordinator: Coordinator
    costs: Costs
    budgets: Budgets
    webhooks: Webhooks

    def __init__(self, transport: Transport, zone: str) -> None:
        self._transport = transport
        self._zone = zone
        for name, resource_class in _RESOURCE_CLASSES.items():
            setattr(self, name, resource_class(transport, zone))

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        token: str | TokenSource | None = None,
        zone: str | None = None,
        data: str | None = None,
        options: Options | None = None,
    ) -> Quarterdeck:
        """Create a client.

        `url`: the server's URL. Default: QD_URL, else the data directory's server, which is started if needed.
        `token`: a token or API key, or a function that returns one. Default: QD_TOKEN, else the data directory's.
        `zone`: default QD_ZONE, else `default`.
        `data`: the data directory. Default: QD_DATA, else the user's data directory.
        """
        options = options or Options()
        location = ServerLocation(data, url, token if isinstance(token, str) else None, options.timeout)
        token_source = None if token is None or isinstance(token, str) else token
        return cls(Transport(location, options, token_source), resolve_zone(zone))

    @property
    def zone(self) -> str:
        return self._zone

    def in_zone(self, zone: str) -> Quarterdeck:
        """Create a client for another zone. It shares the connections of this client."""
        return Quarterdeck(self._transport, zone)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


_RESOURCE_CLASSES = get_type_hints(Quarterdeck)
