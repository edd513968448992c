"""Child processes that do not outlive the tests."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR")


def minimal_environment() -> dict[str, str]:
    """The variables that a child needs to run. Settings of the test run (DATABASE_URL, QD_ROUNDS, …) must not reach it:
    a server refuses QD_ names that it does not know."""
    return {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}


def signal_on_parent_death(number: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: the kernel signals the child when the parent dies, even by SIGKILL. Only Linux can do this;
    elsewhere only the fixtures and `interrupt_on_sigterm` stop the child.

    The kernel watches the thread that forked, so start children from the main thread.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, int(number))


def interrupt_on_sigterm() -> None:
    """Turn SIGTERM into an interrupt. By default SIGTERM ends the test run without unwinding its fixtures."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt("terminated")

    signal.signal(signal.SIGTERM, interrupt)


def stop_ignoring_sigint() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that. Tests that interrupt children need
    the default."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def tail(log: Path, lines: int = 60) -> str:
    """Return the last lines of a log, for the report of a failed test."""
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
