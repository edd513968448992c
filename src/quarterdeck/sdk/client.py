"""The client: one zone of one server, by its nouns."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from quarterdeck.client.discovery import Where, zone_named
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
from quarterdeck.sdk.transport import Options, Remote, TokenSource
from quarterdeck.sdk.webhooks import Webhooks
from quarterdeck.sdk.zones import Zones


class Quarterdeck:
    """A client for one zone. Nothing is looked for before the first call; `close` lets go of everything."""

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

    def __init__(self, remote: Remote, zone: str) -> None:
        self._remote = remote
        self._zone = zone
        self.zones = Zones(remote, zone)
        self.sessions = Sessions(remote, zone)
        self.services = Services(remote, zone)
        self.invocations = Invocations(remote, zone)
        self.delegations = Delegations(remote, zone)
        self.events = Events(remote, zone)
        self.agents = Agents(remote, zone)
        self.tasks = Tasks(remote, zone)
        self.members = Members(remote, zone)
        self.coordinator = Coordinator(remote, zone)
        self.costs = Costs(remote, zone)
        self.budgets = Budgets(remote, zone)
        self.webhooks = Webhooks(remote, zone)

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        token: str | TokenSource | None = None,
        zone: str | None = None,
        data: str | None = None,
        options: Options | None = None,
    ) -> Quarterdeck:
        """A client of the server at `url` (or QD_URL), or of the server of the data directory `data` (or QD_DATA, or
        the user's), which is started if none runs. The token is the one given, or QD_TOKEN, or the directory's; the
        zone the one given, or QD_ZONE, or `default`."""
        options = options or Options()
        where = Where(data, url, token if isinstance(token, str) else None, options.timeout)
        source = None if token is None or isinstance(token, str) else token
        return cls(Remote(where, options, source), zone_named(zone))

    @property
    def zone(self) -> str:
        return self._zone

    def in_zone(self, zone: str) -> Quarterdeck:
        """A client for another zone, over the same connections."""
        return Quarterdeck(self._remote, zone)

    async def close(self) -> None:
        await self._remote.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
