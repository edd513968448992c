"""A tmux server of one's own, and stand-ins for coding agents that write down what they hear.

The server lives in a directory of its own, reads no configuration and is ended by its socket. It has one session,
`main`, with one window of 200 by 50 and one pane, in which a plain shell runs.

The stand-ins have the names of the agents they stand for, and say what they were begun with and each line that they
read, in `heard/NAME.PID`. A word in the variable FAKE changes them: `stubborn` does not leave for `/exit` and ignores
SIGTERM; `shell` leaves a shell's prompt behind; `raw` asks for brackets around what is pasted, as real ones do. At
`/edit` each has something else in front, as agents do that open an editor.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarterdeck.tmux.panes import Tmux
from tests.support.child_processes import minimal_environment
from tests.support.eventually import eventually_sync

AGENT_NAMES = ("claude", "codex", "opencode")
needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed (on Debian and Ubuntu: apt-get install tmux)"
)
"""Where it is missing these tests are skipped, and pytest counts them."""
FAKE_AGENT = '''\
#!{python}
"""Stands in for a coding agent."""
import json, os, signal, sys, termios

KIND = os.environ.get("FAKE", "")
NAME = os.path.basename(sys.argv[0])
own = {{name: os.environ[name] for name in sorted(os.environ) if name.startswith(("QD_", "FAKE", "TMUX"))}}
path = os.path.join({heard!r}, f"{{NAME}}.{{os.getpid()}}")
log = open(path + ".new", "a", encoding="utf-8", buffering=1)
def say(**what): log.write(json.dumps(what) + "\\n")
if KIND == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if KIND == "family":
    for new_session in (False, True):
        if os.fork() == 0:
            if new_session:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            say(child=os.getpid())
            while True:
                signal.pause()
if KIND == "raw":
    mode = termios.tcgetattr(0)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[0] &= ~termios.ICRNL
    termios.tcsetattr(0, termios.TCSANOW, mode)
    sys.stdout.write("\\x1b[?2004h")
print(NAME, "is ready", flush=True)
say(argv=sys.argv[1:], environment=own, directory=os.getcwd())
os.rename(path + ".new", path)
def lines():
    if KIND != "raw":
        # Not through a buffer of Python's: it may be ended between two lines.
        yield from iter(sys.stdin.readline, "")
        return
    while heard := os.read(0, 65536):
        say(raw=heard.decode("utf-8", "replace"))
for line in lines():
    say(line=line.rstrip("\\n"))
    print("heard", line, end="", flush=True)
    if line.strip() == "/edit":
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            os.execvp("cat", ["cat"])
        os.waitpid(child, 0)
    if line.strip() == "/exit":
        if KIND == "shell":
            os.execvp("sh", ["sh", "-i"])
        if KIND != "stubborn":
            break
'''


@dataclass(frozen=True, slots=True)
class FakeAgentLog:
    """What one stand-in has said of itself so far."""

    name: str
    pid: int
    entries: list[dict[str, object]]

    @property
    def argv(self) -> list[str]:
        argv = self._start_entry["argv"]
        assert isinstance(argv, list)
        return argv

    @property
    def environment(self) -> dict[str, str]:
        environment = self._start_entry["environment"]
        assert isinstance(environment, dict)
        return environment

    @property
    def directory(self) -> str:
        return str(self._start_entry["directory"])

    @property
    def children(self) -> list[int]:
        return [int(str(entry["child"])) for entry in self.entries if "child" in entry]

    @property
    def lines(self) -> list[str]:
        return [str(entry["line"]) for entry in self.entries if "line" in entry]

    @property
    def raw(self) -> str:
        return "".join(self.pieces)

    @property
    def pieces(self) -> list[str]:
        """What it read, read by read."""
        return [str(entry["raw"]) for entry in self.entries if "raw" in entry]

    @property
    def _start_entry(self) -> dict[str, object]:
        return next(entry for entry in self.entries if "argv" in entry)


class TmuxServer:
    def __init__(self) -> None:
        # Short: the path of a socket may have a hundred characters or so.
        self.home = Path(tempfile.mkdtemp(prefix="qd-tmux-"))
        self.bin = self.home / "bin"
        self.log_dir = self.home / "heard"
        self.bin.mkdir()
        self.log_dir.mkdir()
        for name in AGENT_NAMES:
            self.install_fake_agent(name)
        self.environment = minimal_environment() | {
            "TMUX_TMPDIR": str(self.home),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "SHELL": "/bin/sh",
            "ENV": "",
            "PS1": "$ ",
            "TERM": "screen",
            "LC_ALL": "C.UTF-8",
        }
        self.socket = str(self.home / f"tmux-{os.getuid()}" / "default")
        self.start()

    def start(self) -> None:
        subprocess.run(
            ["tmux", "-f", "/dev/null", "new-session", "-d", "-s", "main", "-x", "200", "-y", "50"],
            env=self.environment,
            cwd=self.home,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
        )
        self.window = self.run_tmux("display-message", "-p", "-t", "main", "#{window_id}")
        self.pane = self.run_tmux("display-message", "-p", "-t", "main", "#{pane_id}")
        self.pid = int(self.run_tmux("display-message", "-p", "-t", "main", "#{pid}"))

    def stop(self) -> None:
        """Its panes are hung up on; returns when it has gone."""
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, timeout=20)
        eventually_sync(lambda: not is_alive(self.pid), "the tmux server had gone")

    def close(self) -> None:
        self.stop()
        # Stubborn ones outlive their terminal, as they are meant to.
        for agent_log in self.read_agent_logs():
            for pid in (agent_log.pid, *agent_log.children):
                if self._is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def install_fake_agent(self, name: str) -> None:
        script = self.bin / name
        script.write_text(FAKE_AGENT.format(python=sys.executable, heard=str(self.log_dir)))
        script.chmod(0o755)

    # -- from the side -------------------------------------------------------------------------------------------

    def run_tmux(self, *arguments: str) -> str:
        result = subprocess.run(
            ["tmux", "-u", "-S", self.socket, *arguments],
            env=self.environment,
            cwd=self.home,
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return result.stdout.rstrip("\n")

    def pane_environment(self, pane: str | None = None) -> dict[str, str]:
        """The variables by which a program in a pane knows where it is."""
        return self.environment | {"TMUX": f"{self.socket},{self.pid},0", "TMUX_PANE": pane or self.pane}

    def new_pane(self, *argv: str, behaviour: str = "", name: str = "claude") -> str:
        """A pane in a window of its own in which a stand-in, or something else, runs; its id."""
        command = argv or (str(self.bin / name), "begun")
        environment_option = ("-e", f"FAKE={behaviour}") if behaviour else ()
        return self.run_tmux("new-window", "-d", "-P", "-F", "#{pane_id}", *environment_option, "--", "env", *command)

    def capture(self, pane: str) -> str:
        return self.run_tmux("capture-pane", "-p", "-J", "-S", "-200", "-t", pane)

    def list_panes(self) -> list[str]:
        return self.run_tmux("list-panes", "-a", "-F", "#{pane_id}").split("\n")

    def pid_of(self, pane: str) -> int:
        return int(self.run_tmux("display-message", "-p", "-t", pane, "#{pane_pid}"))

    def read_agent_logs(self, name: str | None = None) -> list[FakeAgentLog]:
        """Of all stand-ins, or those with a name, in the order in which they were ready."""
        files = [file for file in self.log_dir.iterdir() if file.suffix != ".new"]
        files.sort(key=lambda file: (file.stat().st_ctime_ns, file.name))
        found = [_read_agent_log(file) for file in files]
        return [log for log in found if name in (None, log.name)]

    def wait_for_agent_log(self, pid: int) -> FakeAgentLog:
        """By the stand-in that has this pid, once it is ready."""
        eventually_sync(lambda: any(log.pid == pid for log in self.read_agent_logs()), f"stand-in {pid} was ready")
        return next(log for log in self.read_agent_logs() if log.pid == pid)

    def wait_for_agent(self, pane: str) -> int:
        """The pid of the stand-in in a pane, when it listens."""
        pid = self.pid_of(pane)
        self.wait_for_agent_log(pid)
        return pid

    def _is_ours(self, pid: int) -> bool:
        try:
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.bin).encode() in command_line


@pytest.fixture
def tmux_server() -> Iterator[TmuxServer]:
    server = TmuxServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def shared_tmux() -> Iterator[TmuxServer]:
    server = TmuxServer()
    try:
        yield server
    finally:
        server.close()


async def type_line(tmux: Tmux, pane: str, text: str) -> None:
    """As whoever has just looked at the pane."""
    await tmux.type_line((await tmux.panes())[pane], text)


def _read_agent_log(file: Path) -> FakeAgentLog:
    name, _, pid = file.name.rpartition(".")
    # What it is writing at this moment has no end yet.
    complete_lines = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return FakeAgentLog(name, int(pid), [json.loads(line) for line in complete_lines.splitlines()])


def is_alive(pid: int) -> bool:
    """Not ended: one that nobody has asked after yet has ended all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
