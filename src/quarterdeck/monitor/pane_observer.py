"""What can be seen of the panes, with one list of panes for each tmux server; and the typing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from quarterdeck.core.clock import SECOND
from quarterdeck.core.ping_policy import PaneObservation
from quarterdeck.monitor.model import PanePlacement, WatchedMember
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.coding_agents import CodingAgent
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import BlockReason, TmuxSnapshot, TypingTarget
from quarterdeck.tmux.notice_text import PING
from quarterdeck.tmux.panes import Tmux

CAPTURE_LINES = 200
"""What a pane shows, and no more: a screen is hardly taller."""
TMUX_TIMEOUT_SECONDS = 5.0
"""For each call of tmux."""
NOT_OWNER = "the fleet may be another's by now"


class PaneObserver:
    def __init__(self, host: Host, coding_agents: Mapping[str, CodingAgent], report: Callable[[str], None]) -> None:
        self._host = host
        self._coding_agents = coding_agents
        self._report = report
        self._screens = ScreenTracker()
        self._targets: dict[int, tuple[Tmux, TypingTarget]] = {}
        """Who may be typed to, as of the last look."""
        self._blocked: dict[int, str] = {}

    async def observe(self, members: Sequence[WatchedMember], now: float) -> dict[int, PaneObservation]:
        """Of those that may be typed to, what is known; nothing of the others."""
        self._targets = {}
        by_socket: dict[str, list[tuple[WatchedMember, PanePlacement]]] = {}
        for member in members:
            placement = member.placement
            reason = "no_pane" if placement is None else keystrokes.check_host(placement, self._host)
            if placement is None or reason is not None:
                self._report_change(member, reason)
            else:
                by_socket.setdefault(placement.tmux_socket, []).append((member, placement))
        pending = [
            self._observe_server(Tmux(socket, TMUX_TIMEOUT_SECONDS), placed_members, now)
            for socket, placed_members in by_socket.items()
        ]
        observations = {
            agent_id: observation for found in await asyncio.gather(*pending) for agent_id, observation in found
        }
        self._screens.keep_only([_pane_key(*self._targets[agent_id]) for agent_id in observations])
        return observations

    async def ping(self, member: WatchedMember, is_owner: Callable[[], bool]) -> str | None:
        """Types into its pane, if it is still what it was when it was looked at; why not, if it was not typed."""
        tmux, target = self._targets[member.agent_id]
        if not is_owner():
            return NOT_OWNER
        try:
            return await keystrokes.type_line(tmux, target, ping_text(member.unread))
        except TmuxError as error:
            return str(error)

    async def _observe_server(
        self, tmux: Tmux, placed_members: Sequence[tuple[WatchedMember, PanePlacement]], now: float
    ) -> list[tuple[int, PaneObservation]]:
        try:
            snapshot = await keystrokes.take_snapshot(tmux)
        except TmuxError as error:
            for member, _ in placed_members:
                self._report_change(member, str(error))
            return []
        results = await asyncio.to_thread(self._check_panes, snapshot, [placement for _, placement in placed_members])
        targets: list[tuple[WatchedMember, TypingTarget]] = []
        for (member, _), found in zip(placed_members, results, strict=True):
            if isinstance(found, TypingTarget):
                targets.append((member, found))
                self._report_change(member, None)
            else:
                self._report_change(member, found)
        observations = await asyncio.gather(
            *(self._observe_pane(tmux, member, found, now) for member, found in targets)
        )
        return [observation for observation in observations if observation is not None]

    def _check_panes(
        self, snapshot: TmuxSnapshot, placements: Sequence[PanePlacement]
    ) -> list[TypingTarget | BlockReason]:
        """Blocks: what runs in a pane is asked of the kernel."""
        agents = self._coding_agents
        return [
            keystrokes.check_pane(snapshot, placement, self._host, agents.get(placement.coding_agent))
            for placement in placements
        ]

    async def _observe_pane(
        self, tmux: Tmux, member: WatchedMember, target: TypingTarget, now: float
    ) -> tuple[int, PaneObservation] | None:
        try:
            screen = await tmux.capture(target.pane.pane_id, CAPTURE_LINES)
        except TmuxError as error:
            self._report_change(member, str(error))
            return None
        self._targets[member.agent_id] = (tmux, target)
        quiet_seconds = self._screens.quiet_seconds(_pane_key(tmux, target), screen, now)
        return member.agent_id, PaneObservation(True, int(quiet_seconds * SECOND), member.unread)

    def _report_change(self, member: WatchedMember, reason: str | None) -> None:
        """Said once, not at every tick."""
        if reason == self._blocked.get(member.agent_id):
            return
        if reason is None:
            del self._blocked[member.agent_id]
            self._report(f"{member.agent_id} {member.name} can be reached")
        else:
            self._blocked[member.agent_id] = reason
            self._report(f"{member.agent_id} {member.name} cannot be reached: {reason}")


def _pane_key(tmux: Tmux, target: TypingTarget) -> str:
    """A pane, and who runs in it: another agent in the same pane has not been quiet for as long."""
    return f"{tmux.socket} {target.pane.pane_id} {target.process.pid} {target.process.start_time}"


def ping_text(unread: int) -> str:
    if unread == 0:
        return PING
    return f"[ping] {unread} unread {'message' if unread == 1 else 'messages'}: qd message poll"


class _Screen(NamedTuple):
    text_hash: int
    since: float


class ScreenTracker:
    """What each pane showed when somebody last looked. Of a pane that was never seen before, nobody knows for how long
    it has shown what it shows: it counts from now."""

    def __init__(self) -> None:
        self._screens: dict[str, _Screen] = {}

    def quiet_seconds(self, pane: str, text: str, now: float) -> float:
        """How long it has been quiet, now that it shows this."""
        previous, text_hash = self._screens.get(pane), hash(text)
        if previous is None or previous.text_hash != text_hash:
            previous = self._screens[pane] = _Screen(text_hash, now)
        return now - previous.since

    def keep_only(self, panes: Collection[str]) -> None:
        """The others are gone; whatever comes by their name later is another."""
        self._screens = {pane: screen for pane, screen in self._screens.items() if pane in panes}
