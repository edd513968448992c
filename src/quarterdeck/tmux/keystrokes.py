"""Checks whether a placement's pane may be typed into, and types into it.

    check_host ─► take_snapshot ─► check_pane ─► TypingTarget ─► type_line      one snapshot for all panes of a server

`check_pane` returns the first reason not to type, in the order of its checks. The last check is for `not_the_agent`:
the agent's process was not found in the foreground of the pane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.tmux import process_table
from quarterdeck.tmux.coding_agents import CodingAgent, find_agent_process, is_agent_process
from quarterdeck.tmux.errors import PaneChanged
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.process_table import Process, ProcessTable

BlockReason = Literal["no_pane", "other_host", "other_tmux", "pane_gone", "not_the_agent"]
"""Why nothing may be typed into a pane."""
CLOCK_SKEW_MAX_MS = 60 * SECOND
"""Allowed difference between the database's clock (creation of a placement) and this host's (start of tmux)."""


class PlacedPane(Protocol):
    """The stored location of a pane."""

    @property
    def host_id(self) -> str: ...
    @property
    def user_id(self) -> int: ...
    @property
    def tmux_socket(self) -> str: ...
    @property
    def tmux_pid(self) -> int: ...
    @property
    def tmux_pane_id(self) -> str | None: ...
    @property
    def created_at(self) -> Millis | str: ...


@dataclass(frozen=True, slots=True)
class TmuxSnapshot:
    """All panes of one tmux server and all processes of this host, at one point in time."""

    socket: str
    panes: dict[str, PaneInfo]
    processes: ProcessTable


@dataclass(frozen=True, slots=True)
class TypingTarget:
    """A pane that may be typed into, and the coding agent in it."""

    pane: PaneInfo
    agent: CodingAgent
    process: Process
    """The agent's process in the foreground."""

    def is_still_ready(self) -> bool:
        """Whether the agent is still in the foreground.

        Reads a few small files in /proc, which is cheap enough to do before each Enter. Without /proc, returns True,
        and only tmux's own check (`PaneGuard`) protects the pane.
        """
        if not process_table.has_procfs():
            return True
        process, root = process_table.read_process(self.process.pid), process_table.read_process(self.pane.pid)
        if process is None or root is None or not process.is_same(self.process) or process.is_gone:
            return False
        # A process that replaces itself with a shell by exec keeps its pid, start time and group.
        is_agent = is_agent_process(self.agent, process) and not process_table.is_interactive_shell(process)
        return is_agent and root.foreground_group == process.group_id


async def take_snapshot(tmux: Tmux) -> TmuxSnapshot:
    panes = await tmux.list_panes()
    return TmuxSnapshot(tmux.socket, panes, await asyncio.to_thread(process_table.list_processes))


def check_pane(
    snapshot: TmuxSnapshot, placement: PlacedPane, host: Host, agent: CodingAgent | None
) -> TypingTarget | BlockReason:
    """Check a placement against a snapshot. `agent` is None if the placement's coding agent is not configured.

    Blocks: it reads process data from the kernel.
    """
    if (reason := check_host(placement, host)) is not None:
        return reason
    if snapshot.socket != placement.tmux_socket:
        return "other_tmux"
    pane = find_pane(snapshot.panes, placement)
    if not isinstance(pane, PaneInfo):
        return pane
    process = None if agent is None else find_agent_process(agent, pane, snapshot.processes)
    return "not_the_agent" if agent is None or process is None else TypingTarget(pane, agent, process)


def find_pane(panes: Mapping[str, PaneInfo], placement: PlacedPane) -> PaneInfo | BlockReason:
    """Find the placement's pane among the panes of its tmux server. Does not check what is running in the pane."""
    if any(_is_other_server(listed_pane, placement) for listed_pane in panes.values()):
        return "other_tmux"
    pane = panes.get(placement.tmux_pane_id or "")
    return "pane_gone" if pane is None or pane.is_dead else pane


def check_host(placement: PlacedPane, host: Host) -> BlockReason | None:
    """Check that the placement has a pane on this host and for this user. Otherwise, tmux must not be called at all."""
    if placement.tmux_pane_id is None:
        return "no_pane"
    is_local = (placement.host_id, placement.user_id) == (host.id, host.user_id)
    return None if is_local else "other_host"


async def type_line(tmux: Tmux, target: TypingTarget, text: str, *, press_enter: bool = True) -> BlockReason | None:
    """Type a line and, with `press_enter`, press Enter. Returns None, or the reason if the line or Enter was not typed.

    If the agent leaves the foreground before Enter, the text stays in the pane without Enter.
    """
    try:
        await tmux.paste_line(target.pane, text, is_still_ready=target.is_still_ready, press_enter=press_enter)
    except PaneChanged:
        return "not_the_agent"
    return None


def _is_other_server(pane: PaneInfo, placement: PlacedPane) -> bool:
    """Whether the pane's tmux server is not the placement's: it has another pid, or it started after the placement.

    The pid alone is not enough, because it may be reused after a reboot.
    """
    created_at = placement.created_at
    created_ms = (
        created_at if isinstance(created_at, int) else int(datetime.fromisoformat(created_at).timestamp() * SECOND)
    )
    return pane.server_pid != placement.tmux_pid or pane.server_started_at * SECOND > created_ms + CLOCK_SKEW_MAX_MS
