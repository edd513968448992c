"""`--daemon`: a process that outlives its terminal, and tells whoever started it how it began.

It is forked twice, so that it belongs to no terminal and can get none, and is nobody's child to wait for. Whoever
started it waits for one line on a pipe: that it began, or why it did not. The end of the pipe without a line means that
it ended without a word, and then its log says more.
"""

# Without `pathlib`, as everything that a command loads.
# ruff: noqa: PTH105, PTH116

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from quarterdeck.client.problems import problem_from_document, problem_to_document
from quarterdeck.core.errors import EXIT_FAILED, Fault, Problem

LOG_MAX = 16 * 1024 * 1024
DaemonMain = Callable[[Callable[[], None]], None]
"""Does what is to be done, and calls what it is given once it has begun."""


class DaemonStartFailed(Fault):
    """It ended before it had begun, and did not say why."""

    status = 503
    title = "Not begun"


def start_daemon(log: str, main: DaemonMain) -> int:
    """The pid of the process in which the work goes on. Raises why it did not begin."""
    sys.stdout.flush()
    sys.stderr.flush()
    _rotate_log(log)
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_fd)
        _detach(log, write_fd, main)
    os.close(write_fd)
    os.waitpid(child, 0)
    with os.fdopen(read_fd, encoding="utf-8") as pipe:
        line = pipe.readline()
    if not line:
        raise DaemonStartFailed("not_begun", f"It ended before it had begun; see {log}.", log=log)
    report = json.loads(line)
    if "pid" in report:
        return int(report["pid"])
    raise problem_from_document(report["status"], report)


def _detach(log: str, write_fd: int, main: DaemonMain) -> NoReturn:
    code = EXIT_FAILED
    try:
        os.setsid()
        code = 0 if os.fork() else _run_daemon(log, write_fd, main)
    except BaseException as error:
        # An exit too: nothing may unwind into the frames of the command that started us. The log keeps it.
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_daemon(log: str, write_fd: int, main: DaemonMain) -> int:
    _redirect_output(log)
    try:
        main(lambda: _send_report(write_fd, {"pid": os.getpid()}))
    except Problem as problem:
        sys.stderr.write(f"Error: {problem.detail}\n")
        _send_report(write_fd, problem_to_document(problem))
        return EXIT_FAILED
    return 0


def _redirect_output(log: str) -> None:
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for old, new in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(old, new)
    os.close(null_fd)
    os.close(log_fd)
    os.chdir("/")  # a directory that somebody stood in must not be held for as long as this goes on


def _send_report(write_fd: int, report: dict[str, object]) -> None:
    """The first line counts; whoever wanted to know may be gone by the second, and by the first too."""
    try:
        os.write(write_fd, f"{json.dumps(report)}\n".encode())
        os.close(write_fd)
    except OSError:
        return


def _rotate_log(log: str) -> None:
    """A log that has grown long is put aside when another monitor begins, and one old one is kept."""
    try:
        if os.stat(log).st_size > LOG_MAX:
            os.replace(log, f"{log}.1")
    except FileNotFoundError:
        pass
