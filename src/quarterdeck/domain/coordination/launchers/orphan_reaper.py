"""Ends what a server has started when that server is gone: a program of its own that stands beside it.

    python guard.py < pipe

Whoever holds the other end says, a line each, which groups of processes began and how long each has to end when it is
asked to (`+ GROUP SECONDS`), and which have ended (`- GROUP`). The pipe closes with the server, however that ends: also
for one that was killed the kernel closes it. Whatever has not ended by then is asked to, and ended after its seconds.

A group has the number of the process that it began with. A number is given out again only when the whole group has
ended, and on Linux the moment at which its process began tells the two apart: what has another is nobody's we know.

It is run by its path, alone: it imports nothing but what every Python has.
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
"""Of each its seconds, and when its process began."""


def read_running_groups(lines: Iterable[str]) -> Groups:
    """Those that began and have not ended, when there is nothing more to be read."""
    groups: Groups = {}
    for line in lines:
        sign, group, *seconds = line.split()
        if sign == "+":
            groups[int(group)] = (float(seconds[0]), _start_time(int(group)))
        else:
            groups.pop(int(group), None)
    return groups


def end_groups(groups: Groups) -> None:
    now = time.monotonic()
    deadlines = {group: now + seconds for group, (seconds, _) in groups.items()}
    for group, (_, started) in groups.items():
        _signal(group, started, signal.SIGTERM)
    while deadlines:
        for group, deadline in [*deadlines.items()]:
            is_expired = time.monotonic() >= deadline
            exists = _signal(group, groups[group][1], signal.SIGKILL if is_expired else 0)
            if is_expired or not exists:
                del deadlines[group]
        time.sleep(POLL_SECONDS if deadlines else 0)


def _signal(group: int, started: bytes | None, number: int) -> bool:
    """Whether anybody of that very group is there to hear it. Its first process may have ended before the others."""
    if started is not None and _start_time(group) not in (started, None):
        return False
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _start_time(process: int) -> bytes | None:
    """When a process began, as the kernel counts; None if there is none, or where nobody says."""
    try:
        # Its name stands in parentheses, and may hold anything; after the last of them come numbers.
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except OSError:
        return None


if __name__ == "__main__":
    end_groups(read_running_groups(sys.stdin))
