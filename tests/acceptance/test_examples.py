"""The examples run, and print what their page says they print."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from tests.support.child_processes import minimal_environment
from tests.support.source import ROOT
from tests.support.zone import FreshZone

EXAMPLES = ROOT / "examples"
LIMIT = 60.0


def printed_by(example: str) -> str:
    """What the page shows below the command that runs this example."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^\$ python examples/{re.escape(example)}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found, f"the page does not show {example}"
    return found[1]


async def start(example: str, zone: FreshZone) -> Process:
    environment = {**minimal_environment(), "QD_DATA": str(zone.server.launch.data), "QD_ZONE": zone.id}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(EXAMPLES / example), stdout=PIPE, stderr=PIPE, env=environment
    )


@contextlib.asynccontextmanager
async def running(example: str, zone: FreshZone) -> AsyncIterator[Process]:
    process = await start(example, zone)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def output_of(example: str, zone: FreshZone) -> str:
    async with asyncio.timeout(LIMIT), running(example, zone) as process:
        told, wrong = await process.communicate()
        assert process.returncode == 0, wrong.decode()
        return told.decode()


async def first_line(process: Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT):
        return (await process.stderr.readline()).decode().strip()


async def test_a_tree_is_spawned_drawn_put_to_sleep_and_stopped(zone: FreshZone) -> None:
    assert await output_of("tree.py", zone) == printed_by("tree.py")


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_serves_its_caller_until_it_is_told_to_stop(zone: FreshZone, told: signal.Signals) -> None:
    async with running("summarise/worker.py", zone) as worker:
        said = await first_line(worker)
        shown = printed_by("summarise/worker.py").strip()
        assert said.rpartition(" ")[0] == shown.rpartition(" ")[0]
        assert await output_of("summarise/caller.py", zone) == printed_by("summarise/caller.py")
        worker.send_signal(told)
        async with asyncio.timeout(LIMIT):
            assert await worker.wait() == 0


async def test_an_agent_reads_books_until_it_is_told_to_stop(zone: FreshZone) -> None:
    async with running("tasks/worker.py", zone) as worker:
        assert await first_line(worker) == printed_by("tasks/worker.py").strip()
        assert await output_of("tasks/caller.py", zone) == printed_by("tasks/caller.py")
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT):
            assert await worker.wait() == 0


async def test_a_program_with_a_server_inside_needs_no_other() -> None:
    program = [sys.executable, "-u", str(EXAMPLES / "embedded.py")]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE, env=minimal_environment())
    told, wrong = await asyncio.wait_for(process.communicate(), LIMIT)
    assert process.returncode == 0, wrong.decode()
    assert told.decode() == printed_by("embedded.py")


async def test_a_caller_without_a_worker_is_told_that_nobody_serves(zone: FreshZone) -> None:
    async with running("summarise/caller.py", zone) as caller:
        _, wrong = await asyncio.wait_for(caller.communicate(), LIMIT)
        assert caller.returncode == 1
        assert "offers no service here" in wrong.decode()
