"""The lock of a pane: one process types at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.tmux import pane_lock
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.pane_lock import lock_pane


async def test_waiter_cancelled_as_it_acquires_the_lock_releases_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket, on_locked = str(tmp_path / "tmux"), pane_lock._on_locked

    async def type_text() -> None:
        async with lock_pane(socket, "%1", 5):
            raise AssertionError("the task was not cancelled")

    def lock_and_cancel(locked: asyncio.Future[None], file: int) -> None:
        on_locked(locked, file)
        cancelled.cancel()

    monkeypatch.setattr(pane_lock, "_on_locked", lock_and_cancel)
    cancelled = asyncio.create_task(type_text())
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    monkeypatch.undo()
    async with asyncio.timeout(5), lock_pane(socket, "%1", 5):
        pass


async def test_cancelled_waiter_does_not_keep_the_lock_from_the_next(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")

    async def wait_for_lock() -> None:
        async with lock_pane(socket, "%1", 5):
            pass

    async with lock_pane(socket, "%1", 5):
        cancelled, next_waiter = asyncio.create_task(wait_for_lock()), asyncio.create_task(wait_for_lock())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not next_waiter.done()
    async with asyncio.timeout(5):
        await next_waiter


async def test_wait_for_a_hung_holder_times_out_with_an_error(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")
    async with lock_pane(socket, "%1", 5):
        with pytest.raises(TmuxError, match="Another process has been typing into %1"):
            async with lock_pane(socket, "%1", 0.05):
                pass
    async with lock_pane(socket, "%1", 5):
        """The waiter that timed out does not hold the lock."""
