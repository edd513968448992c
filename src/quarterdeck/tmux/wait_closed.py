"""Waits for panes to close, listing the panes of each tmux server once for all waiters.

tmux reports closed panes only to its own clients, and its hooks are for the user to configure. So this module polls,
and waiting for 100 panes takes as many commands as waiting for one. It does not list processes, because what is running
in a pane does not matter.
"""

from __future__ import annotations

import asyncio

from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux

POLL_SECONDS = 0.1


class PaneCloseWaiter:
    def __init__(self) -> None:
        self._pending_lists: dict[str, asyncio.Task[dict[str, PaneInfo]]] = {}
        """The next list of panes per socket, until its command starts."""

    async def wait_closed(self, tmux: Tmux, pane: PaneInfo, timeout_seconds: float) -> bool:
        """Wait until this pane has closed or is dead. Returns False after the timeout."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while _is_open(pane, await self._list_panes(tmux)):
            if asyncio.get_running_loop().time() >= deadline:
                return False
        return True

    async def _list_panes(self, tmux: Tmux) -> dict[str, PaneInfo]:
        task = self._pending_lists.get(tmux.socket)
        if task is None:
            task = self._pending_lists[tmux.socket] = asyncio.create_task(self._list_later(tmux))
        # A waiter that is canceled must not cancel the list for the other waiters.
        return await asyncio.shield(task)

    async def _list_later(self, tmux: Tmux) -> dict[str, PaneInfo]:
        await asyncio.sleep(POLL_SECONDS)
        # Remove this task first: a caller that arrives now needs a newer list.
        del self._pending_lists[tmux.socket]
        return await tmux.list_panes()


def _is_open(pane: PaneInfo, panes: dict[str, PaneInfo]) -> bool:
    current = panes.get(pane.pane_id)
    return (
        current is not None and not current.is_dead and (current.server_pid, current.pid) == (pane.server_pid, pane.pid)
    )
