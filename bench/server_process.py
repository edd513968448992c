"""Runs servers as child processes. The context manager yields when the server is ready, and stops it on exit."""

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
from tests.support.child_processes import minimal_environment, signal_on_parent_death

READY_SECONDS = 60.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    pid: int
    url: str


@contextlib.contextmanager
def run_server(
    command: list[str], directory: Path, variables: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Run a server that accepts `--ready-fd`: wait for `ready URL`, and send SIGTERM at the end. It logs to a file."""
    log_path = directory / "server.log"
    log_file = log_path.open("wb")
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*command, "--ready-fd", str(write_end)],
        cwd=ROOT,
        env={**minimal_environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=log_file,
        stderr=log_file,
        pass_fds=(write_end,),
        start_new_session=True,
        preexec_fn=signal_on_parent_death(signal.SIGKILL),
    )
    # Only the child may have the write end open: otherwise its death would not close the pipe.
    os.close(write_end)
    log_file.close()
    try:
        url = _read_ready_url(read_end)
        if url:
            yield RunningServer(process.pid, url)
    finally:
        _stop(process)
    if not url:
        raise BenchError(f"A server did not start. The end of its log:\n{log_path.read_text(errors='replace')[-4000:]}")


def _read_ready_url(read_end: int) -> str | None:
    """The URL of the ready server, or None if it ended or did not become ready in time."""
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
