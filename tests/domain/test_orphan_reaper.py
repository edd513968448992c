"""The orphan reaper ends the process groups that a dead server left behind, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from quarterdeck.domain.coordination.background.launchers import orphan_reaper
from quarterdeck.domain.coordination.background.launchers.orphan_reaper_client import OrphanReaperClient

IGNORE_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
LINUX = sys.platform.startswith("linux")


@contextlib.asynccontextmanager
async def run_process_group(setup: str = "") -> AsyncIterator[Process]:
    """Start a process in its own process group. It is waiting for a signal when this yields."""
    script = f"import signal\n{setup}\nsignal.alarm(60)\nprint(flush=True)\nsignal.pause()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=PIPE, start_new_session=True)
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def test_groups_without_an_end_record_are_still_running() -> None:
    lines = ["+ 9999999 1.5\n", "+ 8888888 2\n", "- 9999999\n", "- 7777777\n"]
    assert orphan_reaper.read_running_groups(lines) == {8888888: (2.0, None)}
    orphan_reaper.end_groups(orphan_reaper.read_running_groups(lines))


async def test_group_that_ignores_sigterm_is_killed_after_its_grace_period() -> None:
    async with run_process_group() as cooperative, run_process_group(IGNORE_SIGTERM) as uncooperative:
        orphan_reaper.end_groups(
            orphan_reaper.read_running_groups([f"+ {cooperative.pid} 60\n", f"+ {uncooperative.pid} 0.1\n"])
        )
        assert await uncooperative.wait() == -signal.SIGKILL
        assert await cooperative.wait() == -signal.SIGTERM


@pytest.mark.skipif(not LINUX, reason="only Linux reports the start time of a process")
async def test_process_with_a_reused_pid_is_not_signaled() -> None:
    async with run_process_group() as unrelated:
        orphan_reaper.end_groups({unrelated.pid: (0.0, b"1")})
        assert unrelated.returncode is None
        unrelated.send_signal(signal.SIGINT)
        assert await unrelated.wait() == -signal.SIGINT


async def test_restarted_reaper_gets_every_watched_group() -> None:
    client = OrphanReaperClient()
    async with run_process_group() as first, run_process_group() as second, run_process_group() as unwatched:
        await client.start()
        client.watch(first.pid, 60)
        assert client._process is not None
        killed = client._process
        killed.kill()
        await killed.wait()
        client.watch(second.pid, 60)
        client.watch(unwatched.pid, 60)
        client.unwatch(unwatched.pid)
        await client.start()
        assert client._process is not killed
        await client.stop()
        assert (await first.wait(), await second.wait()) == (-signal.SIGTERM, -signal.SIGTERM)
        assert unwatched.returncode is None


async def test_stalled_reaper_ends_no_group_of_the_running_server() -> None:
    client = OrphanReaperClient()
    async with run_process_group() as watched:
        await client.start()
        client.watch(watched.pid, 0)
        stalled = client._process
        assert stalled is not None
        stalled.send_signal(signal.SIGSTOP)
        while client._pipe is not None:  # until the pipe is full
            client.watch(9_999_999, 60)
            client.unwatch(9_999_999)
        with contextlib.suppress(ProcessLookupError):
            stalled.send_signal(signal.SIGCONT)
        await stalled.wait()
        watched.send_signal(signal.SIGINT)
        assert await watched.wait() == -signal.SIGINT
