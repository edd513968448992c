"""`--daemon`: starts a background process, and waits until it is running or has failed.

The command forks twice, so that the daemon has no controlling terminal, cannot acquire one, and is reaped by init. The
command waits for one line on a pipe: the pid, or the problem that prevented the start. If the pipe closes without a
line, the daemon exited without reporting a reason, and the error names its log.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from quarterdeck.client.data_dir import rotate_log
from quarterdeck.client.problems import problem_from_document, problem_to_document
from quarterdeck.core.errors import EXIT_FAILED, Fault, Problem

DaemonMain = Callable[[Callable[[], None]], None]
"""Runs the daemon, and calls its argument once the daemon has started."""


class DaemonStartFailed(Fault, status=503, title="Not started"):
    """The process exited during startup without reporting a reason."""


def start_daemon(log_path: str, main: DaemonMain) -> int:
    """Start the daemon and return its pid. Raises if it does not start."""
    sys.stdout.flush()
    sys.stderr.flush()
    rotate_log(log_path)
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_fd)
        _detach(log_path, write_fd, main)
    os.close(write_fd)
    os.waitpid(child, 0)
    with os.fdopen(read_fd, encoding="utf-8") as pipe:
        line = pipe.readline()
    if not line:
        raise DaemonStartFailed("not_begun", f"The process exited during startup. See {log_path}.", log=log_path)
    report = json.loads(line)
    if "pid" in report:
        return int(report["pid"])
    raise problem_from_document(report["status"], report)


def _detach(log_path: str, write_fd: int, main: DaemonMain) -> NoReturn:
    code = EXIT_FAILED
    try:
        os.setsid()
        code = 0 if os.fork() else _run_daemon(log_path, write_fd, main)
    except BaseException as error:
        # Catch SystemExit too: no exception may unwind into the frames of the command that forked.
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_daemon(log_path: str, write_fd: int, main: DaemonMain) -> int:
    _redirect_output(log_path)
    start_report = _StartReport(write_fd)
    try:
        main(lambda: start_report.send({"pid": os.getpid()}))
    except Problem as problem:
        sys.stderr.write(f"Error: {problem.detail}\n")
        start_report.send(problem_to_document(problem))
        return EXIT_FAILED
    return 0


def _redirect_output(log_path: str) -> None:
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source_fd, standard_fd in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source_fd, standard_fd)
    os.close(null_fd)
    os.close(log_fd)
    os.chdir("/")  # the daemon must not keep the starting command's working directory in use


class _StartReport:
    """Sends the first report as one line and closes the pipe. Later reports are dropped."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd: int | None = write_fd

    def send(self, report: dict[str, object]) -> None:
        if self._write_fd is None:
            return
        # The number of a closed descriptor is soon used for another file.
        write_fd, self._write_fd = self._write_fd, None
        try:
            os.write(write_fd, f"{json.dumps(report)}\n".encode())
        except OSError:
            pass  # the reader has exited
        finally:
            os.close(write_fd)
