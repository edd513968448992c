"""`qd top`: a picture that moves on a terminal, and one picture for everybody else."""

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

ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"
PICTURE = "\x1b[H"


class Watched:
    """A `qd top` on a terminal of its own."""

    def __init__(self, qd: Qd, *words: str) -> None:
        self._ours, theirs = os.openpty()
        self.resize(24, 80, theirs)
        environment = {**qd.environment, "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            qd.command(["top", *words]),
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._modes = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.seen = ""

    def until(self, is_there: Callable[[str], bool]) -> str:
        """The first whole picture of which that is true."""
        deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for picture in self.seen.split(PICTURE)[1:]:
                if picture.endswith("\x1b[J") and is_there(picture):
                    self.seen = ""
                    return picture.replace("\x1b[K", "").removesuffix("\x1b[J").replace("\r\n", "\n")
            if select.select([self._ours], [], [], 1)[0]:
                self.seen += os.read(self._ours, 65536).decode()
            assert self.process.poll() is None, self.seen
        raise AssertionError(f"never seen; the last was {self.seen!r}")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int, terminal: int | None = None) -> None:
        termios.tcsetwinsize(self._ours if terminal is None else terminal, (rows, columns))

    def ended(self) -> tuple[int, str]:
        """Its exit code, and the rest of what was to be seen."""
        code = self.process.wait(RUN_TIMEOUT_SECONDS)
        while select.select([self._ours], [], [], 0)[0]:
            self.seen += os.read(self._ours, 65536).decode()
        return code, self.seen

    @property
    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self._theirs) == self._modes

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(RUN_TIMEOUT_SECONDS)
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def watched(qd: Qd, *words: str) -> Iterator[Watched]:
    top = Watched(qd, *words)
    try:
        yield top
    finally:
        top.close()


def test_it_draws_what_happens_and_fits_the_terminal_also_when_that_changes(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    with watched(zone_qd) as top:
        first = top.until(lambda picture: "ada" in picture)
        assert first.startswith(f"qd top, zone {zone.id} ")
        assert "tasks: 0 pending, 0 running   agents: 1 alive, 0 lost\n" in first
        zone_qd.run("task", "add", "shown at once", "--type", "build")
        zone_qd.run("agent", "claim", "ada")
        top.until(lambda picture: "shown at once" in picture and "WORKING" in picture)
        top.resize(8, 40)
        os.kill(top.process.pid, signal.SIGWINCH)  # its terminal is not its controlling one
        small = top.until(lambda picture: picture.count("\n") < 8)
        assert max(map(len, small.splitlines())) <= 40
        assert not top.is_as_it_was
        top.press("q")
        code, rest = top.ended()
        assert (code, rest.endswith(BACK)) == (0, True)
        assert top.is_as_it_was


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(zone_qd: Qd, by: signal.Signals) -> None:
    with watched(zone_qd) as top:
        top.until(lambda picture: "qd top" in picture)
        top.process.send_signal(by)
        code, rest = top.ended()
        assert code == -by
        assert BACK in rest
        assert top.is_as_it_was


def test_where_nobody_watches_it_prints_one_picture(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    zone_qd.run("task", "add", "waits", "--type", "build")
    for words in ((), ("--once",)):
        lines = zone_qd.run("top", *words).splitlines()
        assert lines[1] == "tasks: 1 pending, 0 running   agents: 1 alive, 0 lost"
        assert lines[3:5] == ["QUEUE  PENDING  OLDEST  WITH DEPENDENCIES", "build  1        0s      0"]
        assert any(line.startswith("ada ") for line in lines)
    told = zone_qd.run_json("top")
    assert [one["id"] for one in told["agents"]] == ["ada"]
    assert [one["title"] for one in told["pending"]] == ["waits"]
    member = zone.token()
    assert zone_qd.run("top", QD_TOKEN=member).splitlines()[1].startswith("tasks: 1 pending")


def test_what_is_refused_is_told_as_by_any_command(zone_qd: Qd) -> None:
    done = zone_qd("top", "--zone", "no-such-zone")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("qd: ")
