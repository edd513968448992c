"""What can be seen of the panes, with one list of panes for each tmux server; and the typing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from quarterdeck.core.clock import SECOND
from quarterdeck.core.ping_policy import Sight
from quarterdeck.monitor.model import Placed, Watched
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.coding_agents import CodingAgent
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import Hindrance, Look, Ready
from quarterdeck.tmux.notice_text import PING
from quarterdeck.tmux.panes import Tmux

SHOWN_LINES = 200
"""What a pane shows, and no more: a screen is hardly taller."""
SECONDS = 5.0
"""For each call of tmux."""
LATE = "the fleet may be another's by now"


class Eyes:
    def __init__(self, host: Host, coding_agents: Mapping[str, CodingAgent], say: Callable[[str], None]) -> None:
        self._host = host
        self._coding_agents = coding_agents
        self._say = say
        self._quiet = Quiet()
        self._ready: dict[int, tuple[Tmux, Ready]] = {}
        """Who may be typed to, as of the last look."""
        self._hindered: dict[int, str] = {}

    async def look(self, members: Sequence[Watched], now: float) -> dict[int, Sight]:
        """Of those that may be typed to, what is known; nothing of the others."""
        self._ready = {}
        by_socket: dict[str, list[tuple[Watched, Placed]]] = {}
        for member in members:
            placement = member.placement
            why = "no_pane" if placement is None else keystrokes.elsewhere(placement, self._host)
            if placement is None or why is not None:
                self._note(member, why)
            else:
                by_socket.setdefault(placement.tmux_socket, []).append((member, placement))
        looks = [self._look_at(Tmux(socket, SECONDS), placed, now) for socket, placed in by_socket.items()]
        sights = {agent_id: sight for found in await asyncio.gather(*looks) for agent_id, sight in found}
        self._quiet.keep([_name(*self._ready[agent_id]) for agent_id in sights])
        return sights

    async def ping(self, member: Watched, is_ours: Callable[[], bool]) -> str | None:
        """Types into its pane, if it is still what it was when it was looked at; why not, if it was not typed."""
        tmux, ready = self._ready[member.agent_id]
        if not is_ours():
            return LATE
        try:
            return await keystrokes.type_to(tmux, ready, line(member.unread))
        except TmuxError as error:
            return str(error)

    async def _look_at(
        self, tmux: Tmux, placed: Sequence[tuple[Watched, Placed]], now: float
    ) -> list[tuple[int, Sight]]:
        try:
            looked = await keystrokes.look(tmux)
        except TmuxError as error:
            for member, _ in placed:
                self._note(member, str(error))
            return []
        judged = await asyncio.to_thread(self._judge, looked, [placement for _, placement in placed])
        ready: list[tuple[Watched, Ready]] = []
        for (member, _), found in zip(placed, judged, strict=True):
            if isinstance(found, Ready):
                ready.append((member, found))
                self._note(member, None)
            else:
                self._note(member, found)
        sights = await asyncio.gather(*(self._sight(tmux, member, found, now) for member, found in ready))
        return [sight for sight in sights if sight is not None]

    def _judge(self, looked: Look, placements: Sequence[Placed]) -> list[Ready | Hindrance]:
        """Blocks: what runs in a pane is asked of the kernel."""
        agents = self._coding_agents
        return [keystrokes.judge(looked, each, self._host, agents.get(each.coding_agent)) for each in placements]

    async def _sight(self, tmux: Tmux, member: Watched, ready: Ready, now: float) -> tuple[int, Sight] | None:
        try:
            shown = await tmux.capture(ready.seen.pane_id, SHOWN_LINES)
        except TmuxError as error:
            self._note(member, str(error))
            return None
        self._ready[member.agent_id] = (tmux, ready)
        quiet = self._quiet.seconds(_name(tmux, ready), shown, now)
        return member.agent_id, Sight(True, int(quiet * SECOND), member.unread)

    def _note(self, member: Watched, why: str | None) -> None:
        """Said once, not at every tick."""
        if why == self._hindered.get(member.agent_id):
            return
        if why is None:
            del self._hindered[member.agent_id]
            self._say(f"{member.agent_id} {member.name} can be reached")
        else:
            self._hindered[member.agent_id] = why
            self._say(f"{member.agent_id} {member.name} cannot be reached: {why}")


def _name(tmux: Tmux, ready: Ready) -> str:
    """A pane, and who runs in it: another agent in the same pane has not been quiet for as long."""
    return f"{tmux.socket} {ready.seen.pane_id} {ready.process.pid} {ready.process.started}"


def line(unread: int) -> str:
    if unread == 0:
        return PING
    return f"[ping] {unread} unread {'message' if unread == 1 else 'messages'}: qd message poll"


class _Shown(NamedTuple):
    text: int
    since: float


class Quiet:
    """What each pane showed when somebody last looked. Of a pane that was never seen before, nobody knows for how long
    it has shown what it shows: it counts from now."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}

    def seconds(self, pane: str, text: str, now: float) -> float:
        """How long it has been quiet, now that it shows this."""
        known, seen = self._shown.get(pane), hash(text)
        if known is None or known.text != seen:
            known = self._shown[pane] = _Shown(seen, now)
        return now - known.since

    def keep(self, panes: Collection[str]) -> None:
        """The others are gone; whatever comes by their name later is another."""
        self._shown = {pane: shown for pane, shown in self._shown.items() if pane in panes}
