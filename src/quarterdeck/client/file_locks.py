"""Functions that check and acquire flocks. The kernel releases an flock when its process exits, so it is never stale.

`is_held` and `wait_until_free` hold a shared lock for an instant, during which an exclusive lock cannot be acquired. So
a server that finds its lock taken tries again before it concludes that another server is running.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

if sys.platform != "win32":  # there is no server on Windows, so these locks do not exist there
    import fcntl


def is_held(path: str) -> bool:
    """Whether a process holds the lock exclusively."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until_free(path: str, timeout_seconds: float) -> bool:
    """Block until no process holds the lock exclusively. False after a time-out."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        with _time_limit(timeout_seconds):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
    except _AlarmExpired:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def lock_exclusive(path: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock during the `with` block. Raises TimeoutError if it does not become free in time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            with _time_limit(timeout_seconds):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except _AlarmExpired:
            raise TimeoutError(f"another process held {path} for {timeout_seconds:g} s") from None
        yield
    finally:
        os.close(descriptor)


class _AlarmExpired(Exception):
    """Raised by `_time_limit`. A separate class, so that no other time-out is mistaken for it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_AlarmExpired` in the `with` block after `seconds`, even during a blocking system call.

    flock has no time-out, and polling it would be slower and use more CPU. This works in the main thread only, like
    all signal handlers in Python. A timer that was already set is restored afterwards.
    """
    has_fired = False

    def on_alarm(signal_number: int, frame: FrameType | None) -> None:
        nonlocal has_fired
        if not has_fired:
            has_fired = True
            raise _AlarmExpired

    started_at = time.monotonic()
    handler = signal.signal(signal.SIGALRM, on_alarm)
    # The alarm repeats every 50 ms: if one arrives just before the system call starts, the next one interrupts it.
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - started_at), 0.001), interval)
