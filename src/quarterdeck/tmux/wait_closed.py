"""Waiting for panes to go: one look at a tmux server for all that are waited for in it.

tmux tells of a pane that closes to its own clients alone, and its hooks are its user's. So it is looked, again and
again, but no more often for a hundred panes than for one; and at tmux only, since who runs in a pane does not matter.
"""

from __future__ import annotations

import asyncio

from quarterdeck.tmux.pane_info import PaneSeen
from quarterdeck.tmux.panes import Tmux

LOOK_SECONDS = 0.1


class Leaving:
    def __init__(self) -> None:
        self._next: dict[str, asyncio.Task[dict[str, PaneSeen]]] = {}
        """By socket, the look that has not begun yet."""

    async def gone(self, tmux: Tmux, seen: PaneSeen, seconds: float) -> bool:
        """Whether the pane that was seen has gone, or died, within so many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        while _is_there(seen, await self._look(tmux)):
            if asyncio.get_running_loop().time() >= until:
                return False
        return True

    async def _look(self, tmux: Tmux) -> dict[str, PaneSeen]:
        look = self._next.get(tmux.socket)
        if look is None:
            look = self._next[tmux.socket] = asyncio.create_task(self._later(tmux))
        # Whoever does not wait any longer takes it from nobody else.
        return await asyncio.shield(look)

    async def _later(self, tmux: Tmux) -> dict[str, PaneSeen]:
        await asyncio.sleep(LOOK_SECONDS)
        # What was asked for from here on is seen by the next look for certain.
        del self._next[tmux.socket]
        return await tmux.panes()


def _is_there(seen: PaneSeen, panes: dict[str, PaneSeen]) -> bool:
    now = panes.get(seen.pane_id)
    return now is not None and not now.is_dead and (now.server_pid, now.pid) == (seen.server_pid, seen.pid)
