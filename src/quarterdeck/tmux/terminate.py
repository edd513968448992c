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
from quarterdeck.tmux.process_table import Process, Processes

ASKED_SECONDS = 2.0
"""Between asking and ending."""
MADE_SECONDS = 5.0
PAUSE_SECONDS = 0.02
"""Before the second look. A look reads all of /proc, so those that follow come ever later."""
PAUSE_MAX_SECONDS = 0.25


class HoldsUs(Exception):
    """Among what is to be ended is whoever would end it."""


class Family:
    """A process, its session, and all that descend from it."""

    def __init__(self, root: Process) -> None:
        self._root = root
        self._known = {(root.pid, root.started): root}

    def alive(self, now: Processes) -> list[Process]:
        """Those of it that live, the ones that came since the last look among them."""
        alive = self._still(now)
        # The number of a session is given out again when nobody of it is left: only then is it somebody else's.
        holds_session = any(self._root.pid in (each.session, each.group) for each in alive)
        found = now.below(each.pid for each in alive)
        if holds_session:
            found += [each for each in now.values() if self._root.pid in (each.session, each.group)]
        for each in found:
            self._known.setdefault((each.pid, each.started), each)
        return self._still(now)

    def _still(self, now: Processes) -> list[Process]:
        known = (now.get(pid) for pid, _ in self._known)
        return [
            each for each in known if each is not None and not each.is_gone and (each.pid, each.started) in self._known
        ]


async def end(root: Process) -> list[Process]:
    """Returns those that would not go, if there are any."""
    family = Family(root)
    alive: list[Process] = []
    for number, seconds in ((signal.SIGTERM, ASKED_SECONDS), (signal.SIGKILL, MADE_SECONDS)):
        told: set[tuple[int, str]] = set()
        pause = PAUSE_SECONDS
        until = asyncio.get_running_loop().time() + seconds
        while alive := family.alive(await asyncio.to_thread(process_table.take)):
            if any(each.pid == os.getpid() for each in alive):
                raise HoldsUs
            for each in alive:
                if (each.pid, each.started) not in told:
                    told.add((each.pid, each.started))
                    send(each, number)
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)
        else:
            return []
    return alive


def send(process: Process, number: signal.Signals) -> None:
    """To this process, and to no other that has its pid by now."""
    # Gone, or not ours to signal: the next look tells which.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not _by_handle(process, number) and is_it(process):
            os.kill(process.pid, number)


def is_it(process: Process) -> bool:
    """Whether that pid is still this process's; taken on trust where only a whole look could tell."""
    return not process_table.has_proc() or process.is_same(process_table.of_pid(process.pid))


def _by_handle(process: Process, number: signal.Signals) -> bool:
    """False where there are no handles."""
    if sys.platform != "linux":
        return False
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    except OSError:
        # A kernel that does not know it.
        return False
    try:
        if is_it(process):
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
    return True
