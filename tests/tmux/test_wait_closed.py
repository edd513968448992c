"""The wait for panes to close: how often panes are listed, and what counts as closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quarterdeck.tmux import wait_closed
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.wait_closed import PaneCloseWaiter

PANE = PaneInfo("%1", "main", "@1", 10, "claude", False, 1)
PaneList = Sequence[PaneInfo] | TmuxError


class FakeTmux(Tmux):
    """Lists panes from `replies` in order. The last reply repeats."""

    def __init__(self, *replies: PaneList) -> None:
        super().__init__("/nowhere")
        self.replies = [*replies]
        self.lists = 0

    async def list_panes(self) -> dict[str, PaneInfo]:
        self.lists += 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, TmuxError):
            raise reply
        return {pane.pane_id: pane for pane in reply}


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_closed, "POLL_SECONDS", 0.001)


async def test_all_waiters_share_each_list_of_panes() -> None:
    panes = [replace(PANE, pane_id=f"%{number}") for number in range(50)]
    tmux, waiter = FakeTmux(panes, panes, panes[:1], []), PaneCloseWaiter()
    assert await asyncio.gather(*(waiter.wait_closed(tmux, pane, 60) for pane in panes)) == [True] * 50
    assert tmux.lists == 4


@pytest.mark.parametrize("current", [replace(PANE, is_dead=True), replace(PANE, pid=11), replace(PANE, server_pid=2)])
async def test_dead_or_replaced_pane_counts_as_closed(current: PaneInfo) -> None:
    assert await PaneCloseWaiter().wait_closed(FakeTmux([current]), PANE, 60)


async def test_wait_for_a_pane_that_stays_open_times_out() -> None:
    assert not await PaneCloseWaiter().wait_closed(FakeTmux([PANE]), PANE, 0.01)


async def test_cancelled_waiter_does_not_cancel_the_list_and_errors_reach_the_others() -> None:
    tmux, waiter = FakeTmux([PANE], TmuxError("stuck")), PaneCloseWaiter()
    cancelled = asyncio.create_task(waiter.wait_closed(tmux, PANE, 60))
    other = asyncio.create_task(waiter.wait_closed(tmux, PANE, 60))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(TmuxError, match="stuck"):
        await other
    assert cancelled.cancelled()
    assert tmux.lists == 2
