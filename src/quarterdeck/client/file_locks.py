"""Questions to an flock. The kernel drops it with the process that held it, so its answer is never stale.

A look at a lock takes it for an instant, shared. Whoever wants it exclusively at that very instant is held
off, so a server that finds its lock taken should ask twice before it believes that another one runs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def is_held(path: str) -> bool:
    """Whether somebody holds the lock exclusively at this moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until_free(path: str, seconds: float) -> bool:
    """Blocks until nobody holds the lock exclusively. False: it was still held when the time was up."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        with _time_limit(seconds):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
    except _AlarmExpired:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def lock_exclusive(path: str, seconds: float) -> Iterator[None]:
    """Holds the lock for the length of the block; raises TimeoutError when it cannot be had in time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            with _time_limit(seconds):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except _AlarmExpired:
            raise TimeoutError(f"{path} was held by another process for {seconds:g} s") from None
        yield
    finally:
        os.close(descriptor)


class _AlarmExpired(Exception):
    """Ours alone, so that no other time-out is taken for it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupts a blocking system call after a while. flock has no time-out of its own, and polling it would
    be slower and busier. Main thread only, as all signals in Python; somebody else's timer is put back."""

    has_fired = False

    def on_alarm(number: int, frame: FrameType | None) -> None:
        nonlocal has_fired
        if not has_fired:
            has_fired = True
            raise _AlarmExpired

    started_at = time.monotonic()
    handler = signal.signal(signal.SIGALRM, on_alarm)
    # It rings again every 50 ms: an alarm that fell between two instructions before the call would else be
    # lost.
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - started_at), 0.001), interval)
