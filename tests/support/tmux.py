"""A private tmux server, and fake coding agents that log their input.

The server has its own directory, reads no configuration and is stopped through its socket. It has one session, `main`,
with one window of 200 by 50 and one pane, which runs a plain shell.

The fake agents have the names of real ones. Each logs its arguments, its environment and every line that it reads, in
`logs/NAME.PID`. The variable FAKE changes its behaviour:

| FAKE       | behaviour                                                               |
|------------|-------------------------------------------------------------------------|
| `stubborn` | ignores `/exit`, SIGTERM and SIGHUP                                     |
| `family`   | starts two children that ignore SIGTERM and SIGHUP                      |
| `shell`    | becomes an interactive shell at `/exit`                                 |
| `raw`      | reads raw input and requests bracketed paste, as real agents do         |

At `/edit` each runs another program in the foreground, like an agent that opens an editor.
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
"""Without tmux these tests are skipped."""
FAKE_AGENT = '''\
#!{python}
"""A fake coding agent."""
import json, os, signal, sys, termios

BEHAVIOUR = os.environ.get("FAKE", "")
NAME = os.path.basename(sys.argv[0])
variables = {{name: os.environ[name] for name in sorted(os.environ) if name.startswith(("QD_", "FAKE", "TMUX"))}}
path = os.path.join({log_dir!r}, f"{{NAME}}.{{os.getpid()}}")
log = open(path + ".new", "a", encoding="utf-8", buffering=1)
def write_entry(**entry): log.write(json.dumps(entry) + "\\n")
if BEHAVIOUR == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if BEHAVIOUR == "family":
    for new_session in (False, True):
        if os.fork() == 0:
            if new_session:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            write_entry(child=os.getpid())
            while True:
                signal.pause()
if BEHAVIOUR == "raw":
    mode = termios.tcgetattr(0)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[0] &= ~termios.ICRNL
    termios.tcsetattr(0, termios.TCSANOW, mode)
    sys.stdout.write("\\x1b[?2004h")
print(NAME, "is ready", flush=True)
write_entry(argv=sys.argv[1:], environment=variables, directory=os.getcwd())
os.rename(path + ".new", path)
def lines():
    if BEHAVIOUR != "raw":
        # Not through Python's read-ahead buffer: the process may end between two lines.
        yield from iter(sys.stdin.readline, "")
        return
    while data := os.read(0, 65536):
        write_entry(raw=data.decode("utf-8", "replace"))
for line in lines():
    write_entry(line=line.rstrip("\\n"))
    print("received", line, end="", flush=True)
    if line.strip() == "/edit":
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            os.execvp("cat", ["cat"])
        os.waitpid(child, 0)
    if line.strip() == "/exit":
        if BEHAVIOUR == "shell":
            os.execvp("sh", ["sh", "-i"])
        if BEHAVIOUR != "stubborn":
            break
'''


@dataclass(frozen=True, slots=True)
class FakeAgentLog:
    """The log of one fake agent so far."""

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
        """The data of each read."""
        return [str(entry["raw"]) for entry in self.entries if "raw" in entry]

    @property
    def _start_entry(self) -> dict[str, object]:
        return next(entry for entry in self.entries if "argv" in entry)


class TmuxServer:
    def __init__(self) -> None:
        # A short path: the path of a socket is limited to about a hundred characters.
        self.home = Path(tempfile.mkdtemp(prefix="qd-tmux-"))
        self.bin = self.home / "bin"
        self.log_dir = self.home / "logs"
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
        """Stop the server, which sends SIGHUP to its panes. Return when it has ended."""
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, timeout=20)
        eventually_sync(lambda: not is_alive(self.pid), "the tmux server has ended")

    def close(self) -> None:
        self.stop()
        # Agents that ignore SIGHUP outlive their terminal.
        for agent_log in self.read_agent_logs():
            for pid in (agent_log.pid, *agent_log.children):
                if self._is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def install_fake_agent(self, name: str) -> None:
        script = self.bin / name
        script.write_text(FAKE_AGENT.format(python=sys.executable, log_dir=str(self.log_dir)))
        script.chmod(0o755)

    # -- observation and control ---------------------------------------------------------------------------------

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
        """The environment of a program in a pane, with the variables that tmux sets."""
        return self.environment | {"TMUX": f"{self.socket},{self.pid},0", "TMUX_PANE": pane or self.pane}

    def new_pane(self, *argv: str, behaviour: str = "", name: str = "claude") -> str:
        """Open a new window that runs a fake agent or another command. Return the id of its pane."""
        command = argv or (str(self.bin / name), "started")
        environment_option = ("-e", f"FAKE={behaviour}") if behaviour else ()
        return self.run_tmux("new-window", "-d", "-P", "-F", "#{pane_id}", *environment_option, "--", "env", *command)

    def capture(self, pane: str) -> str:
        return self.run_tmux("capture-pane", "-p", "-J", "-S", "-200", "-t", pane)

    def list_panes(self) -> list[str]:
        return self.run_tmux("list-panes", "-a", "-F", "#{pane_id}").split("\n")

    def pid_of(self, pane: str) -> int:
        return int(self.run_tmux("display-message", "-p", "-t", pane, "#{pane_pid}"))

    def read_agent_logs(self, name: str | None = None) -> list[FakeAgentLog]:
        """The logs of all fake agents, or of those with this name, in the order in which they became ready."""
        files = [file for file in self.log_dir.iterdir() if file.suffix != ".new"]
        files.sort(key=lambda file: (file.stat().st_ctime_ns, file.name))
        found = [_read_agent_log(file) for file in files]
        return [log for log in found if name in (None, log.name)]

    def wait_for_agent_log(self, pid: int) -> FakeAgentLog:
        """Wait until the fake agent with this pid is ready. Return its log."""
        eventually_sync(lambda: any(log.pid == pid for log in self.read_agent_logs()), f"the fake agent {pid} is ready")
        return next(log for log in self.read_agent_logs() if log.pid == pid)

    def wait_for_agent(self, pane: str) -> int:
        """Wait until the fake agent in a pane is ready. Return its pid."""
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
    """Type a line into a pane, with its current state."""
    await tmux.paste_line((await tmux.list_panes())[pane], text)


def _read_agent_log(file: Path) -> FakeAgentLog:
    name, _, pid = file.name.rpartition(".")
    # The last line may be incomplete while the agent writes it.
    complete_lines = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return FakeAgentLog(name, int(pid), [json.loads(line) for line in complete_lines.splitlines()])


def is_alive(pid: int) -> bool:
    """Whether a process is running. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
