"""Written by `make sdk` from `sdk/client.py`: change that, or `generate`, and not this."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from quarterdeck.sdk import client
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.sync.agents import Agents
from quarterdeck.sdk.sync.coordinator import Coordinator
from quarterdeck.sdk.sync.costs import Budgets, Costs
from quarterdeck.sdk.sync.delegations import Delegations
from quarterdeck.sdk.sync.events import Events
from quarterdeck.sdk.sync.invocations import Invocations
from quarterdeck.sdk.sync.members import Members
from quarterdeck.sdk.sync.services import Services
from quarterdeck.sdk.sync.sessions import Sessions
from quarterdeck.sdk.sync.tasks import Tasks
from quarterdeck.sdk.sync.webhooks import Webhooks
from quarterdeck.sdk.sync.zones import Zones
from quarterdeck.sdk.transport import Options, TokenSource


class Quarterdeck:
    """A client for one zone. Nothing is looked for before the first call; `close` lets go of everything."""

    def __init__(self, inner: client.Quarterdeck, background: LoopThread) -> None:
        self._inner = inner
        self._background = background
        self.zones = Zones(inner.zones, background)
        self.sessions = Sessions(inner.sessions, background)
        self.services = Services(inner.services, background)
        self.invocations = Invocations(inner.invocations, background)
        self.delegations = Delegations(inner.delegations, background)
        self.events = Events(inner.events, background)
        self.agents = Agents(inner.agents, background)
        self.tasks = Tasks(inner.tasks, background)
        self.members = Members(inner.members, background)
        self.coordinator = Coordinator(inner.coordinator, background)
        self.costs = Costs(inner.costs, background)
        self.budgets = Budgets(inner.budgets, background)
        self.webhooks = Webhooks(inner.webhooks, background)

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
        return cls(client.Quarterdeck.connect(url, token, zone, data, options), LoopThread())

    @property
    def zone(self) -> str:
        return self._inner.zone

    def in_zone(self, zone: str) -> Quarterdeck:
        """A client for another zone, over the same connections."""
        return Quarterdeck(self._inner.in_zone(zone), self._background)

    def close(self) -> None:
        self._background.finish(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
