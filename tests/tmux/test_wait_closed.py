"""Waiting for panes to go: how often tmux is asked, and what counts as gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quarterdeck.tmux import wait_closed
from quarterdeck.tmux.panes import PaneInfo, Tmux, TmuxError
from quarterdeck.tmux.wait_closed import PaneCloseWaiter

SEEN = PaneInfo("%1", "main", "@1", 10, "claude", False, 1)
Shown = Sequence[PaneInfo] | TmuxError


class Shows(Tmux):
    """A tmux server that shows one thing after the other, and the last for good."""

    def __init__(self, *shown: Shown) -> None:
        super().__init__("/nowhere")
        self.shown = [*shown]
        self.looks = 0

    async def panes(self) -> dict[str, PaneInfo]:
        self.looks += 1
        now = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        if isinstance(now, TmuxError):
            raise now
        return {each.pane_id: each for each in now}


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_closed, "POLL_SECONDS", 0.001)


async def test_all_who_wait_are_answered_by_the_same_looks() -> None:
    seen = [replace(SEEN, pane_id=f"%{number}") for number in range(50)]
    tmux, waiting = Shows(seen, seen, seen[:1], []), PaneCloseWaiter()
    assert await asyncio.gather(*(waiting.wait_closed(tmux, each, 60) for each in seen)) == [True] * 50
    assert tmux.looks == 4


@pytest.mark.parametrize("now", [replace(SEEN, is_dead=True), replace(SEEN, pid=11), replace(SEEN, server_pid=2)])
async def test_a_pane_that_died_or_is_anothers_by_now_has_gone(now: PaneInfo) -> None:
    assert await PaneCloseWaiter().wait_closed(Shows([now]), SEEN, 60)


async def test_a_pane_that_stays_is_given_up_on_in_time() -> None:
    assert not await PaneCloseWaiter().wait_closed(Shows([SEEN]), SEEN, 0.01)


async def test_one_who_waits_no_longer_takes_the_look_from_nobody_and_a_failure_is_everybodys() -> None:
    tmux, waiting = Shows([SEEN], TmuxError("stuck")), PaneCloseWaiter()
    cut = asyncio.create_task(waiting.wait_closed(tmux, SEEN, 60))
    other = asyncio.create_task(waiting.wait_closed(tmux, SEEN, 60))
    await asyncio.sleep(0)
    cut.cancel()
    with pytest.raises(TmuxError, match="stuck"):
        await other
    assert cut.cancelled()
    assert tmux.looks == 2
