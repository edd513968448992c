"""`qd logs`: the end of the log, and what is added to it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

from quarterdeck.cli.command_table import NUMBER, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell
from quarterdeck.core.errors import NotFound

LOGS = (
    Option("--follow", "Go on printing what is added.", short="-f"),
    Option("--lines", "How many lines from the end [default: 50].", NUMBER, short="-n"),
)
_BLOCK = 64 * 1024
_LOOK_EVERY = 0.2


def logs(context: Context) -> int:
    path = context.own_place().log
    count = context.number("lines")
    try:
        log = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(
            "no_log", f"There is no {path}: only a server that was started automatically logs there."
        ) from None
    try:
        for line in last_lines(log, 50 if count is None else count):
            context.write(_shown(line, context.as_json))
        if context.flag("follow"):
            _follow(context, path, log)
    finally:
        os.close(log)
    return 0


def last_lines(log: int, count: int) -> list[bytes]:
    """The last lines of an open file, read from its end; leaves the file's position behind them."""
    end = os.lseek(log, 0, os.SEEK_END)
    data = b""
    at = end
    # One line break more than lines: the piece before the first of them may be half a line.
    while at > 0 and data.count(b"\n") <= count:
        size = min(_BLOCK, at)
        at -= size
        data = os.pread(log, size, at) + data
    return data.splitlines()[-count:] if count else []


def added_lines(log: int) -> Iterator[bytes]:
    """Whole lines that are there to read; half a line is left for the next time."""
    data = b""
    while chunk := os.read(log, _BLOCK):
        data += chunk
    whole, newline, half = data.rpartition(b"\n")
    os.lseek(log, -len(half), os.SEEK_CUR)
    yield from (whole + newline).splitlines()


def _follow(context: Context, path: str, log: int) -> None:
    """Until Ctrl-C. The standard library has no event for a file that grows, so this looks now and then."""
    import sys

    current = log
    while True:
        for line in added_lines(current):
            context.write(_shown(line, context.as_json))
        sys.stdout.flush()
        current = _reopened(path, current)
        time.sleep(_LOOK_EVERY)


def _reopened(path: str, current: int) -> int:
    """The file that bears the name now: whoever rotates logs moves the old one away, or empties it."""
    held = os.fstat(current)
    try:
        named = os.stat(path)  # noqa: PTH116 - see client.place
    except FileNotFoundError:
        return current
    if (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino):
        fresh = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(fresh, current)
        os.close(fresh)
    elif named.st_size < os.lseek(current, 0, os.SEEK_CUR):
        os.lseek(current, 0, os.SEEK_SET)
    return current


def _shown(line: bytes, as_json: bool) -> str:
    """For programs one JSON object per line, also where the server wrote plain text (a traceback, say)."""
    text = line.decode("utf-8", "replace")
    if not as_json:
        return text if text.isprintable() else cell(text)
    try:
        told: object = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    return text if isinstance(told, dict) else json.dumps({"message": text}, ensure_ascii=False)
