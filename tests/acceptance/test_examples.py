"""The examples run and print the output shown in docs/examples.md."""

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


def documented_output(example: str) -> str:
    """The output that the README shows below the command of this example."""
    readme = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    match = re.search(rf"^\$ python examples/{re.escape(example)}\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert match, f"the README does not show {example}"
    return match[1]


async def start(example: str, zone: FreshZone) -> Process:
    environment = {**minimal_environment(), "QD_DATA": str(zone.server.launch.data), "QD_ZONE": zone.id}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(EXAMPLES / example), stdout=PIPE, stderr=PIPE, env=environment
    )


@contextlib.asynccontextmanager
async def run_example(example: str, zone: FreshZone) -> AsyncIterator[Process]:
    process = await start(example, zone)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def output_of(example: str, zone: FreshZone) -> str:
    async with asyncio.timeout(LIMIT), run_example(example, zone) as process:
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()
        return stdout.decode()


async def first_line(process: Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT):
        return (await process.stderr.readline()).decode().strip()


async def test_tree_example_prints_the_documented_output(zone: FreshZone) -> None:
    assert await output_of("tree.py", zone) == documented_output("tree.py")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_summarise_worker_serves_its_caller_until_a_signal(
    zone: FreshZone, signal_number: signal.Signals
) -> None:
    async with run_example("summarise/worker.py", zone) as worker:
        line = await first_line(worker)
        expected = documented_output("summarise/worker.py").strip()
        assert line.rpartition(" ")[0] == expected.rpartition(" ")[0]
        assert await output_of("summarise/caller.py", zone) == documented_output("summarise/caller.py")
        worker.send_signal(signal_number)
        async with asyncio.timeout(LIMIT):
            assert await worker.wait() == 0


async def test_task_worker_serves_its_caller_until_sigterm(zone: FreshZone) -> None:
    async with run_example("tasks/worker.py", zone) as worker:
        assert await first_line(worker) == documented_output("tasks/worker.py").strip()
        assert await output_of("tasks/caller.py", zone) == documented_output("tasks/caller.py")
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT):
            assert await worker.wait() == 0


async def test_embedded_example_runs_without_a_server() -> None:
    program = [sys.executable, "-u", str(EXAMPLES / "embedded.py")]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE, env=minimal_environment())
    stdout, stderr = await asyncio.wait_for(process.communicate(), LIMIT)
    assert process.returncode == 0, stderr.decode()
    assert stdout.decode() == documented_output("embedded.py")


async def test_summarise_caller_without_a_worker_exits_with_an_error(zone: FreshZone) -> None:
    async with run_example("summarise/caller.py", zone) as caller:
        _, stderr = await asyncio.wait_for(caller.communicate(), LIMIT)
        assert caller.returncode == 1
        assert "has no service in this zone" in stderr.decode()
