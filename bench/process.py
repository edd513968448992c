"""Child processes that say when they are ready, and are gone when their context is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.plan import ROOT, BenchError
from tests.support.children import ended_with_parent, plain_environment

READY_SECONDS = 60.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Serving:
    pid: int
    url: str


@contextlib.contextmanager
def serving(command: list[str], directory: Path, variables: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """Runs a server that takes `--ready-fd`, from `ready URL` to SIGTERM. Its log goes to a file."""
    log = directory / "server.log"
    kept = log.open("wb")
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*command, "--ready-fd", str(write_end)],
        cwd=ROOT,
        env={**plain_environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=kept,
        stderr=kept,
        pass_fds=(write_end,),
        start_new_session=True,
        preexec_fn=ended_with_parent(signal.SIGKILL),
    )
    # Only the child may hold the writing end, or its death would not be seen as the end of the pipe.
    os.close(write_end)
    kept.close()
    try:
        url = _first_word(read_end)
        if url:
            yield Serving(process.pid, url)
    finally:
        _stop(process)
    if not url:
        raise BenchError(f"A server did not start; its log ends:\n{log.read_text(errors='replace')[-4000:]}")


def _first_word(read_end: int) -> str | None:
    """The URL a server is ready at, or None if it ended, or said nothing for too long."""
    with os.fdopen(read_end, "rb") as pipe:
        if not select.select([pipe], [], [], READY_SECONDS)[0]:
            return None
        word, _, url = pipe.readline().decode().strip().partition(" ")
        return url if word == "ready" else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
