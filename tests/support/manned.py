"""A fleet whose members are in panes of a tmux server of one's own, and the notifier that types to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from quarterdeck.domain.fleets.model.commands import PaneLocation
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member, Message
from quarterdeck.domain.fleets.pane_notifier import NotifierDeps, PaneNotifier
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.store.interface import decode
from quarterdeck.tmux.coding_agents import merge_coding_agents
from quarterdeck.tmux.host import this_host
from tests.support.eventually import eventually
from tests.support.fleeting import DIRECTOR, Fleeting
from tests.support.keel import Keel, keel_on
from tests.support.making import struct_of
from tests.support.tmux import Heard, TmuxServer


class Manned(Fleeting):
    def __init__(self, keel: Keel, tmux: TmuxServer, told: FleetSettings, grace_seconds: float) -> None:
        super().__init__(keel)
        self.tmux = tmux
        means = NotifierDeps(keel.everywhere, self.talk.submit, this_host(), merge_coding_agents(None))
        self.notifier = PaneNotifier(means, told, grace_seconds)
        self.panes: dict[int, str] = {}
        self.held: list[Message] | None = None
        """A list holds back what is delivered, for whoever looks at the moment after a commit."""

    def _deliver(self, messages: Sequence[Message]) -> None:
        if self.held is None:
            self.notifier.notify(messages)
        else:
            self.held += messages

    def at(self, pane_id: str | None, tmux: TmuxServer | None = None, /, **said: str | int) -> PaneLocation:
        tmux, host = tmux or self.tmux, this_host()
        plain: dict[str, object] = {
            "session": "main",
            "window_id": tmux.window,
            "pane_id": pane_id,
            "coding_agent": "claude",
            "host_id": host.id,
            "user_id": host.user_id,
            "socket": tmux.socket,
            "tmux_pid": tmux.pid,
        }
        return struct_of(PaneLocation, **(plain | said))

    async def member(self, place: PaneLocation) -> Member:
        made = await self.register(location=place, director_id=DIRECTOR)
        if place.pane_id is not None:
            self.panes[made.member.agent_id] = place.pane_id
        return made.member

    async def staffed(self, fake: str = "") -> Member:
        """A member whose agent listens in a pane of its own."""
        pane_id = self.tmux.new_pane(fake=fake)
        self.tmux.ready(pane_id)
        return await self.member(self.at(pane_id))

    def heard(self, member: Member) -> Heard:
        return self.tmux.heard_by(self.tmux.pid_of(self.panes[member.agent_id]))

    async def now(self, message: Message) -> Message:
        [rows] = await self.keel.engine.read(
            lambda tx: tx.read(Q.messages_get(batch=[message.ref])), zones=[self.zone_id]
        )
        [found] = decode(rows, Message)
        return found

    async def received(self, *messages: Message) -> list[Message]:
        """These messages, once each has its receipt."""

        async def all_have() -> bool:
            found = [await self.now(message) for message in messages]
            return all(each.notified_at is not None or each.notice is not None for each in found)

        await eventually(all_have, f"{len(messages)} messages had their receipts")
        return [await self.now(message) for message in messages]


@contextlib.asynccontextmanager
async def manned_on(
    url: str, tmux: TmuxServer, grace_seconds: float = 10.0, notice_seconds: float = 5.0
) -> AsyncIterator[Manned]:
    async with keel_on(url) as keel:
        await keel.zone()
        told = FleetSettings(fleet_notice_seconds=notice_seconds)
        manned = Manned(keel, tmux, told, grace_seconds)
        await manned.create()
        yield manned
        await manned.notifier.stop()
