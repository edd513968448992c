"""A fleet whose members run in panes of a private tmux server, and the notifier that types into the panes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from quarterdeck.domain.fleets.background.pane_notifier import NotifierDeps, PaneNotifier
from quarterdeck.domain.fleets.model.commands import PaneLocation
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member, Message
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.store.interface import decode
from quarterdeck.tmux.coding_agents import merge_coding_agents
from quarterdeck.tmux.host import this_host
from tests.support.eventually import eventually
from tests.support.fleets import DIRECTOR, FleetHarness
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.structs import build_struct
from tests.support.tmux import FakeAgentLog, TmuxServer


class PaneFleetHarness(FleetHarness):
    def __init__(
        self, runtime: RuntimeHarness, tmux: TmuxServer, settings: FleetSettings, grace_seconds: float
    ) -> None:
        super().__init__(runtime)
        self.tmux = tmux
        deps = NotifierDeps(runtime.cross_zone_engine, self.submit_message, this_host(), merge_coding_agents(None))
        self.notifier = PaneNotifier(deps, settings, grace_seconds)
        self.panes: dict[int, str] = {}
        self.held_back: list[Message] | None = None
        """If it is a list, delivered messages go there instead of to the notifier."""

    def _deliver(self, messages: Sequence[Message]) -> None:
        if self.held_back is None:
            self.notifier.notify(messages)
        else:
            self.held_back += messages

    def pane_location(
        self, pane_id: str | None, tmux: TmuxServer | None = None, /, **fields: str | int
    ) -> PaneLocation:
        tmux, host = tmux or self.tmux, this_host()
        defaults: dict[str, object] = {
            "session": "main",
            "window_id": tmux.window,
            "pane_id": pane_id,
            "coding_agent": "claude",
            "host_id": host.id,
            "user_id": host.user_id,
            "socket": tmux.socket,
            "tmux_pid": tmux.pid,
        }
        return build_struct(PaneLocation, **(defaults | fields))

    async def register_in_pane(self, location: PaneLocation) -> Member:
        result = await self.register(location=location, director_id=DIRECTOR)
        if location.pane_id is not None:
            self.panes[result.member.agent_id] = location.pane_id
        return result.member

    async def register_with_agent(self, behaviour: str = "") -> Member:
        """Register a member whose fake agent is ready in its own pane."""
        pane_id = self.tmux.new_pane(behaviour=behaviour)
        self.tmux.wait_for_agent(pane_id)
        return await self.register_in_pane(self.pane_location(pane_id))

    def agent_log(self, member: Member) -> FakeAgentLog:
        return self.tmux.wait_for_agent_log(self.tmux.pid_of(self.panes[member.agent_id]))

    async def read_message(self, message: Message) -> Message:
        [rows] = await self.runtime.engine.read(
            lambda tx: tx.read(Q.messages_get(batch=[message.ref])), zones=[self.zone_id]
        )
        [found] = decode(rows, Message)
        return found

    async def wait_for_receipts(self, *messages: Message) -> list[Message]:
        """Wait until each message has its receipt. Return the messages."""

        async def all_have() -> bool:
            found = [await self.read_message(message) for message in messages]
            return all(message.notified_at is not None or message.notice is not None for message in found)

        await eventually(all_have, f"{len(messages)} messages had their receipts")
        return [await self.read_message(message) for message in messages]


@contextlib.asynccontextmanager
async def open_pane_fleet(
    url: str, tmux: TmuxServer, grace_seconds: float = 10.0, notice_seconds: float = 5.0
) -> AsyncIterator[PaneFleetHarness]:
    async with open_runtime(url) as runtime:
        await runtime.put_zone()
        settings = FleetSettings(fleet_notice_seconds=notice_seconds)
        harness = PaneFleetHarness(runtime, tmux, settings, grace_seconds)
        await harness.create()
        yield harness
        await harness.notifier.stop()
