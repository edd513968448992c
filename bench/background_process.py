"""Child processes that work during a run: each gets a config, prints `ready`, and prints its result at the end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from bench.plan import ROOT, BenchError
from tests.support.child_processes import minimal_environment


class BackgroundProcess:
    def __init__(self, module: str, process: subprocess.Popen[bytes]) -> None:
        self._module = module
        self._process = process
        self.ready_info = ""
        """The rest of the line after `ready`."""

    def start(self, config: msgspec.Struct) -> None:
        """Send the config and wait until the process is ready."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._process.stdin.flush()
        word, _, self.ready_info = self._process.stdout.readline().decode().strip().partition(" ")
        if word != "ready":
            raise BenchError(f"{self._module} did not become ready. Its output is above.")

    def finish(self, seconds: float) -> bytes:
        """Close the process's standard input, which ends it, and return its output."""
        output, _ = self._process.communicate(timeout=seconds)
        if self._process.returncode:
            raise BenchError(f"{self._module} failed. Its output is above.")
        return output


@contextlib.contextmanager
def run_in_background(module: str, config: msgspec.Struct) -> Iterator[BackgroundProcess]:
    with subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=minimal_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            background = BackgroundProcess(module, process)
            background.start(config)
            yield background
        finally:
            process.kill()
