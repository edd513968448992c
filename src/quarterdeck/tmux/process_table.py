"""The processes of this host at one point in time, and which of them are in the foreground of a pane.

A terminal has one foreground process group, and typed text goes to the process of that group that reads the terminal.
So an agent that is suspended, or runs in a terminal inside an editor, cannot be typed into although it is running.

On Linux, all of this comes from /proc. Elsewhere, `ps` reports most of it, but not which terminal a process reads.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PS_TIMEOUT_SECONDS = 5.0
UNKNOWN_SESSION_ID = 0
SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "oksh", "lksh", "yash", "csh", "tcsh", "rc"),
        *("es", "elvish", "nu", "xonsh", "pwsh", "ion", "osh", "ysh", "busybox"),
    }
)
INTERPRETERS = SHELLS | {"node", "nodejs", "bun", "deno", "python", "ruby", "perl", "php"}
"""Programs that run script files. Their processes are also recognized by the name of the script."""
_DEAD_STATES = frozenset("ZXx")
_OPTIONS_WITH_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-C", "--init-command"))


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent_pid: int
    group_id: int
    session_id: int
    """UNKNOWN_SESSION_ID if read from `ps`."""
    foreground_group: int
    """The id of the foreground process group of the process's terminal."""
    state: str
    start_time: str
    """Together with the pid, this identifies the process, because pids are reused."""
    command: str
    argv: tuple[str, ...] | None = None
    """None if not read yet."""

    @property
    def is_gone(self) -> bool:
        return self.state[:1] in _DEAD_STATES

    @property
    def is_group_leader(self) -> bool:
        return self.pid == self.group_id

    def is_same(self, other: Process | None) -> bool:
        return other is not None and (other.pid, other.start_time) == (self.pid, self.start_time)


class ProcessTable(Mapping[int, Process]):
    """All processes at one point in time, by pid."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self._by_pid = {process.pid: process for process in processes}

    def __getitem__(self, pid: int) -> Process:
        return self._by_pid[pid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_pid)

    def __len__(self) -> int:
        return len(self._by_pid)

    def foreground_processes(self, pid: int) -> list[Process]:
        """The live processes in the foreground process group of this process's terminal."""
        root = self._by_pid.get(pid)
        if root is None or root.foreground_group <= 0:
            return []
        return [
            process
            for process in self._by_pid.values()
            if process.group_id == root.foreground_group and not process.is_gone
        ]

    def with_descendants(self, pids: Iterable[int]) -> list[Process]:
        """These processes and their descendants. Descendants whose parent has exited are not found."""
        children: dict[int, list[Process]] = {}
        for child in self._by_pid.values():
            children.setdefault(child.parent_pid, []).append(child)
        visited: dict[int, Process] = {}
        pending = [self._by_pid[pid] for pid in pids if pid in self._by_pid]
        while pending:
            process = pending.pop()
            if process.pid not in visited:
                visited[process.pid] = process
                pending += children.get(process.pid, ())
        return list(visited.values())


def list_processes() -> ProcessTable:
    """The current processes. Blocks for some milliseconds."""
    if not has_procfs():
        return _list_with_ps()
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    return ProcessTable(process for pid in pids if (process := read_process(pid)) is not None)


def has_procfs() -> bool:
    return (PROC / "self" / "stat").exists()


def read_process(pid: int) -> Process | None:
    """Read a process from /proc. None if it does not exist."""
    try:
        stat_text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The name is in parentheses and may itself contain parentheses.
    name, _, rest = stat_text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        group_id=int(fields[2]),
        session_id=int(fields[3]),
        foreground_group=int(fields[5]),
        state=fields[0],
        start_time=fields[19],
        command=name,
    )


def read_argv(process: Process) -> tuple[str, ...]:
    """The command-line arguments of a process. Empty if it has exited or has none."""
    if process.argv is not None:
        return process.argv
    try:
        cmdline = (PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(cmdline.decode(errors="replace").rstrip("\0 ").split("\0")) if cmdline else ()


def process_names(process: Process) -> frozenset[str]:
    """The names of a process: its program, the name it gives itself, and for an interpreter also its script."""
    argv = read_argv(process)
    names = {process.command}
    if argv:
        program = _base_name(argv[0])
        names.add(program)
        if _strip_version(program) in INTERPRETERS and (file := _script_argument(argv)) is not None:
            names |= {_base_name(file), re.sub(r"\.[a-z]{1,4}$", "", _base_name(file))}
    return frozenset(names - {""})


def is_interactive_shell(process: Process) -> bool:
    """Whether it is a shell that reads commands from its terminal: one started without a script file or `-c`."""
    argv = read_argv(process)
    programs = {process.command, *(_base_name(argument) for argument in argv[:1]), _executable_name(process)}
    if SHELLS.isdisjoint(map(_strip_version, programs)):
        return False
    return not _has_command(argv) and _script_argument(argv) is None


def reads_terminal(process: Process, terminal: str) -> bool | None:
    """Whether its standard input is this terminal. None if unknown."""
    if not terminal:
        return None
    try:
        return str((PROC / str(process.pid) / "fd" / "0").readlink()) == terminal
    except OSError:
        return None


def _has_command(argv: tuple[str, ...]) -> bool:
    """Whether a shell was started with `-c`, alone or combined with other options as in `bash -lc …`."""
    for argument in argv[1:]:
        if not argument.startswith("-") or argument in ("-", "--"):
            return False
        if argument == "--command" or (not argument.startswith("--") and "c" in argument):
            return True
    return False


def _script_argument(argv: tuple[str, ...]) -> str | None:
    """The first argument that is neither an option nor the value of one. A shell with `-s` reads no file."""
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument in _OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif argument == "--":
            return next(arguments, None)
        elif argument == "-s" or argument == "-":
            return None
        elif argument and argument[0] not in "-+":
            return argument
    return None


def _base_name(path: str) -> str:
    # A login shell has a leading dash. A process title may continue after a space.
    return path.split(" ")[0].rpartition("/")[2].removeprefix("-")


def _strip_version(name: str) -> str:
    """`python3.11` becomes `python`."""
    return re.sub(r"[0-9.]+$", "", name)


def _executable_name(process: Process) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(process.pid) / "exe").readlink().name
    return ""


def _list_with_ps() -> ProcessTable:
    program = shutil.which("ps")
    if program is None:
        return ProcessTable(())
    columns = "pid=,ppid=,pgid=,tpgid=,stat=,lstart=,args="
    try:
        completed = subprocess.run(  # noqa: S603 - constant arguments, and no shell
            [program, "-axww", "-o", columns],
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PS_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        # No process is known, so nothing may be typed.
        return ProcessTable(())
    lines = completed.stdout.decode(errors="replace").splitlines()
    return ProcessTable(process for line in lines if (process := _parse_ps_line(line)) is not None)


def _parse_ps_line(line: str) -> Process | None:
    fields = line.split(maxsplit=10)
    if len(fields) < 11 or not all(re.fullmatch(r"-?[0-9]+", number) for number in fields[:4]):
        return None
    pid, parent_pid, group_id, foreground_group = map(int, fields[:4])
    argv = tuple(fields[10].split())
    return Process(
        pid=pid,
        parent_pid=parent_pid,
        group_id=group_id,
        session_id=UNKNOWN_SESSION_ID,
        foreground_group=foreground_group,
        state=fields[4],
        start_time=" ".join(fields[5:10]),
        command=_base_name(argv[0]),
        argv=argv,
    )
