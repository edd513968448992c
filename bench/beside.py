"""Processes that work beside a run: each is told what to do, says `ready`, and tells at the end what it saw."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from bench.plan import ROOT, BenchError
from tests.support.children import plain_environment


class Companion:
    def __init__(self, module: str, process: subprocess.Popen[bytes]) -> None:
        self._module = module
        self._process = process
        self.said = ""
        """What followed the word `ready`."""

    def tell(self, told: msgspec.Struct) -> None:
        """Returns when it is ready."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(msgspec.json.encode(told) + b"\n")
        self._process.stdin.flush()
        word, _, self.said = self._process.stdout.readline().decode().strip().partition(" ")
        if word != "ready":
            raise BenchError(f"{self._module} did not become ready; what it had to say stands above.")

    def answer(self, seconds: float) -> bytes:
        """What it says at its end. It hears that the run is over: its standard input ends."""
        said, _ = self._process.communicate(timeout=seconds)
        if self._process.returncode:
            raise BenchError(f"{self._module} failed; what it had to say stands above.")
        return said


@contextlib.contextmanager
def beside(module: str, told: msgspec.Struct) -> Iterator[Companion]:
    with subprocess.Popen(
        [sys.executable, "-m", module], cwd=ROOT, env=plain_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            companion = Companion(module, process)
            companion.tell(told)
            yield companion
        finally:
            process.kill()
