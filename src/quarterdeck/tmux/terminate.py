"""Ending everything that runs in a pane: asked to, then made to; and looking until it is gone.

What runs in a pane is the session that tmux began there, its groups in front and behind, and whatever descends from it.
Each look finds who was begun since the last one, which no signal to a group and no wait for a process would.

A pid is given out again. So a process is known by its pid and its start, and where the system can it is held by a
handle while that is compared: what is signalled is what was looked at, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from quarterdeck.tmux import process_table
from quarterdeck.tmux.process_table import Process, ProcessTable

TERM_SECONDS = 2.0
"""Between asking and ending."""
KILL_SECONDS = 5.0
PAUSE_SECONDS = 0.02
"""Before the second look. A look reads all of /proc, so those that follow come ever later."""
PAUSE_MAX_SECONDS = 0.25


class ContainsThisProcess(Exception):
    """Among what is to be ended is whoever would end it."""


class ProcessTree:
    """A process, its session, and all that descend from it."""

    def __init__(self, root: Process) -> None:
        self._root = root
        self._processes = {(root.pid, root.start_time): root}

    def find_alive(self, table: ProcessTable) -> list[Process]:
        """Those of it that live, the ones that came since the last look among them."""
        alive = self._still_alive(table)
        # The number of a session is given out again when nobody of it is left: only then is it somebody else's.
        has_session = any(self._root.pid in (member.session_id, member.group_id) for member in alive)
        found = table.with_descendants(member.pid for member in alive)
        if has_session:
            found += [member for member in table.values() if self._root.pid in (member.session_id, member.group_id)]
        for process in found:
            self._processes.setdefault((process.pid, process.start_time), process)
        return self._still_alive(table)

    def _still_alive(self, table: ProcessTable) -> list[Process]:
        current = (table.get(pid) for pid, _ in self._processes)
        return [
            process
            for process in current
            if process is not None and not process.is_gone and (process.pid, process.start_time) in self._processes
        ]


async def terminate_tree(root: Process) -> list[Process]:
    """Returns those that would not go, if there are any."""
    tree = ProcessTree(root)
    alive: list[Process] = []
    for signal_number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        signaled: set[tuple[int, str]] = set()
        pause = PAUSE_SECONDS
        deadline = asyncio.get_running_loop().time() + seconds
        while alive := tree.find_alive(await asyncio.to_thread(process_table.list_processes)):
            if any(member.pid == os.getpid() for member in alive):
                raise ContainsThisProcess
            for process in alive:
                if (process.pid, process.start_time) not in signaled:
                    signaled.add((process.pid, process.start_time))
                    send_signal(process, signal_number)
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)
        else:
            return []
    return alive


def send_signal(process: Process, signal_number: signal.Signals) -> None:
    """To this process, and to no other that has its pid by now."""
    # Gone, or not ours to signal: the next look tells which.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not _send_by_pidfd(process, signal_number) and is_same_process(process):
            os.kill(process.pid, signal_number)


def is_same_process(process: Process) -> bool:
    """Whether that pid is still this process's; taken on trust where only a whole look could tell."""
    return not process_table.has_procfs() or process.is_same(process_table.read_process(process.pid))


def _send_by_pidfd(process: Process, signal_number: signal.Signals) -> bool:
    """False where there are no handles."""
    if sys.platform != "linux":
        return False
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    except OSError:
        # A kernel that does not know it.
        return False
    try:
        if is_same_process(process):
            signal.pidfd_send_signal(pidfd, signal_number)
    finally:
        os.close(pidfd)
    return True
