"""Observes the panes of a fleet's members, and types pings into them. Each observation lists a server's panes once."""

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
"""More lines than a pane usually has, so that all visible text is compared."""
TMUX_TIMEOUT_SECONDS = 5.0
"""The timeout for each tmux command."""
NOT_OWNER = "another monitor may own the fleet by now"


class PaneObserver:
    def __init__(self, host: Host, coding_agents: Mapping[str, CodingAgent], report: Callable[[str], None]) -> None:
        self._host = host
        self._coding_agents = coding_agents
        self._report = report
        self._screens = ScreenTracker()
        self._targets: dict[int, tuple[Tmux, TypingTarget]] = {}
        """Panes that may be typed into, by agent id, as of the last observation."""
        self._block_reasons: dict[int, str] = {}
        """Why a member cannot be reached, by agent id, as last reported."""

    async def observe(self, members: Sequence[WatchedMember], now: float) -> dict[int, PaneObservation]:
        """Observe the panes of the members. Returns only panes that may be typed into, by agent id."""
        self._targets = {}
        members_by_socket: dict[str, list[tuple[WatchedMember, PanePlacement]]] = {}
        for member in members:
            placement = member.placement
            reason = "no_pane" if placement is None else keystrokes.check_host(placement, self._host)
            if placement is None or reason is not None:
                self._report_change(member, reason)
            else:
                members_by_socket.setdefault(placement.tmux_socket, []).append((member, placement))
        pending = [
            self._observe_server(Tmux(socket, TMUX_TIMEOUT_SECONDS), placed_members, now)
            for socket, placed_members in members_by_socket.items()
        ]
        observations = {
            agent_id: observation
            for server_observations in await asyncio.gather(*pending)
            for agent_id, observation in server_observations
        }
        self._screens.keep_only([_pane_key(*self._targets[agent_id]) for agent_id in observations])
        return observations

    async def ping(self, member: WatchedMember, is_owner: Callable[[], bool]) -> str | None:
        """Type a ping into the observed pane. Returns None, or the reason if the line or Enter was not typed."""
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
        for (member, _), result in zip(placed_members, results, strict=True):
            if isinstance(result, TypingTarget):
                targets.append((member, result))
                self._report_change(member, None)
            else:
                self._report_change(member, result)
        observations = await asyncio.gather(
            *(self._observe_pane(tmux, member, target, now) for member, target in targets)
        )
        return [observation for observation in observations if observation is not None]

    def _check_panes(
        self, snapshot: TmuxSnapshot, placements: Sequence[PanePlacement]
    ) -> list[TypingTarget | BlockReason]:
        """Check each placement's pane. Blocks: it reads process data from the kernel."""
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
        """Report a change in whether the member can be reached, but not the same state at every tick."""
        if reason == self._block_reasons.get(member.agent_id):
            return
        if reason is None:
            del self._block_reasons[member.agent_id]
            self._report(f"{member.agent_id} {member.name} can be reached")
        else:
            self._block_reasons[member.agent_id] = reason
            self._report(f"{member.agent_id} {member.name} cannot be reached: {reason}")


def _pane_key(tmux: Tmux, target: TypingTarget) -> str:
    """Identifies a pane and the agent's process. If another agent starts in the same pane, its quiet time is 0."""
    return f"{tmux.socket} {target.pane.pane_id} {target.process.pid} {target.process.start_time}"


def ping_text(unread: int) -> str:
    if unread == 0:
        return PING
    return f"[ping] {unread} unread {'message' if unread == 1 else 'messages'}: qd message poll"


class _Screen(NamedTuple):
    text_hash: int
    unchanged_since: float


class ScreenTracker:
    """A hash of the last observed text of each pane, and the time of the first observation of that text.

    A pane that is observed for the first time counts as changed at that time, because its earlier text is unknown.
    """

    def __init__(self) -> None:
        self._screens: dict[str, _Screen] = {}

    def quiet_seconds(self, pane_key: str, text: str, now: float) -> float:
        """How long the pane has shown this text."""
        previous, text_hash = self._screens.get(pane_key), hash(text)
        if previous is None or previous.text_hash != text_hash:
            previous = self._screens[pane_key] = _Screen(text_hash, now)
        return now - previous.unchanged_since

    def keep_only(self, pane_keys: Collection[str]) -> None:
        """Drop all other panes. If one is observed again, its quiet time starts at 0."""
        self._screens = {key: screen for key, screen in self._screens.items() if key in pane_keys}
