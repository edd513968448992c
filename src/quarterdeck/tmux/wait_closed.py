"""Waiting for panes to go: one look at a tmux server for all that are waited for in it.

tmux tells of a pane that closes to its own clients alone, and its hooks are its user's. So it is looked, again and
again, but no more often for a hundred panes than for one; and at tmux only, since who runs in a pane does not matter.
"""

from __future__ import annotations

import asyncio

from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux

POLL_SECONDS = 0.1


class PaneCloseWaiter:
    def __init__(self) -> None:
        self._pending_lists: dict[str, asyncio.Task[dict[str, PaneInfo]]] = {}
        """By socket, the look that has not begun yet."""

    async def wait_closed(self, tmux: Tmux, pane: PaneInfo, seconds: float) -> bool:
        """Whether the pane that was seen has gone, or died, within so many seconds."""
        deadline = asyncio.get_running_loop().time() + seconds
        while _is_open(pane, await self._list_panes(tmux)):
            if asyncio.get_running_loop().time() >= deadline:
                return False
        return True

    async def _list_panes(self, tmux: Tmux) -> dict[str, PaneInfo]:
        task = self._pending_lists.get(tmux.socket)
        if task is None:
            task = self._pending_lists[tmux.socket] = asyncio.create_task(self._list_later(tmux))
        # Whoever does not wait any longer takes it from nobody else.
        return await asyncio.shield(task)

    async def _list_later(self, tmux: Tmux) -> dict[str, PaneInfo]:
        await asyncio.sleep(POLL_SECONDS)
        # What was asked for from here on is seen by the next look for certain.
        del self._pending_lists[tmux.socket]
        return await tmux.panes()


def _is_open(pane: PaneInfo, panes: dict[str, PaneInfo]) -> bool:
    current = panes.get(pane.pane_id)
    return (
        current is not None and not current.is_dead and (current.server_pid, current.pid) == (pane.server_pid, pane.pid)
    )
