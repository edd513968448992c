"""Whose turn it is to type into a pane."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.tmux import pane_lock
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.pane_lock import lock_pane


async def test_one_who_is_cut_in_the_moment_of_their_turn_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket, entered = str(tmp_path / "tmux"), pane_lock._on_locked

    async def types() -> None:
        async with lock_pane(socket, "%1", 5):
            raise AssertionError("it was cut before")

    def entered_and_cut(locked: asyncio.Future[None], file: int) -> None:
        entered(locked, file)
        cut.cancel()

    monkeypatch.setattr(pane_lock, "_on_locked", entered_and_cut)
    cut = asyncio.create_task(types())
    with pytest.raises(asyncio.CancelledError):
        await cut
    monkeypatch.undo()
    async with asyncio.timeout(5), lock_pane(socket, "%1", 5):
        pass


async def test_one_who_is_cut_while_they_wait_takes_the_turn_from_nobody(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")

    async def waits() -> None:
        async with lock_pane(socket, "%1", 5):
            pass

    async with lock_pane(socket, "%1", 5):
        cut, next_one = asyncio.create_task(waits()), asyncio.create_task(waits())
        await asyncio.sleep(0)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        assert not next_one.done()
    async with asyncio.timeout(5):
        await next_one


async def test_whoever_waits_for_one_who_stands_still_is_told_so_in_the_end(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")
    async with lock_pane(socket, "%1", 5):
        with pytest.raises(TmuxError, match="Somebody else has been typing into %1"):
            async with lock_pane(socket, "%1", 0.05):
                pass
    async with lock_pane(socket, "%1", 5):
        """And its place in the line is nobody's."""
