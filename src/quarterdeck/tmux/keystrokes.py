"""Whether a placement's pane may be typed into; and typing into it, while that holds.

    elsewhere ─► look ─► judge ─► Ready ─► type_to      one look for all panes of a server that are asked about

The first reason not to is what is answered, in the order of `judge`. What cannot be told counts against typing.
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
from quarterdeck.tmux.panes import PaneInfo, Tmux
from quarterdeck.tmux.process_table import Process, ProcessTable

BlockReason = Literal["no_pane", "other_host", "other_tmux", "pane_gone", "not_the_agent"]
CLOCK_SKEW_MAX = 60 * SECOND
"""Between the database, which says when a placement was made, and this host, which says when tmux began."""


class PlacedPane(Protocol):
    """Where a pane is, as it was written down."""

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
    """All panes of one tmux server, and all processes, of one moment."""

    socket: str
    panes: dict[str, PaneInfo]
    processes: ProcessTable


@dataclass(frozen=True, slots=True)
class TypingTarget:
    """A pane that may be typed into, and what made it so."""

    pane: PaneInfo
    agent: CodingAgent
    process: Process
    """The agent's, in front."""

    def is_still_ready(self) -> bool:
        """Whether the agent is still in front. A few small files of /proc: cheap enough to ask before each Enter. Where
        there are none, tmux's own comparison must do."""
        if not process_table.has_procfs():
            return True
        process, root = process_table.read_process(self.process.pid), process_table.read_process(self.pane.pid)
        if process is None or root is None or not process.is_same(self.process) or process.is_gone:
            return False
        # Whoever executes a shell in its own place keeps its pid, its start and its group.
        is_agent = is_agent_process(self.agent, process) and not process_table.is_interactive_shell(process)
        return is_agent and root.foreground_group == process.group_id


async def take_snapshot(tmux: Tmux) -> TmuxSnapshot:
    panes = await tmux.panes()
    return TmuxSnapshot(tmux.socket, panes, await asyncio.to_thread(process_table.list_processes))


def check_pane(
    snapshot: TmuxSnapshot, placement: PlacedPane, host: Host, agent: CodingAgent | None
) -> TypingTarget | BlockReason:
    """`agent` is None where the configuration does not know the placement's. Blocks: the kernel is asked who runs."""
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
    """The placement's pane among those of a tmux server on its socket, whatever runs in it."""
    if any(_is_other_server(other, placement) for other in panes.values()):
        return "other_tmux"
    pane = panes.get(placement.tmux_pane_id or "")
    return "pane_gone" if pane is None or pane.is_dead else pane


def check_host(placement: PlacedPane, host: Host) -> BlockReason | None:
    """What can be told without asking any tmux; on another host, or as another user, none may even be asked."""
    if placement.tmux_pane_id is None:
        return "no_pane"
    is_here = (placement.host_id, placement.user_id) == (host.id, host.user_id)
    return None if is_here else "other_host"


async def type_line(tmux: Tmux, target: TypingTarget, text: str, *, press_enter: bool = True) -> BlockReason | None:
    """Types a line and Enter, unless the agent has left meanwhile."""
    try:
        await tmux.type_line(target.pane, text, is_still_ready=target.is_still_ready, press_enter=press_enter)
    except PaneChanged:
        return "not_the_agent"
    return None


def _is_other_server(pane: PaneInfo, placement: PlacedPane) -> bool:
    """Another server than that of the placement: by its pid, or, since a restarted machine may give out the same one
    again, because it began when the placement was there already."""
    created_at = placement.created_at
    created_ms = (
        created_at if isinstance(created_at, int) else int(datetime.fromisoformat(created_at).timestamp() * SECOND)
    )
    return pane.server_pid != placement.tmux_pid or pane.server_started * SECOND > created_ms + CLOCK_SKEW_MAX
