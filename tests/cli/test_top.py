"""`qd top`: a live view on a terminal, a single frame elsewhere."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd
from tests.support.zone import FreshZone

ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
FRAME_START = "\x1b[H"


class TopProcess:
    """A `qd top` process on its own terminal."""

    def __init__(self, qd: Qd, *words: str) -> None:
        self._master_fd, terminal_fd = os.openpty()
        self.resize(24, 80, terminal_fd)
        environment = {**qd.environment, "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            qd.command(["top", *words]),
            env=environment,
            stdin=terminal_fd,
            stdout=terminal_fd,
            stderr=terminal_fd,
            start_new_session=True,
        )
        self._modes = termios.tcgetattr(terminal_fd)
        self._terminal_fd = terminal_fd
        self.output = ""

    def wait_for_frame(self, matches: Callable[[str], bool]) -> str:
        """Returns the first complete frame that matches."""
        deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for frame in self.output.split(FRAME_START)[1:]:
                if frame.endswith("\x1b[J") and matches(frame):
                    self.output = ""
                    return frame.replace("\x1b[K", "").removesuffix("\x1b[J").replace("\r\n", "\n")
            if select.select([self._master_fd], [], [], 1)[0]:
                self.output += os.read(self._master_fd, 65536).decode()
            assert self.process.poll() is None, self.output
        raise AssertionError(f"no frame matched; the last output was {self.output!r}")

    def press(self, keys: str) -> None:
        os.write(self._master_fd, keys.encode())

    def resize(self, rows: int, columns: int, terminal: int | None = None) -> None:
        termios.tcsetwinsize(self._master_fd if terminal is None else terminal, (rows, columns))

    def wait_exit(self) -> tuple[int, str]:
        """Returns the exit code and the remaining output."""
        code = self.process.wait(RUN_TIMEOUT_SECONDS)
        while select.select([self._master_fd], [], [], 0)[0]:
            self.output += os.read(self._master_fd, 65536).decode()
        return code, self.output

    @property
    def is_restored(self) -> bool:
        return termios.tcgetattr(self._terminal_fd) == self._modes

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(RUN_TIMEOUT_SECONDS)
        os.close(self._master_fd)
        os.close(self._terminal_fd)


@contextmanager
def run_top(qd: Qd, *words: str) -> Iterator[TopProcess]:
    top = TopProcess(qd, *words)
    try:
        yield top
    finally:
        top.close()


def test_top_updates_and_fits_the_terminal_after_a_resize(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    with run_top(zone_qd) as top:
        first = top.wait_for_frame(lambda frame: "ada" in frame)
        assert first.startswith(f"qd top, zone {zone.id} ")
        assert "tasks: 0 pending, 0 running   agents: 1 healthy, 0 stale\n" in first
        zone_qd.run("task", "add", "build the docs", "--type", "build")
        zone_qd.run("agent", "claim", "ada")
        top.wait_for_frame(lambda frame: "build the docs" in frame and "WORKING" in frame)
        top.resize(8, 40)
        # The pty is not the controlling terminal of `qd top`, so the kernel does not send SIGWINCH.
        os.kill(top.process.pid, signal.SIGWINCH)
        small = top.wait_for_frame(lambda frame: frame.count("\n") < 8)
        assert max(map(len, small.splitlines())) <= 40
        assert not top.is_restored
        top.press("q")
        code, rest = top.wait_exit()
        assert (code, rest.endswith(MAIN_SCREEN)) == (0, True)
        assert top.is_restored


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_top_and_restores_the_terminal(zone_qd: Qd, signal_number: signal.Signals) -> None:
    with run_top(zone_qd) as top:
        top.wait_for_frame(lambda frame: "qd top" in frame)
        top.process.send_signal(signal_number)
        code, rest = top.wait_exit()
        assert code == -signal_number
        assert MAIN_SCREEN in rest
        assert top.is_restored


def test_top_without_a_terminal_prints_one_frame(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    zone_qd.run("task", "add", "waits", "--type", "build")
    for words in ((), ("--once",)):
        lines = zone_qd.run("top", *words).splitlines()
        assert lines[1] == "tasks: 1 pending, 0 running   agents: 1 healthy, 0 stale"
        assert lines[3:5] == ["QUEUE  PENDING  OLDEST  WITH DEPENDENCIES", "build  1        0s      0"]
        assert any(line.startswith("ada ") for line in lines)
    reply = zone_qd.run_json("top")
    assert [item["id"] for item in reply["agents"]] == ["ada"]
    assert [item["title"] for item in reply["pending"]] == ["waits"]
    member = zone.token()
    assert zone_qd.run("top", QD_TOKEN=member).splitlines()[1].startswith("tasks: 1 pending")


def test_refused_request_is_reported(zone_qd: Qd) -> None:
    result = zone_qd("top", "--zone", "no-such-zone")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("qd: ")
