"""`qd logs`: prints the end of the server's log and follows it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from quarterdeck.cli.command_table import NUMBER, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, decode_object, to_json_line
from quarterdeck.core.errors import NotFound

LOGS_OPTIONS = (
    Option("--follow", "Keep printing new lines until Ctrl-C.", short="-f"),
    Option("--lines", "Number of lines from the end [default: 50].", NUMBER, short="-n"),
)
_BLOCK_BYTES = 64 * 1024
_POLL_SECONDS = 0.2


def logs(context: Context) -> None:
    path = context.local_data_dir().log_path
    line_count = context.number("lines")
    try:
        log_fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        detail = f"{path} does not exist. Only a server that was started automatically writes this log."
        raise NotFound("no_log", detail) from None
    try:
        for line in read_last_lines(log_fd, 50 if line_count is None else line_count):
            context.write(_format_line(line, context.as_json))
        if context.flag("follow"):
            _follow(context, path, log_fd)
    finally:
        os.close(log_fd)


def read_last_lines(log_fd: int, count: int) -> list[bytes]:
    """Return the last lines of an open file. Reads backwards, and leaves the file position at the end."""
    end = os.lseek(log_fd, 0, os.SEEK_END)
    data = b""
    position = end
    # Read one more line break than lines, because the first line of the data may be partial.
    while position > 0 and data.count(b"\n") <= count:
        size = min(_BLOCK_BYTES, position)
        position -= size
        data = os.pread(log_fd, size, position) + data
    return data.splitlines()[-count:] if count else []


def read_added_lines(log_fd: int) -> Iterator[bytes]:
    """Yield the complete lines after the file position. A partial last line is left for the next call."""
    data = b""
    while chunk := os.read(log_fd, _BLOCK_BYTES):
        data += chunk
    complete, newline, partial = data.rpartition(b"\n")
    os.lseek(log_fd, -len(partial), os.SEEK_CUR)
    yield from (complete + newline).splitlines()


def _follow(context: Context, path: str, log_fd: int) -> None:
    """Print new lines until Ctrl-C. Polls, because the standard library cannot watch a file."""
    current_fd = log_fd
    while True:
        for line in read_added_lines(current_fd):
            context.write(_format_line(line, context.as_json))
        sys.stdout.flush()
        current_fd = _reopen_if_rotated(path, current_fd)
        time.sleep(_POLL_SECONDS)


def _reopen_if_rotated(path: str, current_fd: int) -> int:
    """Switch to the start of the new log after a rotation, which renames or truncates the old one."""
    open_stat = os.fstat(current_fd)
    try:
        path_stat = os.stat(path)  # noqa: PTH116 - importing pathlib takes 10 ms
    except FileNotFoundError:
        return current_fd
    if (path_stat.st_dev, path_stat.st_ino) != (open_stat.st_dev, open_stat.st_ino):
        new_fd = os.open(path, os.O_RDONLY)
        os.dup2(new_fd, current_fd)
        os.close(new_fd)
    elif path_stat.st_size < os.lseek(current_fd, 0, os.SEEK_CUR):
        os.lseek(current_fd, 0, os.SEEK_SET)
    return current_fd


def _format_line(line: bytes, as_json: bool) -> str:
    """Format one line. With --json it becomes an object, even if it is plain text, such as a line of a traceback."""
    text = line.decode("utf-8", "replace")
    if not as_json:
        return text if text.isprintable() else cell(text)
    return to_json_line({"message": text}) if decode_object(text) is None else text
