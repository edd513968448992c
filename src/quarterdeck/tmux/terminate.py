"""Terminates all processes of a pane: SIGTERM first, then SIGKILL, until none is left.

The processes of a pane are the process session that tmux started there, with its foreground and background groups, and
all descendants. Each pass also finds processes that were started since the previous pass. Signaling a process group, or
waiting for only one process, would miss those.

Pids are reused, so a process is identified by its pid and start time. On Linux, the process is opened as a pidfd before
they are compared, so that a signal reaches either this process or none.
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
"""Time between SIGTERM and SIGKILL."""
KILL_SECONDS = 5.0
"""How long to wait after SIGKILL before the remaining processes are reported."""
PAUSE_SECONDS = 0.02
"""Pause before the second pass. It doubles each time, because a pass reads all of /proc."""
PAUSE_MAX_SECONDS = 0.25


class ContainsThisProcess(Exception):
    """The processes to terminate include this process."""


class ProcessTree:
    """A process, its process session, and all descendants."""

    def __init__(self, root: Process) -> None:
        self._root = root
        self._processes = {(root.pid, root.start_time): root}

    def find_alive(self, table: ProcessTable) -> list[Process]:
        """The live processes of the tree, including those that were started since the last call."""
        alive = self._still_alive(table)
        # A session id is not reused while a process of the session is alive.
        is_session_alive = any(self._root.pid in (process.session_id, process.group_id) for process in alive)
        tree_processes = table.with_descendants(process.pid for process in alive)
        if is_session_alive:
            tree_processes += [
                process for process in table.values() if self._root.pid in (process.session_id, process.group_id)
            ]
        for process in tree_processes:
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
    """Terminate the tree of a process. Returns the processes that did not end."""
    tree = ProcessTree(root)
    alive: list[Process] = []
    for signal_number, wait_seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        signaled: set[tuple[int, str]] = set()
        pause_seconds = PAUSE_SECONDS
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while alive := tree.find_alive(await asyncio.to_thread(process_table.list_processes)):
            if any(process.pid == os.getpid() for process in alive):
                raise ContainsThisProcess
            for process in alive:
                if (process.pid, process.start_time) not in signaled:
                    signaled.add((process.pid, process.start_time))
                    send_signal(process, signal_number)
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_MAX_SECONDS)
        else:
            return []
    return alive


def send_signal(process: Process, signal_number: signal.Signals) -> None:
    """Signal this process, unless its pid belongs to another process by now."""
    # These errors mean that it has exited or that we may not signal it. The next pass finds out which.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not _send_by_pidfd(process, signal_number) and is_same_process(process):
            os.kill(process.pid, signal_number)


def is_same_process(process: Process) -> bool:
    """Whether the pid still belongs to this process. Assumed to be true without /proc."""
    return not process_table.has_procfs() or process.is_same(process_table.read_process(process.pid))


def _send_by_pidfd(process: Process, signal_number: signal.Signals) -> bool:
    """Signal the process through a pidfd if it is still the same. Returns False if the system has no pidfds."""
    if sys.platform != "linux":
        return False
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    except OSError:
        # The kernel does not support pidfds.
        return False
    try:
        if is_same_process(process):
            signal.pidfd_send_signal(pidfd, signal_number)
    finally:
        os.close(pidfd)
    return True
