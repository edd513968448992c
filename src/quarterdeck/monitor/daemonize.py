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

from quarterdeck.client.problems import from_document, to_document
from quarterdeck.core.errors import EXIT_FAILED, Fault, Problem

LOG_MAX = 16 * 1024 * 1024
Work = Callable[[Callable[[], None]], None]
"""Does what is to be done, and calls what it is given once it has begun."""


class NotBegun(Fault):
    """It ended before it had begun, and did not say why."""

    status = 503
    title = "Not begun"


def begin(log: str, work: Work) -> int:
    """The pid of the process in which the work goes on. Raises why it did not begin."""
    sys.stdout.flush()
    sys.stderr.flush()
    _rotate(log)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _detach(log, writing, work)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, encoding="utf-8") as told:
        line = told.readline()
    if not line:
        raise NotBegun("not_begun", f"It ended before it had begun; see {log}.", log=log)
    said = json.loads(line)
    if "pid" in said:
        return int(said["pid"])
    raise from_document(said["status"], said)


def _detach(log: str, writing: int, work: Work) -> NoReturn:
    code = EXIT_FAILED
    try:
        os.setsid()
        code = 0 if os.fork() else _go_on(log, writing, work)
    except BaseException as wrong:
        # An exit too: nothing may unwind into the frames of the command that started us. The log keeps it.
        traceback.print_exception(wrong)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _go_on(log: str, writing: int, work: Work) -> int:
    _redirect(log)
    try:
        work(lambda: _tell(writing, {"pid": os.getpid()}))
    except Problem as problem:
        sys.stderr.write(f"Error: {problem.detail}\n")
        _tell(writing, to_document(problem))
        return EXIT_FAILED
    return 0


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for old, new in ((nothing, 0), (lines, 1), (lines, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(lines)
    os.chdir("/")  # a directory that somebody stood in must not be held for as long as this goes on


def _tell(writing: int, said: dict[str, object]) -> None:
    """The first line counts; whoever wanted to know may be gone by the second, and by the first too."""
    try:
        os.write(writing, f"{json.dumps(said)}\n".encode())
        os.close(writing)
    except OSError:
        return


def _rotate(log: str) -> None:
    """A log that has grown long is put aside when another monitor begins, and one old one is kept."""
    try:
        if os.stat(log).st_size > LOG_MAX:
            os.replace(log, f"{log}.1")
    except FileNotFoundError:
        pass
