"""Kills the processes that a server leaves behind when it is killed. This is a separate program beside the server.

    python orphan_reaper.py < pipe

The server writes one line per event: a process group has started, with its grace period (`+ GROUP SECONDS`), or has
ended (`- GROUP`). The pipe closes when the server ends, even if it is killed, because the kernel closes it. Then each
group that has not ended gets SIGTERM and, after its grace period, SIGKILL.

The id of a group is the pid of its first process. The kernel reuses it only after the entire group has ended. On Linux
the start time of the process distinguishes the group from a newer one with the same id, which is not signaled.

The server runs this program by its path and without site packages, so it imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

POLL_SECONDS = 0.02
Groups = dict[int, tuple[float, bytes | None]]
"""Group → (grace seconds, start time of its first process)"""


def read_running_groups(lines: Iterable[str]) -> Groups:
    """Read to the end of the input, and return the groups that started and did not end."""
    groups: Groups = {}
    for line in lines:
        sign, group, *grace_seconds = line.split()
        if sign == "+":
            groups[int(group)] = (float(grace_seconds[0]), _start_time(int(group)))
        else:
            groups.pop(int(group), None)
    return groups


def end_groups(groups: Groups) -> None:
    now = time.monotonic()
    deadlines = {group: now + grace_seconds for group, (grace_seconds, _) in groups.items()}
    for group, (_, start_time) in groups.items():
        _signal(group, start_time, signal.SIGTERM)
    while deadlines:
        for group, deadline in [*deadlines.items()]:
            is_expired = time.monotonic() >= deadline
            exists = _signal(group, groups[group][1], signal.SIGKILL if is_expired else 0)
            if is_expired or not exists:
                del deadlines[group]
        time.sleep(POLL_SECONDS if deadlines else 0)


def _signal(group: int, start_time: bytes | None, signal_number: int) -> bool:
    """Signal the group. Returns False if it no longer exists.

    A group exists until its last process has ended, so the start time of its first process may be unavailable.
    """
    if start_time is not None and _start_time(group) not in (start_time, None):
        return False
    try:
        os.killpg(group, signal_number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _start_time(pid: int) -> bytes | None:
    """Return the start time of a process in clock ticks; None if there is no such process or no /proc."""
    try:
        # The process name is in parentheses and may contain any character. The numbers follow the last ")".
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except OSError:
        return None


if __name__ == "__main__":
    end_groups(read_running_groups(sys.stdin))
