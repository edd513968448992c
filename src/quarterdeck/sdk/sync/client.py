"""Written by `make sdk` from `sdk/client.py`: do not edit."""

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

    def __init__(self, inner: client.Quarterdeck, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread
        self.zones = Zones(inner.zones, loop_thread)
        self.sessions = Sessions(inner.sessions, loop_thread)
        self.services = Services(inner.services, loop_thread)
        self.invocations = Invocations(inner.invocations, loop_thread)
        self.delegations = Delegations(inner.delegations, loop_thread)
        self.events = Events(inner.events, loop_thread)
        self.agents = Agents(inner.agents, loop_thread)
        self.tasks = Tasks(inner.tasks, loop_thread)
        self.members = Members(inner.members, loop_thread)
        self.coordinator = Coordinator(inner.coordinator, loop_thread)
        self.costs = Costs(inner.costs, loop_thread)
        self.budgets = Budgets(inner.budgets, loop_thread)
        self.webhooks = Webhooks(inner.webhooks, loop_thread)

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
        return Quarterdeck(self._inner.in_zone(zone), self._loop_thread)

    def close(self) -> None:
        self._loop_thread.finish(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
