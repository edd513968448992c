"""The guard of what a server has launched: it ends what is left when the server is gone, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from quarterdeck.domain.coordination.launchers import orphan_reaper
from quarterdeck.domain.coordination.launchers.orphan_reaper_client import OrphanReaperClient

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
LINUX = sys.platform.startswith("linux")


@contextlib.asynccontextmanager
async def group(first: str = "") -> AsyncIterator[Process]:
    """A process with a group of its own, which has begun to wait for a signal."""
    text = f"import signal\n{first}\nsignal.alarm(60)\nprint(flush=True)\nsignal.pause()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=PIPE, start_new_session=True)
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def test_what_has_begun_and_not_ended_is_left() -> None:
    lines = ["+ 9999999 1.5\n", "+ 8888888 2\n", "- 9999999\n", "- 7777777\n"]
    assert orphan_reaper.read_running_groups(lines) == {8888888: (2.0, None)}
    orphan_reaper.end_groups(orphan_reaper.read_running_groups(lines))


async def test_whoever_does_not_end_when_asked_to_is_ended_after_its_seconds() -> None:
    async with group() as willing, group(DEAF) as deaf:
        orphan_reaper.end_groups(orphan_reaper.read_running_groups([f"+ {willing.pid} 60\n", f"+ {deaf.pid} 0.1\n"]))
        assert await deaf.wait() == -signal.SIGKILL
        assert await willing.wait() == -signal.SIGTERM


@pytest.mark.skipif(not LINUX, reason="only Linux tells when a process began")
async def test_a_process_that_has_the_number_of_another_is_left_alone() -> None:
    async with group() as stranger:
        orphan_reaper.end_groups({stranger.pid: (0.0, b"1")})
        assert stranger.returncode is None
        stranger.send_signal(signal.SIGINT)
        assert await stranger.wait() == -signal.SIGINT


async def test_a_guard_that_was_ended_is_followed_by_another_that_knows_all() -> None:
    watch = OrphanReaperClient()
    async with group() as first, group() as second, group() as done:
        await watch.start()
        watch.watch(first.pid, 60)
        assert watch._process is not None
        before = watch._process
        before.kill()
        await before.wait()
        watch.watch(second.pid, 60)
        watch.watch(done.pid, 60)
        watch.unwatch(done.pid)
        await watch.start()
        assert watch._process is not before
        await watch.stop()
        assert (await first.wait(), await second.wait()) == (-signal.SIGTERM, -signal.SIGTERM)
        assert done.returncode is None
