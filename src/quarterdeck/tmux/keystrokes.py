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
from quarterdeck.tmux.coding_agents import CodingAgent, found_in, is_called
from quarterdeck.tmux.errors import PaneChanged
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.panes import PaneSeen, Tmux
from quarterdeck.tmux.process_table import Process, Processes

Hindrance = Literal["no_pane", "other_host", "other_tmux", "pane_gone", "not_the_agent"]
CLOCKS_DIFFER = 60 * SECOND
"""Between the database, which says when a placement was made, and this host, which says when tmux began."""


class Placed(Protocol):
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
class Look:
    """All panes of one tmux server, and all processes, of one moment."""

    socket: str
    panes: dict[str, PaneSeen]
    running: Processes


@dataclass(frozen=True, slots=True)
class Ready:
    """A pane that may be typed into, and what made it so."""

    seen: PaneSeen
    agent: CodingAgent
    process: Process
    """The agent's, in front."""

    def still(self) -> bool:
        """Whether the agent is still in front. A few small files of /proc: cheap enough to ask before each Enter. Where
        there are none, tmux's own comparison must do."""
        if not process_table.has_proc():
            return True
        now, root = process_table.of_pid(self.process.pid), process_table.of_pid(self.seen.pid)
        if now is None or root is None or not now.is_same(self.process) or now.is_gone:
            return False
        # Whoever executes a shell in its own place keeps its pid, its start and its group.
        is_agent = is_called(self.agent, now) and not process_table.is_prompt(now)
        return is_agent and root.front == now.group


async def look(tmux: Tmux) -> Look:
    panes = await tmux.panes()
    return Look(tmux.socket, panes, await asyncio.to_thread(process_table.take))


def judge(looked: Look, placement: Placed, host: Host, agent: CodingAgent | None) -> Ready | Hindrance:
    """`agent` is None where the configuration does not know the placement's. Blocks: the kernel is asked who runs."""
    if (hindrance := elsewhere(placement, host)) is not None:
        return hindrance
    if looked.socket != placement.tmux_socket:
        return "other_tmux"
    seen = there(looked.panes, placement)
    if not isinstance(seen, PaneSeen):
        return seen
    process = None if agent is None else found_in(agent, seen, looked.running)
    return "not_the_agent" if agent is None or process is None else Ready(seen, agent, process)


def there(panes: Mapping[str, PaneSeen], placement: Placed) -> PaneSeen | Hindrance:
    """The placement's pane among those of a tmux server on its socket, whatever runs in it."""
    if any(_is_other(seen, placement) for seen in panes.values()):
        return "other_tmux"
    seen = panes.get(placement.tmux_pane_id or "")
    return "pane_gone" if seen is None or seen.is_dead else seen


def elsewhere(placement: Placed, host: Host) -> Hindrance | None:
    """What can be told without asking any tmux; on another host, or as another user, none may even be asked."""
    if placement.tmux_pane_id is None:
        return "no_pane"
    is_here = (placement.host_id, placement.user_id) == (host.id, host.user_id)
    return None if is_here else "other_host"


async def type_to(tmux: Tmux, ready: Ready, text: str, *, enters: bool = True) -> Hindrance | None:
    """Types a line and Enter, unless the agent has left meanwhile."""
    try:
        await tmux.type_line(ready.seen, text, still=ready.still, enters=enters)
    except PaneChanged:
        return "not_the_agent"
    return None


def _is_other(seen: PaneSeen, placement: Placed) -> bool:
    """Another server than that of the placement: by its pid, or, since a restarted machine may give out the same one
    again, because it began when the placement was there already."""
    made = placement.created_at
    made_at = made if isinstance(made, int) else int(datetime.fromisoformat(made).timestamp() * SECOND)
    return seen.server_pid != placement.tmux_pid or seen.server_started * SECOND > made_at + CLOCKS_DIFFER
