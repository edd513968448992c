"""Who runs in front in a pane: the processes of this host at one moment, and what can be told of each.

A terminal has one process group in front; what is typed goes to whoever of it reads. So an agent that was suspended, or
runs in a terminal inside an editor, is not there to be typed to, although it lives.

Linux tells all of this in /proc. Elsewhere `ps` tells most of it: not what a process reads from.
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
PS_SECONDS = 5.0
UNKNOWN = 0
SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "oksh", "lksh", "yash", "csh", "tcsh", "rc"),
        *("es", "elvish", "nu", "xonsh", "pwsh", "ion", "osh", "ysh", "busybox"),
    }
)
INTERPRETERS = SHELLS | {"node", "nodejs", "bun", "deno", "python", "ruby", "perl", "php"}
"""Programs that run a file: the file is what people call them by."""
_GONE = frozenset("ZXx")
_TAKE_A_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-C", "--init-command"))


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    group: int
    session: int
    """UNKNOWN where only `ps` tells."""
    front: int
    """The group in front of its terminal."""
    state: str
    started: str
    """Together with its pid, which process it is: pids are given out again."""
    command: str
    argv: tuple[str, ...] | None = None
    """None: not read yet."""

    @property
    def is_gone(self) -> bool:
        return self.state[:1] in _GONE

    @property
    def leads(self) -> bool:
        return self.pid == self.group

    def is_same(self, other: Process | None) -> bool:
        return other is not None and (other.pid, other.started) == (self.pid, self.started)


class Processes(Mapping[int, Process]):
    """All of a moment, by pid."""

    def __init__(self, found: Iterable[Process]) -> None:
        self._found = {process.pid: process for process in found}

    def __getitem__(self, pid: int) -> Process:
        return self._found[pid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def in_front_of(self, pid: int) -> list[Process]:
        """Of the terminal of this process, the group in front."""
        root = self._found.get(pid)
        if root is None or root.front <= 0:
            return []
        return [each for each in self._found.values() if each.group == root.front and not each.is_gone]

    def below(self, pids: Iterable[int]) -> list[Process]:
        """These and whatever they have begun, as far as nobody in between has ended."""
        children: dict[int, list[Process]] = {}
        for each in self._found.values():
            children.setdefault(each.parent, []).append(each)
        found: dict[int, Process] = {}
        left = [self._found[pid] for pid in pids if pid in self._found]
        while left:
            process = left.pop()
            if process.pid not in found:
                found[process.pid] = process
                left += children.get(process.pid, ())
        return list(found.values())


def take() -> Processes:
    """Those of this moment. Blocks, for some milliseconds."""
    if not has_proc():
        return _by_ps()
    numbers = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    return Processes(process for pid in numbers if (process := of_pid(pid)) is not None)


def has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def of_pid(pid: int) -> Process | None:
    """As /proc shows it now; None if there is none."""
    try:
        told = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # Its name stands in parentheses and may hold some itself.
    name, _, rest = told.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        front=int(fields[5]),
        state=fields[0],
        started=fields[19],
        command=name,
    )


def argv_of(process: Process) -> tuple[str, ...]:
    """Its arguments, as it shows them; none if it is gone or has none to show."""
    if process.argv is not None:
        return process.argv
    try:
        told = (PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(told.decode(errors="replace").rstrip("\0 ").split("\0")) if told else ()


def names_of(process: Process) -> frozenset[str]:
    """What people would call it: its program, its name for itself, and the file that it runs if it runs one."""
    argv = argv_of(process)
    names = {process.command}
    if argv:
        program = _base(argv[0])
        names.add(program)
        if _plain(program) in INTERPRETERS and (file := _file_of(argv)) is not None:
            names |= {_base(file), re.sub(r"\.[a-z]{1,4}$", "", _base(file))}
    return frozenset(names - {""})


def is_prompt(process: Process) -> bool:
    """Whether it is a shell that takes commands from whoever types: one without a file or a command of its own."""
    argv = argv_of(process)
    programs = {process.command, *(_base(each) for each in argv[:1]), _executable(process)}
    if SHELLS.isdisjoint(map(_plain, programs)):
        return False
    return not _has_command(argv) and _file_of(argv) is None


def reads(process: Process, terminal: str) -> bool | None:
    """Whether its standard input is this terminal; None where nobody can tell."""
    if not terminal:
        return None
    try:
        return str((PROC / str(process.pid) / "fd" / "0").readlink()) == terminal
    except OSError:
        return None


def _has_command(argv: tuple[str, ...]) -> bool:
    """`bash -lc …`: a cluster of letters with a c among them, before anything that is no option."""
    for each in argv[1:]:
        if not each.startswith("-") or each in ("-", "--"):
            return False
        if each == "--command" or (not each.startswith("--") and "c" in each):
            return True
    return False


def _file_of(argv: tuple[str, ...]) -> str | None:
    """The first argument that is no option, nor belongs to one. A shell told `-s` reads no file."""
    given = iter(argv[1:])
    for each in given:
        if each in _TAKE_A_VALUE:
            next(given, None)
        elif each == "--":
            return next(given, None)
        elif each == "-s" or each == "-":
            return None
        elif each and each[0] not in "-+":
            return each
    return None


def _base(path: str) -> str:
    # A login shell is marked by a dash; a title may go on after a space.
    return path.split(" ")[0].rpartition("/")[2].removeprefix("-")


def _plain(name: str) -> str:
    """python3.11 is python."""
    return re.sub(r"[0-9.]+$", "", name)


def _executable(process: Process) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(process.pid) / "exe").readlink().name
    return ""


def _by_ps() -> Processes:
    program = shutil.which("ps")
    if program is None:
        return Processes(())
    columns = "pid=,ppid=,pgid=,tpgid=,stat=,lstart=,args="
    try:
        told = subprocess.run(  # noqa: S603 - a list of constants, found on PATH once
            [program, "-axww", "-o", columns],
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PS_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        # Nobody is known to run, so nothing may be typed anywhere.
        return Processes(())
    lines = told.stdout.decode(errors="replace").splitlines()
    return Processes(process for line in lines if (process := _of_line(line)) is not None)


def _of_line(line: str) -> Process | None:
    fields = line.split(maxsplit=10)
    if len(fields) < 11 or not all(re.fullmatch(r"-?[0-9]+", number) for number in fields[:4]):
        return None
    pid, parent, group, front = map(int, fields[:4])
    argv = tuple(fields[10].split())
    return Process(
        pid=pid,
        parent=parent,
        group=group,
        session=UNKNOWN,
        front=front,
        state=fields[4],
        started=" ".join(fields[5:10]),
        command=_base(argv[0]),
        argv=argv,
    )
